# ruff: noqa: RUF001  (the bars in DeepSeek's tokens are full-width)
"""The facts about each family's chat format, one row per template, and a model folder for each."""

import json
from dataclasses import dataclass
from pathlib import Path

from tokenizers import AddedToken, Tokenizer

from astune.testing import write_test_model_dir

TEMPLATES = Path(__file__).parent / "templates"
LLAMA = ("<|start_header_id|>", "<|end_header_id|>", "<|python_tag|>", "<|eom_id|>", "<|end_of_text|>")
MISTRAL = ("[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]")
MISTRAL += ("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[THINK]", "[/THINK]")
DEEPSEEK = ("<｜User｜>", "<｜Assistant｜>", "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>")
DEEPSEEK += ("<｜tool▁call▁end｜>", "<｜tool▁sep｜>", "<｜tool▁outputs▁begin｜>", "<｜tool▁outputs▁end｜>")
DEEPSEEK_CALL = "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>"
GLM = ("[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>")
HARMONY = ("<|start|>", "<|message|>", "<|channel|>", "<|end|>", "<|call|>", "<|constrain|>", "<|endoftext|>")
GEMMA4 = ("<|turn>", "<|tool_call>", "<tool_call|>", "<|tool_response>", "<tool_response|>", '<|"|>', "<|channel>")
GEMMA4 += ("<channel|>", "<|think|>", "<|tool>", "<tool|>", "<eos>")


@dataclass(frozen=True)
class Family:
    """What is true of one template. `forced` is what an answer that calls `add` is made to begin with."""

    template: str
    form: str
    eos: str
    role: str
    """What stands before an answer in a history."""
    forced: str
    close: str | None
    stops: tuple[str, ...]
    bos: str | None = None
    tokens: tuple[str, ...] = ()
    lead: str = ""
    """The part of `forced` that leaves reasoning out."""
    json_start: str = "{"
    next_openings: tuple[str, ...] = ()
    opens_thinking: bool = False
    """The generation prompt ends with `<think>`."""
    writes_reasoning: bool = True
    text_beside_calls: bool = True
    parallel_calls: bool = True
    """The template writes any number of calls in one message."""
    calls: bool = True
    typed: bool = False
    """The format does not tell a string from a number."""
    bare_keys: bool = False
    """Keys of objects are written without quotes."""
    text_after_results: bool = False
    """Where the results of the calls are there, the text of a message comes after them."""
    arguments_as_text: bool = False
    empty_content: bool = False
    """What transformers' caller must know: arguments are text; no content is "", not None."""
    refused_by_transformers: bool = False
    """transformers drops a content that is None, and then this template refuses a message that calls tools."""


IM = {"eos": "<|im_end|>", "role": "<|im_start|>assistant\n", "close": "<|im_end|>", "stops": ("<|im_end|>",)}
HERMES = {**IM, "form": "hermes", "forced": '<tool_call>\n{"name": "add", "arguments": '}
CODER = {**IM, "form": "qwen3_coder", "forced": "<tool_call>\n<function=add>\n", "typed": True}
OPENED_CODER = {**CODER, "forced": "\n</think>\n\n" + CODER["forced"], "lead": "\n</think>\n\n", "opens_thinking": True}
LLAMA_ROW = {
    "form": "llama3_json",
    "bos": "<|begin_of_text|>",
    "eos": "<|eot_id|>",
    "tokens": LLAMA,
    "role": "<|start_header_id|>assistant<|end_header_id|>\n\n",
    "forced": '{"name": "add", "parameters": ',
    "close": "<|eot_id|>",
    "stops": ("<|eot_id|>", "<|eom_id|>"),
    "writes_reasoning": False,
    "text_beside_calls": False,
    "parallel_calls": False,
}
MISTRAL_ROW = {
    "bos": "<s>",
    "eos": "</s>",
    "tokens": MISTRAL,
    "role": "[/INST]",
    "close": "</s>",
    "stops": ("</s>",),
}
DEEPSEEK_ROW = {
    "form": "deepseek_v3",
    "bos": "<｜begin▁of▁sentence｜>",
    "eos": "<｜end▁of▁sentence｜>",
    "tokens": DEEPSEEK,
    "role": "<｜Assistant｜>",
    "forced": "\n</think>\n\n" + DEEPSEEK_CALL + "add\n```json\n",
    "lead": "\n</think>\n\n",
    "close": "<｜end▁of▁sentence｜>",
    "stops": ("<｜end▁of▁sentence｜>",),
    "opens_thinking": True,
    "writes_reasoning": False,
    "arguments_as_text": True,
    "next_openings": ("<｜tool▁outputs▁begin｜>",),
}
NO_CALLS = {"form": "none", "forced": "", "calls": False, "writes_reasoning": False}

FAMILIES = [
    Family("qwen2_5", **HERMES, writes_reasoning=False),
    Family("qwen3", **HERMES),
    Family("qwen3_instruct_2507", **HERMES, writes_reasoning=False),
    Family("qwen3_5_nothink", **CODER),
    Family("qwen3_6", **OPENED_CODER),
    Family("nemotron_3_nano", **OPENED_CODER),
    Family("llama3_1", **LLAMA_ROW),
    Family("llama3_2", **LLAMA_ROW),
    Family(
        "mistral_v3",
        **MISTRAL_ROW,
        form="mistral",
        forced='[TOOL_CALLS][{"name": "add", "arguments": ',
        writes_reasoning=False,
        text_beside_calls=False,
    ),
    Family(
        "mistral_v11",
        **MISTRAL_ROW,
        form="mistral_call_id",
        forced="[TOOL_CALLS]add[CALL_ID]",
        writes_reasoning=False,
    ),
    Family("mistral_v13", **MISTRAL_ROW, form="mistral_args", forced="[TOOL_CALLS]add[ARGS]"),
    Family("deepseekv3", **DEEPSEEK_ROW, empty_content=True),
    Family(
        "deepseek_r1_distill",
        **DEEPSEEK_ROW,
        text_beside_calls=False,
        parallel_calls=False,
        refused_by_transformers=True,
    ),
    Family(
        "glm4moe",
        form="glm",
        eos="<|endoftext|>",
        tokens=GLM,
        role="<|assistant|>",
        lead="\n<think></think>\n",
        forced="\n<think></think>\n<tool_call>add\n",
        close=None,
        stops=("<|endoftext|>", "<|user|>", "<|observation|>"),
        next_openings=("<|user|>", "<|observation|>", "<|assistant|>", "<|system|>"),
        typed=True,
        empty_content=True,
    ),
    Family(
        "gptoss",
        form="harmony",
        eos="<|return|>",
        tokens=HARMONY,
        role="<|start|>assistant",
        forced=" to=functions.add<|channel|>commentary json<|message|>",
        json_start="<|channel|>final<|message|>{",
        close="<|return|>",
        stops=("<|return|>", "<|call|>"),
        text_beside_calls=False,
        parallel_calls=False,
        empty_content=True,
    ),
    Family(
        "gemma4",
        form="gemma4",
        bos="<bos>",
        eos="<turn|>",
        tokens=GEMMA4,
        role="<|turn>model\n",
        forced="<|tool_call>call:add{",
        close="<turn|>",
        stops=("<turn|>", "<|tool_response>"),
        next_openings=("<|tool_response>",),
        bare_keys=True,
        text_after_results=True,
    ),
    Family(
        "gemma3",
        **NO_CALLS,
        bos="<bos>",
        eos="<eos>",
        tokens=("<start_of_turn>", "<end_of_turn>"),
        role="<start_of_turn>model\n",
        close="<end_of_turn>",
        stops=("<end_of_turn>", "<eos>"),
    ),
    Family(
        "phi3_5",
        **NO_CALLS,
        eos="<|endoftext|>",
        tokens=("<|system|>", "<|user|>", "<|assistant|>", "<|end|>"),
        role="<|assistant|>\n",
        close="<|end|>",
        stops=("<|end|>", "<|endoftext|>"),
    ),
    Family(
        "cohere",
        **NO_CALLS,
        bos="<BOS_TOKEN>",
        eos="<|END_OF_TURN_TOKEN|>",
        tokens=("<|START_OF_TURN_TOKEN|>", "<|USER_TOKEN|>", "<|CHATBOT_TOKEN|>", "<|SYSTEM_TOKEN|>"),
        role="<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>",
        close="<|END_OF_TURN_TOKEN|>",
        stops=("<|END_OF_TURN_TOKEN|>",),
    ),
]


def write_family_dir(family: Family, path: Path) -> Path:
    """A model folder with the family's real template and its special tokens."""
    write_test_model_dir(path)
    tokenizer = Tokenizer.from_file(str(path / "tokenizer.json"))
    special = [*family.tokens, family.eos, *family.stops, *([family.bos] if family.bos else [])]
    tokenizer.add_special_tokens([AddedToken(text, normalized=False, special=True) for text in dict.fromkeys(special)])
    tokenizer.save(str(path / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": family.eos}
    if family.bos:
        config["bos_token"] = family.bos
    (path / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    (path / "generation_config.json").unlink()
    template = (TEMPLATES / f"{family.template}.jinja").read_text(encoding="utf-8")
    (path / "chat_template.jinja").write_text(template, encoding="utf-8")
    return path

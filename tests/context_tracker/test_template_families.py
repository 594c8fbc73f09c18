# ruff: noqa: RUF001  (the bars in DeepSeek's tokens are full-width)
"""Every family's real chat template: what is rendered, read back, cut short, and forced. One row per template."""

import json
import os
import re
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer

from astune.config.schema import ModelConfig
from astune.context_tracker.prompt.answer_formats import FORMATS
from astune.context_tracker.prompt.chat_format import ChatFormat, ParsedMessage, WrittenCall
from astune.errors import WorkflowError
from astune.testing import write_test_model_dir
from tests.context_tracker.own_templates import MINICPM_3, NO_CALLS_WRITTEN, WRITES_CALLS
from tests.context_tracker.parsing import parse
from tests.rows import each_row

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
    writes_tools: bool = True
    """False: the template drops tools, so that here a line that writes them stands before it."""
    arguments_as_text: bool = False
    empty_content: bool = False
    """What transformers' caller must know: arguments are text; no content is "", not None."""
    calls_in_content: bool = False
    """The template writes no calls: they are written for it into the content."""
    source: str = ""
    """The template, for a family whose own is not among the files."""
    refused_by_transformers: bool = False
    """transformers drops a content that is None, and then this template refuses a message that calls tools."""


IM = {"eos": "<|im_end|>", "role": "<|im_start|>assistant\n", "close": "<|im_end|>", "stops": ("<|im_end|>",)}
HERMES = {**IM, "form": "hermes", "forced": '<tool_call>\n{"name": "add", "arguments":'}
CODER = {**IM, "form": "qwen3_coder", "forced": "<tool_call>\n<function=add>\n", "typed": True}
OPENED_CODER = {**CODER, "forced": "\n</think>\n\n" + CODER["forced"], "lead": "\n</think>\n\n", "opens_thinking": True}
LLAMA_ROW = {
    "form": "llama3_json",
    "bos": "<|begin_of_text|>",
    "eos": "<|eot_id|>",
    "tokens": LLAMA,
    "role": "<|start_header_id|>assistant<|end_header_id|>\n\n",
    "forced": '{"name": "add", "parameters":',
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
    "writes_tools": False,
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
        forced='[TOOL_CALLS][{"name": "add", "arguments":',
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
FORCED = {
    "apriel": '<tool_calls>[{"name": "add", "arguments":',
    "apertus": '<|tools_prefix|>[{"add":',
    "nemotron_nano": '<TOOLCALL>[{"name": "add", "arguments":',
    "minimax_m1": '<tool_calls>\n{"name": "add", "arguments":',
    "cohere": '<|START_ACTION|>[\n    {"tool_call_id": "0", "tool_name": "add", "parameters":',
    "gigachat": '<|function_call|>{"name": "add", "arguments":',
    "kimi_k2": "<|tool_calls_section_begin|><|tool_call_begin|>functions.add:0<|tool_call_argument_begin|>",
    "deepseek_v31": "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>add<｜tool▁sep｜>",
    "hunyuan": "<tool_calls><tool_call>function<tool_sep>add\n```json\n",
    "functionary": "<function=add>",
    "minimax_m2": '<minimax:tool_call>\n<invoke name="add">',
    "seed_oss": "<seed:tool_call>\n<function=add>",
    "minicpm5": '<function name="add">',
    "hunyuan_3": "<tool_calls:opensource>\n<tool_call:opensource>add<tool_sep:opensource>",
    "deepseek_v32": '<｜DSML｜function_calls>\n<｜DSML｜invoke name="add">',
    "deepseek_v4": '<｜DSML｜tool_calls>\n<｜DSML｜invoke name="add">',
    "hermes": HERMES["forced"],
    "lfm2": "<|tool_call_start|>[add(",
    "minicpm": "<|tool_call_start|>\n```python\nadd(",
    "granite": '<|tool_call|>[{"name": "add", "arguments":',
}
"""By format, for the templates of our own."""
FAMILIES += [
    Family(
        f"own_{form}",
        **IM,
        form=form,
        forced=FORCED[form],
        source=source,
        tokens=(*DEEPSEEK, "｜DSML｜") if form.startswith("deepseek") else (),
        writes_reasoning=False,
        typed=form in ("minimax_m2", "seed_oss", "minicpm5", "hunyuan_3", "deepseek_v32", "deepseek_v4"),
        bare_keys=form in ("lfm2", "minicpm"),
        calls_in_content=form in NO_CALLS_WRITTEN,
    )
    for form, source in (WRITES_CALLS | NO_CALLS_WRITTEN).items()
]
FAMILIES.append(
    Family("own_minicpm_3", **IM, form="minicpm", forced=FORCED["minicpm"], source=MINICPM_3, bare_keys=True)
)
FAMILIES.append(
    Family(
        "own_lfm2_by_its_tokens",
        **IM,
        form="lfm2",
        forced=FORCED["lfm2"],
        source=NO_CALLS_WRITTEN["lfm2"].replace("<|tool_list_start|>", ""),
        tokens=("<|tool_call_start|>", "<|tool_call_end|>"),
        writes_reasoning=False,
        bare_keys=True,
        calls_in_content=True,
    )
)


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
    template = family.source or (TEMPLATES / f"{family.template}.jinja").read_text(encoding="utf-8")
    if not family.writes_tools:
        template = "{{- tools | tojson if tools }}" + template
    (path / "chat_template.jinja").write_text(template, encoding="utf-8")
    return path


CALLING = [family for family in FAMILIES if family.calls]
TYPES = {
    "text": {"type": "string"},
    "n": {"type": "integer"},
    "x": {"type": "number"},
    "yes": {"type": "boolean"},
    "object": {"type": "object"},
    "list": {"type": "array"},
    "maybe": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
}
ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Adds.",
        "parameters": {
            "type": "object",
            "properties": {name: {**schema, "description": "One."} for name, schema in TYPES.items()},
            "required": ["n"],
        },
    },
}
QUESTION = {"role": "user", "content": "Grüße 🎉?"}


EACH = settings(max_examples=settings.default.max_examples // 2)
"""For a property that every one of some forty families is tried with."""


def each(families=FAMILIES):
    return each_row("family", families, ids=lambda family: family.template)


def call(arguments, number=1, name="add"):
    text = json.dumps(arguments, ensure_ascii=False)
    return {"id": f"call0000{number}", "type": "function", "function": {"name": name, "arguments": text}}


def answers(family: Family):
    """One assistant message for each combination that the template can write."""
    texts = [None, "Let me see."]
    thoughts = [None, "Hm."] if family.writes_reasoning else [None]
    groups = [[]] if not family.calls else [[], [call({"n": 1, "text": "ü"})]]
    if family.parallel_calls and family.calls:
        groups.append([call({"n": 1}), call({"n": 2, "list": [{"a": None}], "yes": True}, 2), call({}, 3)])
    for text in texts:
        for thought in thoughts:
            for calls in groups:
                if not (text or calls) or (text and calls and not family.text_beside_calls):
                    continue
                message = {"role": "assistant", "content": text}
                yield (
                    message
                    | ({"reasoning_content": thought} if thought else {})
                    | ({"tool_calls": calls} if calls else {})
                )


def results(message):
    calls = message.get("tool_calls", ())
    return [{"role": "tool", "tool_call_id": call["id"], "content": "Four"} for call in calls]


def written_answer(chat_format, family, before, message, after=(), tools=(ADD,)):
    """What the template writes for `message` in a conversation, without the token that closes it."""
    tools = tools if family.calls else ()
    rendering = chat_format.render([*before, message, *after], tools, add_generation_prompt=False)
    start = rendering.index(family.role) + len(family.role)
    closing = chat_format.find_closing(rendering, start)
    return rendering[start:] if closing is None else rendering[start : closing[0]]


def assert_says(parsed: ParsedMessage, message) -> None:
    assert (parsed.content or "").strip() == (message["content"] or "")
    assert (parsed.reasoning or "").strip() == message.get("reasoning_content", "")
    functions = [call["function"] for call in message.get("tool_calls", ())]
    assert [call.name for call in parsed.tool_calls] == [function["name"] for function in functions]
    for read, sent in zip(parsed.tool_calls, functions, strict=True):
        assert json.loads(read.arguments) == json.loads(sent["arguments"])


@each()
def test_the_format_is_found_by_trying_the_template(formats, family):
    assert formats(family).tool_call_format == family.form
    problem = formats(family).call_problem
    assert (problem is None) == family.calls, problem


@each()
def test_how_an_answer_ends(formats, family):
    chat_format = formats(family)
    assert chat_format.close_token == family.close
    assert {chat_format.decode([number]) for number in chat_format.stop_token_ids} == set(family.stops)
    assert chat_format.next_openings == set(family.next_openings)
    for stop in family.stops:
        assert parse(chat_format, chat_format.encode("Yes." + stop), prompt=family.role).content == "Yes."


def conversations(family: Family):
    """Conversations of any length that transformers can write with the template, in OpenAI's wire shape."""
    for message in answers(family):
        if (family.refused_by_transformers or family.calls_in_content) and "tool_calls" in message:
            continue
        last = [{"role": "assistant", "content": "Done."}] if results(message) else []
        whole = [QUESTION, message, *results(message), *last, QUESTION]
        for length in range(1, len(whole) + 1):
            yield [{"role": "system", "content": "Be brief."}, *whole[:length]]


def for_transformers(family: Family, messages):
    """The same messages as a caller of transformers must give them for this template."""
    messages = json.loads(json.dumps(messages))
    for message in messages:
        if "reasoning_content" in message:
            message["thinking"] = message["thought"] = message["reasoning_content"]
        if message["content"] is None and family.empty_content:
            message["content"] = ""
        for tool_call in message.get("tool_calls", ()):
            if not family.arguments_as_text:
                tool_call["function"]["arguments"] = json.loads(tool_call["function"]["arguments"])
    return messages


@each()
def test_prompts_equal_those_of_transformers(formats, family):
    transformers = pytest.importorskip("transformers")
    ours, theirs = formats(family), transformers.AutoTokenizer.from_pretrained(formats.path(family))
    tool_lists = ([], [ADD]) if family.calls else ([],)
    for messages, tools, generate in product(conversations(family), tool_lists, (True, False)):
        arguments = {"tools": tools or None, "add_generation_prompt": generate}
        sent = for_transformers(family, messages)
        text = theirs.apply_chat_template(sent, tokenize=False, **arguments)
        ids = theirs.apply_chat_template(sent, tokenize=True, return_dict=False, **arguments)
        assert ours.render(messages, tools, add_generation_prompt=generate) == text
        assert ours.encode(text) == ids


@each()
def test_what_the_template_writes_for_an_answer_reads_back(formats, family):
    chat_format = formats(family)
    for message in answers(family):
        moved = family.text_after_results and message["content"] and results(message)
        for after in ([],) if moved else ([], results(message)):
            text = written_answer(chat_format, family, [QUESTION], message, after)
            assert_says(chat_format.parse_text(text, [ADD], prompt=family.role), message)
            ids = [*chat_format.encode(text), chat_format.stop_token_ids[0]]
            assert_says(parse(chat_format, ids, [ADD], prompt=family.role), message)


@each()
def test_an_answer_ends_where_the_next_message_begins(formats, family):
    chat_format = formats(family)
    answer = {"role": "assistant", "content": "Yes."}
    rendering = chat_format.render([QUESTION, answer, QUESTION])
    start = rendering.index(family.role) + len(family.role)
    place, token = chat_format.find_closing(rendering, start)
    assert_says(chat_format.parse_text(rendering[start:place], prompt=family.role), answer)
    assert rendering.startswith(token, place)
    assert token in {*family.stops, *family.next_openings, "<|end|>"}


@each(CALLING)
def test_no_tool_offered_means_no_call(formats, family):
    message = next(message for message in answers(family) if message.get("tool_calls"))
    text = written_answer(formats(family), family, [QUESTION], message)
    parsed = formats(family).parse_text(text, (), prompt=family.role)
    assert parsed.tool_calls == ()
    assert '"ü"' in parsed.content or "ü" in parsed.content


@each(CALLING)
def test_a_call_cut_short_stays_in_the_text(formats, family):
    message = {"role": "assistant", "content": None, "tool_calls": [call({"n": 1, "text": "ü"})]}
    text = written_answer(formats(family), family, [QUESTION], message)
    text = text[text.index(FORMATS[family.form].call_start(None)) :]
    for length in range(len(text)):
        parsed = formats(family).parse_text(text[:length], [ADD], prompt=family.role)
        if parsed.tool_calls:  # all that is missing is white space or a bracket around the whole
            assert_says(parsed, message)
        else:
            assert (parsed.content or "") == text[:length]
    assert formats(family).parse_text(text[: len(text) // 2], [ADD], prompt=family.role).tool_calls == ()


@each(CALLING)
def test_a_call_with_arguments_that_are_none_stays_in_the_text(formats, family):
    message = {"role": "assistant", "content": None, "tool_calls": [call({"n": 1, "text": "ü"})]}
    text = written_answer(formats(family), family, [QUESTION], message)
    text = text[text.index(FORMATS[family.form].call_start(None)) :]
    broken = re.sub(r"<parameter|<param|<arg_key|DSML｜parameter|\bn=", r"\g<0>{", text.replace("{", "{{", 2))
    assert broken != text
    assert formats(family).parse_text(broken, [ADD], prompt=family.role) == ParsedMessage(broken, None, ())


XML_MARKS = ("</tool_call>", "</function>", "</parameter>", "<parameter=", "</arg_key>", "</arg_value>", "<arg_key>")
NAMES = st.from_regex(r"[^\W\d]\w{0,20}([.-]\w{1,5})?", fullmatch=True)


def json_values(keys):
    numbers = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    return st.recursive(
        st.none() | st.booleans() | numbers | st.text(),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3),
        max_leaves=6,
    )


@cache  # to make the strategy takes longer than to draw from it
def arguments_of(*, bare_keys: bool, typed: bool):
    """Arguments that a format can carry: bare keys are names, and where types come from a schema, it has them."""
    keys = st.from_regex(r"\w+", fullmatch=True) if bare_keys else st.text()
    values = json_values(keys)
    if not typed:
        return st.dictionaries(keys, values, max_size=4)
    of_type = {
        "text": st.text(),
        "n": st.integers(),
        "x": st.floats(allow_nan=False, allow_infinity=False),
        "yes": st.booleans(),
        "object": st.dictionaries(st.text(), values, max_size=3),
        "list": st.lists(values, max_size=3),
        "maybe": st.none() | st.integers(),
    }
    return st.fixed_dictionaries({}, optional=of_type)


@each(CALLING)
@EACH
@given(data=st.data())
def test_any_call_reads_back(formats, family, data):
    arguments = data.draw(arguments_of(bare_keys=family.bare_keys, typed=family.typed))
    name = data.draw(NAMES)
    written = json.dumps(arguments, ensure_ascii=False)
    assume(not any(mark in written for mark in (*family.tokens, *family.stops, *(XML_MARKS if family.typed else ()))))
    tool = {**ADD, "function": {**ADD["function"], "name": name}}
    message = {"role": "assistant", "content": None, "tool_calls": [call(arguments, name=name)]}
    text = written_answer(formats(family), family, [QUESTION], message, tools=[tool])
    assert_says(formats(family).parse_text(text, [tool], prompt=family.role), message)


@each()
@given(text=st.text())
def test_any_text_is_content_unchanged(formats, family, text):
    assume(not any(mark in text for mark in ("<think>", "[THINK]", "<|channel>thought", "<|message|>")))
    parsed = formats(family).parse_text(text, [ADD], prompt=family.role)
    assert parsed == ParsedMessage(text or None, None, ())


@each(CALLING)
def test_a_forced_call_is_how_the_template_writes_it(formats, family):
    chat_format = formats(family)
    start = chat_format.write_forced_start("tool_call", "add")
    assert start == family.forced
    assert start.startswith(chat_format.write_forced_start("tool_call"))
    message = {"role": "assistant", "content": None, "tool_calls": [call({"n": 1, "text": "ü"})]}
    prompt = chat_format.render([QUESTION], [ADD])
    rendering = chat_format.render([QUESTION, message, *results(message)], [ADD], add_generation_prompt=False)
    if rendering.startswith(prompt):
        assert rendering.startswith(prompt + start)
    written = written_answer(chat_format, family, [QUESTION], message, results(message))
    lead, _, rest = written.partition(start.removeprefix(family.lead))
    assert rest
    assert not FORMATS[family.form].read(lead).content
    assert_says(parse(chat_format, chat_format.encode(rest), [ADD], answer_start=start), message)
    any_tool = chat_format.write_forced_start("tool_call")
    _, _, rest = written.partition(any_tool.removeprefix(family.lead))
    assert_says(parse(chat_format, chat_format.encode(rest), [ADD], answer_start=any_tool), message)


@each()
def test_a_forced_object_is_the_content(formats, family):
    chat_format = formats(family)
    start = chat_format.write_forced_start("json_object")
    assert start == family.lead + family.json_start
    output = chat_format.encode('"a": [1]}' + family.stops[0])
    assert parse(chat_format, output, [ADD], answer_start=start).content == '{"a": [1]}'


@each([family for family in FAMILIES if not family.calls])
def test_a_call_cannot_be_forced_where_none_is_known(formats, family):
    with pytest.raises(WorkflowError, match=r"astune\.model\.tool_call_format"):
        formats(family).write_forced_start("tool_call", "add")


@each([family for family in FAMILIES if family.opens_thinking])
def test_reasoning_that_the_prompt_opened_is_read(formats, family):
    assert formats(family).parse_text("Hm.\n</think>\n\nSo.") == ParsedMessage("So.", "Hm.", ())
    assert formats(family).parse_text("Hm.") == ParsedMessage(None, "Hm.", ())


def family_of(template: str) -> Family:
    return next(family for family in FAMILIES if family.template == template)


def test_a_prompt_that_opens_no_reasoning_says_so(formats):
    chat_format = formats(family_of("deepseekv3"))
    message = {"role": "assistant", "content": None, "tool_calls": [call({"n": 1})]}
    prompt = chat_format.render([QUESTION, message, *results(message)], [ADD])
    assert chat_format.parse_text("Four.", [ADD], prompt=prompt) == ParsedMessage("Four.", None, ())
    assert chat_format.parse_text("Four.", [ADD]) == ParsedMessage(None, "Four.", ())
    assert chat_format.write_forced_start("json_object", prompt=prompt) == "{"


def test_gemma_opens_its_thinking_after_a_tool_result(formats):
    chat_format = formats(family_of("gemma4"), enable_thinking=True)
    message = {"role": "assistant", "content": None, "tool_calls": [call({"n": 1})]}
    prompt = chat_format.render([QUESTION, message, *results(message)], [ADD])
    assert chat_format.parse_text("Hm.\n<channel|>Four.", prompt=prompt) == ParsedMessage("Four.", "Hm.", ())
    assert chat_format.parse_text("Four.") == ParsedMessage("Four.", None, ())
    assert chat_format.write_forced_start("json_object", prompt=prompt) == "\n<channel|>{"


def test_glm_says_what_an_answer_without_thinking_begins_with(formats):
    assert formats(family_of("glm4moe"), enable_thinking=False).write_forced_start("json_object") == "\n{"


def test_llama_marks_a_call_with_a_tag_too(formats):
    text = 'I call.<|python_tag|>{"type": "function", "name": "add", "parameters": {"n":1}}'
    expected = ParsedMessage("I call.", None, (WrittenCall("add", '{"n":1}'),))
    chat_format = formats(family_of("llama3_1"))
    assert parse(chat_format, chat_format.encode(text + "<|eom_id|>"), [ADD]) == expected


@each_row(
    "text",
    [
        'Sure: {"name": "add", "parameters": {}}',
        '{"name": "Ada", "parameters": {}, "age": 36}',
        '{"name": "add", "parameters": {}}; {"name": "add", "parameters": {}}',
        '{"name": "add", "arguments": {}}',
        "<|python_tag|>print(1)",
    ],
)
def test_llama_text_that_only_resembles_a_call_is_content(formats, text):
    assert formats(family_of("llama3_1")).parse_text(text, [ADD]) == ParsedMessage(text, None, ())


def test_mistral_calls_keep_their_ids(formats):
    listed = '[TOOL_CALLS] [{"name": "add", "arguments": {"n":1}, "id": "abcdefghi"}]'
    spelled = '[TOOL_CALLS]add[CALL_ID]abcdefghi[ARGS]{"n":1}'
    for template, text in (("mistral_v3", listed), ("mistral_v11", spelled)):
        parsed = formats(family_of(template)).parse_text("Hm." + text, [ADD])
        assert parsed == ParsedMessage("Hm.", None, (WrittenCall("add", '{"n":1}', "abcdefghi"),))


def test_mistral_calls_inside_an_argument_are_an_argument(formats):
    inside = '{"n": "[TOOL_CALLS]add[ARGS]{}"}'
    parsed = formats(family_of("mistral_v13")).parse_text("[TOOL_CALLS]add[ARGS]" + inside, [ADD])
    assert parsed.tool_calls == (WrittenCall("add", inside),)


HARMONY_CALL = '<|channel|>commentary to=functions.add <|constrain|>json<|message|>{"n":1}'


@each_row(
    ("text", "expected"),
    [
        (HARMONY_CALL, ParsedMessage(None, None, (WrittenCall("add", '{"n":1}'),))),
        (
            "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary<|message|>I add.<|end|>"
            "<|start|>assistant" + HARMONY_CALL,
            ParsedMessage("I add.", "Hm.", (WrittenCall("add", '{"n":1}'),)),
        ),
        (
            "<|channel|>analysis<|message|>A<|end|><|start|>assistant<|channel|>analysis<|message|>B",
            ParsedMessage(None, "A\nB", ()),
        ),
        ("<|channel|>final<|message|> So\n", ParsedMessage(" So\n", None, ())),
        ("<|channel|>final", ParsedMessage("<|channel|>final", None, ())),
    ],
)
def test_harmony_channels(formats, text, expected):
    chat_format = formats(family_of("gptoss"))
    assert chat_format.parse_text(text, [ADD]) == expected
    assert parse(chat_format, chat_format.encode(text), [ADD]) == expected


@each_row(
    "text",
    [
        "<|channel|>commentary to=browser.search<|message|>{}",
        "<|channel|>commentary to=functions.add<|message|>{",
        "<|channel|>musing<|message|>Hm.",
        "oops <|channel|>final<|message|>So.",
        "<|message|>So.",
    ],
)
def test_harmony_messages_that_are_not_known_stay_as_they_are(formats, text):
    assert formats(family_of("gptoss")).parse_text(text, [ADD]) == ParsedMessage(text, None, ())


def test_harmony_history_is_written_whole_or_refused(formats):
    chat_format = formats(family_of("gptoss"))
    message = {"role": "assistant", "content": "I add.", "reasoning_content": "Hm.", "tool_calls": [call({"n": 1})]}
    rendering = chat_format.render([QUESTION, message, *results(message)], [ADD])
    assert "<|channel|>analysis<|message|>Hm.\nI add.<|end|>" in rendering
    with pytest.raises(WorkflowError, match="calls 2 tools at once"):
        chat_format.render([QUESTION, {**message, "tool_calls": [call({}), call({}, 2)]}], [ADD])


@each_row(
    "inside", ["{n:}", "{n:1", "{n:1 2}", "{:1}", '{text:<|"|>ü}', "{list:[1,,2]}", "{list:[1 2]}", "{n:1,}", "{n=1}"]
)
def test_malformed_gemma_calls_stay_in_the_text(formats, inside):
    text = f"<|tool_call>call:add{inside}<tool_call|>"
    assert formats(family_of("gemma4")).parse_text(text, [ADD]) == ParsedMessage(text, None, ())


@pytest.mark.parametrize(
    ("template", "good", "bad"),
    [
        ("deepseekv3", '{"n": 2}', '{"n": 2'),
        ("deepseekv3", "\n<｜tool▁call▁begin｜>", "and <｜tool▁call▁begin｜>"),
        ("mistral_v3", '{"n": 2}', "[2]"),
        ("gemma4", "<tool_call|>", ""),
    ],
)
def test_a_block_of_calls_is_read_as_a_whole(formats, template, good, bad):
    family = family_of(template)
    message = {"role": "assistant", "content": None, "tool_calls": [call({"n": 1}), call({"n": 2}, 2)]}
    text = written_answer(formats(family), family, [QUESTION], message)
    broken = text.replace(good, bad)
    assert broken != text
    assert formats(family).parse_text(broken, [ADD], prompt=family.role) == ParsedMessage(broken, None, ())


def test_the_text_of_arguments_that_were_sent_is_what_deepseek_is_given(formats):
    chat_format = formats(family_of("deepseekv3"))
    message = {"role": "assistant", "content": None, "tool_calls": [call({})]}
    message["tool_calls"][0]["function"]["arguments"] = '{"n":1e0,   "text":"\\u00fc"}'
    assert '```json\n{"n":1e0,   "text":"\\u00fc"}\n```' in chat_format.render([QUESTION, message], [ADD])


def test_an_id_that_the_model_writes_is_the_calls(formats):
    text = (
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.add:3<|tool_call_argument_begin|>{}<|tool_call_end|>"
    )
    parsed = formats(family_of("own_kimi_k2")).parse_text(text, [ADD])
    assert parsed == ParsedMessage(None, None, (WrittenCall("add", "{}", "functions.add:3"),))


@each_row(
    ("written", "arguments"),
    [
        ("n=-1, text='it\\'s', list=[true, None, 1.5]", {"n": -1, "text": "it's", "list": [True, None, 1.5]}),
        ("from=1, object={'a': (1, \"b\")}", {"from": 1, "object": {"a": [1, "b"]}}),
        ("text='two\nlines and a \\d'", {"text": "two\nlines and a \\d"}),
        ("n=007", {"n": 7}),
        ("1", None),
        ("n=print(1)", None),
        ("n=__import__", None),
        ("n=1, n", None),
    ],
)
def test_pythonic_arguments_are_literals(formats, written, arguments):
    text = f"<|tool_call_start|>[add({written}), get-it.now()]<|tool_call_end|>"
    parsed = formats(family_of("own_lfm2")).parse_text("Hm." + text, [ADD])
    if arguments is None:
        assert parsed == ParsedMessage("Hm." + text, None, ())
    else:
        assert [json.loads(each.arguments) for each in parsed.tool_calls] == [arguments, {}]
        assert [each.name for each in parsed.tool_calls] == ["add", "get-it.now"]


def test_calls_that_a_template_does_not_write_are_in_the_prompt_all_the_same(formats):
    message = {"role": "assistant", "content": "I add.", "tool_calls": [call({"n": 1, "text": "ü"})]}
    rendering = formats(family_of("own_lfm2")).render([QUESTION, message, *results(message)], [ADD])
    assert 'I add.\n<|tool_call_start|>[add(n=1, text="ü")]<|tool_call_end|><|im_end|>' in rendering
    message["tool_calls"][0]["function"]["arguments"] = "{"
    with pytest.raises(WorkflowError, match="arguments of a call of 'add' are not the JSON text of an object"):
        formats(family_of("own_lfm2")).render([QUESTION, message], [ADD])


@pytest.mark.parametrize(
    "path", sorted(Path(folder).glob("*.jinja")) if (folder := os.environ.get("ASTUNE_TEMPLATES")) else [], ids=str
)
def test_a_template_of_a_folder_writes_calls_that_are_read_or_says_why_not(path, tmp_path):
    """Such as a collection of the hub's templates: set ASTUNE_TEMPLATES to its folder. -rP shows what was found."""
    write_test_model_dir(tmp_path)
    plain = "{% for m in messages %}{{ m.content }}<|im_end|>{% endfor %}"
    templates = {"tool_use" if "tool_use" in path.name else "default": path.read_text(encoding="utf-8")}
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    try:
        chat_format = ChatFormat(tokenizer, {"default": plain} | templates, special_tokens={"eos_token": "<|im_end|>"})
    except WorkflowError as error:
        pytest.skip(f"does not work without more variables: {error}")
    problem = chat_format.call_problem
    print(f"{path.stem} | {chat_format.tool_call_format} | {'read back' if problem is None else problem.what}")
    assert problem is None or not any(word in problem.fix for word in ("'auto'", chat_format.tool_call_format + ","))


def test_the_config_names_every_format():
    assert get_args(ModelConfig.model_fields["tool_call_format"].annotation) == ("auto", *FORMATS)

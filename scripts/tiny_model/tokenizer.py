"""The tokenizer of the tiny model: byte-level BPE that cuts text as Qwen's does, every digit a token of its own.

It knows Qwen's special tokens by the same names. The sentences that Qwen's chat template writes around tools, and
the braces around a call of the calculator, are single tokens: a prompt of the demo has about 80 tokens in place of
250, which is most of what training on a CPU costs. Any text can be written: all 256 bytes are in the vocabulary.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

HERE = Path(__file__).parent
VOCABULARY = 1024
PAD, START, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
TAGS = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
PHRASES = (
    "# Tools\n\nYou may call one or more functions to assist with the user query.\n\nYou are provided with function"
    " signatures within <tools></tools> XML tags:\n<tools>",
    "</tools>\n\nFor each function call, return a json object with function name and arguments within <tool_call>"
    '</tool_call> XML tags:\n<tool_call>\n{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call>',
    '{"type": "function", "function": {"name": "',
    '", "description": "',
    '", "parameters": {"properties": {"',
    '", "parameters": {"type": "object", "properties": {"',
    '": {"description": "',
    '": {"type": "string", "description": "',
    '", "type": "string"}}, "required": ["',
    '"}}, "required": ["',
    '"], "type": "object"}}}',
    '"], "type": "object"}, "description": "',
    '\n{"name": "calculator", "arguments": {"expression": "',
    '"}}\n',
    "The answer is ",
)
FREQUENT = (
    "system user assistant tool calculator expression number The answer is Evaluate arithmetic. for example"
    " Use the calculator. End with: The answer is N. (2 + 3) * 4 / 5 - 6"
)
"""Words of the agent format, counted often so that each becomes one token."""
QWEN_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def train_tokenizer(texts: Iterable[str]) -> Tokenizer:
    """A tokenizer of exactly `VOCABULARY` tokens, trained on the texts and on general English."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(QWEN_SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    added = 3 + len(TAGS) + len(PHRASES)
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - added,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    english = (HERE / "english.txt").read_text(encoding="utf-8").splitlines()
    frequent = [FREQUENT, *FREQUENT.split()]
    tokenizer.train_from_iterator([*texts, *english * 10, *frequent * 1000], trainer)
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in (PAD, START, END)])
    tokenizer.add_tokens([AddedToken(t, normalized=False) for t in (*TAGS, *PHRASES)])
    if tokenizer.get_vocab_size() != VOCABULARY:
        raise ValueError(f"the texts gave {tokenizer.get_vocab_size()} tokens in place of {VOCABULARY}")
    return tokenizer


def save_tokenizer(tokenizer: Tokenizer, folder: Path, context_length: int) -> None:
    """Write the files from which `AutoTokenizer.from_pretrained(folder)` loads."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": context_length,
        "eos_token": END,
        "pad_token": PAD,
        "clean_up_tokenization_spaces": False,
        "model_input_names": ["input_ids", "attention_mask"],
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    template = (HERE / "chat_template.jinja").read_text(encoding="utf-8")
    (folder / "chat_template.jinja").write_text(template, encoding="utf-8")

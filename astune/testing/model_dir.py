"""A small model folder without weights: byte-level BPE tokenizer and a chat template that writes as Qwen3's does."""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MARKUP_TOKENS = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
"""Single tokens that are not special, as in Qwen3's vocabulary."""

CHAT_TEMPLATE = r"""
{%- macro system(text) %}{{ '<|im_start|>system\n' + text + '<|im_end|>\n' }}{% endmacro %}
{%- set first = messages[0].content if messages[0].role == 'system' else '' %}
{%- if tools %}
    {%- set ns = namespace(text=(first + '\n\n' if first else '') + '# Tools\n\nYou may call one or more functions to assist with the user query.\n\n<tools>') %}
    {%- for tool in tools %}
        {%- set ns.text = ns.text + '\n' + (tool | tojson) %}
    {%- endfor %}
    {{- system(ns.text + '\n</tools>\n\nFor each function call, return a json object with function name and arguments within <tool_call></tool_call> XML tags:\n<tool_call>\n{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call>') }}
{%- elif first %}
    {{- system(first) }}
{%- endif %}
{%- set last = namespace(user=-1) %}
{%- for message in messages %}
    {%- if message.role == 'user' %}{% set last.user = loop.index0 %}{% endif %}
{%- endfor %}
{%- for message in messages %}
    {%- set content = message.content or '' %}
    {%- if message.role == 'user' or (message.role == 'system' and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\n' + content + '<|im_end|>\n' }}
    {%- elif message.role == 'assistant' %}
        {{- '<|im_start|>assistant\n' }}
        {%- if message.reasoning_content and loop.index0 > last.user %}
            {{- '<think>\n' + message.reasoning_content.strip('\n') + '\n</think>\n\n' }}
        {%- endif %}
        {{- content }}
        {%- for call in message.tool_calls or [] %}
            {{- ('\n' if content or not loop.first else '') + '<tool_call>\n{"name": "' + call.function.name + '", "arguments": ' }}
            {{- (call.function.arguments if call.function.arguments is string else call.function.arguments | tojson) + '}\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\n' }}
    {%- elif message.role == 'tool' %}
        {%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{ '<|im_start|>user' }}{% endif %}
        {{- '\n<tool_response>\n' + content + '\n</tool_response>' }}
        {%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{ '<|im_end|>\n' }}{% endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
    {%- if enable_thinking is defined and not enable_thinking %}{{ '<think>\n\n</think>\n\n' }}{% endif %}
{%- endif %}
""".lstrip()  # noqa: E501
"""Tools, reasoning and tool results as Qwen3 writes them; reasoning before the last user message is dropped."""

_CORPUS = (
    "You are a helpful assistant. The user asks a question and the assistant answers it with one number.",
    'system user assistant tool {"type": "function", "function": {"name": "calculate", "parameters": {}}}',
    "For each function call, return a json object with function name and arguments: the answer is 42.",
)


def write_test_model_dir(path: Path, *, context_length: int = 4096) -> Path:
    """Write the folder (made if it does not exist, the same bytes every time) and return it."""
    path.mkdir(parents=True, exist_ok=True)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        show_progress=False,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    )
    tokenizer.train_from_iterator(_CORPUS, trainer)
    tokenizer.add_tokens([AddedToken(text, normalized=False, special=False) for text in MARKUP_TOKENS])
    tokenizer.save(str(path / "tokenizer.json"))
    ids = {text: tokenizer.token_to_id(text) for text in SPECIAL_TOKENS}
    files = {
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": "<|im_end|>",
            "pad_token": "<|endoftext|>",
            "model_max_length": context_length,
        },
        "generation_config.json": {"eos_token_id": [ids["<|im_end|>"], ids["<|endoftext|>"]]},
        "config.json": {
            "model_type": "qwen3",
            "vocab_size": tokenizer.get_vocab_size(),
            "max_position_embeddings": context_length,
        },
    }
    for name, value in files.items():
        (path / name).write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
    (path / "chat_template.jinja").write_text(CHAT_TEMPLATE, encoding="utf-8")
    return path

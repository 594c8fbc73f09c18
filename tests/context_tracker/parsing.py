"""Sampled ids, taken apart as the tracker does."""

from collections.abc import Mapping, Sequence
from typing import Any

from astune.context_tracker.prompt.chat_format import ChatFormat
from astune.context_tracker.prompt.tool_calls import ParsedMessage


def parse(
    chat_format: ChatFormat,
    output_ids: Sequence[int],
    tools: Sequence[Mapping[str, Any]] | None = None,
    answer_start: str = "",
    *,
    prompt: str | None = None,
) -> ParsedMessage:
    """`ChatFormat.parse_text` of an answer that was made to begin with `answer_start`; its stop token is dropped."""
    ended = bool(output_ids) and output_ids[-1] in chat_format.stop_token_ids
    text = chat_format.decode(output_ids[:-1] if ended else output_ids)
    return chat_format.parse_text(answer_start + text, tools, prompt=prompt)

"""Models that write no tool calls, or write them in a way that is not known here."""

from __future__ import annotations

from astune.context_tracker.prompt.answer_formats.base import TextFormat
from astune.context_tracker.prompt.tool_calls import Tools, WrittenCall
from astune.errors import WorkflowError


class Plain(TextFormat):
    """No call is read."""

    name = "none"

    def is_taught_by(self, template: str) -> bool:
        return False

    def split_calls(self, text: str, tools: Tools) -> tuple[str, tuple[WrittenCall, ...]]:
        return text, ()

    def call_start(self, tool: str | None) -> str:
        raise WorkflowError(
            "the model cannot be made to call a tool: how it writes calls is not known. Set "
            "astune.model.tool_call_format if its answers follow one of the known formats"
        )

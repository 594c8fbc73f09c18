"""Find out by trying in what shape a chat template takes an assistant message that calls tools.

Templates differ in what they take, and writing the wrong thing does not always fail: GLM's writes "None" for a
content that is none, DeepSeek's adds the arguments to a string.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from astune.context_tracker.prompt.messages import Message
from astune.errors import WorkflowError

_QUESTION, _NAME, _VALUE = "QUESTION-PROBE", "call_probe", "VALUE-PROBE"
_TOOL = {
    "type": "function",
    "function": {
        "name": "probe",
        "description": "Probe.",
        "parameters": {"type": "object", "properties": {"x": {"type": "string", "description": "Probe."}}},
    },
}
_CALL = {"id": "probe0000", "type": "function", "function": {"name": _NAME, "arguments": {"x": _VALUE}}}
_EXCHANGE: tuple[dict[str, Any], ...] = (
    {"role": "user", "content": _QUESTION},
    {"role": "assistant", "content": None, "tool_calls": [_CALL]},
)


@dataclass(frozen=True)
class CallStyle:
    """`arguments_as_text`: JSON text, not an object. `empty_content`: no content is "", not None."""

    arguments_as_text: bool = False
    empty_content: bool = False

    def apply(self, prepared: Message, sent: Message) -> Message:
        """`prepared`, which `messages.for_template` made of `sent`, in this style. Text stays as it was sent."""
        if not prepared.get("tool_calls"):
            return prepared
        content = prepared["content"]
        return {
            **prepared,
            "content": "" if content is None and self.empty_content else content,
            "tool_calls": [_with_text(call) for call in sent["tool_calls"]]
            if self.arguments_as_text
            else prepared["tool_calls"],
        }


def find_call_style(render: Callable[[Sequence[Message], Sequence[Message]], str]) -> CallStyle:
    """The first style in which the template writes a call's name and arguments, and no "None".

    A template that does so in no style cannot write calls; it is given the first.
    """
    styles = [CallStyle(text, empty) for text in (False, True) for empty in (False, True)]
    return next((style for style in styles if _writes_calls(render, style)), styles[0])


def _writes_calls(render: Callable[[Sequence[Message], Sequence[Message]], str], style: CallStyle) -> bool:
    try:
        written = render([style.apply(message, message) for message in _EXCHANGE], [_TOOL]).rpartition(_QUESTION)[2]
    except WorkflowError:
        return False
    return _NAME in written and _VALUE in written and "None" not in written


def _with_text(call: Message) -> Message:
    function = call["function"]
    arguments = function.get("arguments")
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return {**call, "function": {**function, "arguments": text}}

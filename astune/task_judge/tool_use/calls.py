"""Read the tool calls of an episode, and whether each succeeded, from its messages.

AgentScope hands the model the text of a tool's result and nothing else, so whether a call failed is read from the text
(`says_error`): what 1.x and 2.x write of tools that are not there, of arguments that do not fit and of calls that were
interrupted, what 1.x ("Error: ...") and MCP write of a tool that raised, a traceback, or a JSON object that says so
itself. AgentScope 2.x hands on nothing but the exception's own words where a tool raised: those of
`ValueError("no such city")` look like a result, unless the tool writes "Error" before them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from astune.types import Turn

NOT_THE_AGENTS = ("retried", "frozen")
"""Turns that do not count (`Turn.excluded`): answers that the agent never went on from, and simulated users."""

_ERROR = re.compile(
    r"\s*(?:[\w.]*(?:Error|Exception)\b"  # "Error: ...", "Error occurred ...", "FunctionNotFoundError: ..."
    r"|error\s*:"
    r"|Arguments Validation Error:"
    r"|Input validation failed for tool '"
    r"|Traceback \(most recent call last\)"
    r"|<system-reminder>The tool call has been interrupted)"
)
_BAD_STATES = ("error", "failed", "failure", "denied", "interrupted")


@dataclass(frozen=True)
class CheckedCall:
    """A tool call that an agent made: whether the tool could take it, and whether it failed."""

    name: str
    arguments: Mapping[str, Any]
    """Empty where they are no JSON object."""
    valid: bool
    """True if the tool was offered, and could take the arguments: an object with all that its schema requires."""
    failed: bool
    """True if the result says so. A call whose result no model saw ended the episode: it did not fail."""


def turns_of_agents(turns: Iterable[Turn]) -> list[Turn]:
    """The turns that are the policy's own work."""
    return [turn for turn in turns if turn.excluded not in NOT_THE_AGENTS]


def tool_calls(turns: Iterable[Turn]) -> list[CheckedCall]:
    """All calls in the order in which they were made; those of one answer in the order in which it lists them."""
    made = turns_of_agents(turns)
    results = {
        (turn.agent, message.get("tool_call_id")): _join_content(message.get("content"))
        for turn in made
        for message in turn.messages
        if message.get("role") == "tool"
    }
    return [
        _check_call(turn, call, results.get((turn.agent, call.get("id"))))
        for turn in made
        for call in turn.response.get("tool_calls") or ()
    ]


def _check_call(turn: Turn, call: Mapping[str, Any], result: str | None) -> CheckedCall:
    name = call["function"]["name"]
    offered = {tool["function"]["name"]: tool["function"] for tool in turn.tools}
    try:
        arguments = json.loads(call["function"].get("arguments") or "{}")
    except (ValueError, RecursionError):
        arguments = None
    valid = name in offered and can_take(offered[name], arguments)
    failed = result is not None and says_error(result)
    return CheckedCall(name, arguments if isinstance(arguments, dict) else {}, valid, failed)


def can_take(function: Mapping[str, Any], arguments: object) -> bool:
    """True if the arguments are an object with all that the function's schema requires."""
    required = (function.get("parameters") or {}).get("required") or ()
    return isinstance(arguments, dict) and set(required) <= set(arguments)


def says_error(result: str) -> bool:
    """True if a tool's result says that the call failed.

    >>> says_error("Error: no such city"), says_error('{"error": "no such city"}'), says_error("Errors: 0")
    (True, True, False)
    """
    if _ERROR.match(result):
        return True
    try:
        value = json.loads(result)
    except (ValueError, RecursionError):
        return False
    if not isinstance(value, dict):
        return False
    states = [str(value.get(name)).casefold() for name in ("state", "status")]
    flags = [bool(value.get(name)) for name in ("error", "is_error", "isError")]
    return any(flags) or value.get("success") is False or any(state in _BAD_STATES for state in states)


def _join_content(content: Any) -> str:
    """A message's content, a text or OpenAI's list of parts, as text."""
    if isinstance(content, Sequence) and not isinstance(content, str):
        return "".join(str(part.get("text", "")) for part in content)
    return "" if content is None else str(content)

"""An episode's tool calls: counted, with those that failed, and checked, whether each has its result.

A call has failed as the agent's framework reports its result, else as the text of the result says. Models are shown a
history whose calls and results do not fit all the same, and learn from it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from astune.context_tracker.prompt.messages import show_content
from astune.types import UNKNOWN_TOOL, ToolUse

_ERROR = re.compile(
    r"""\W*                                             # "[", "> ", "**"
    (
        ((an?|i\sencountered\san|encountered)\s)?(\w+\s){0,2}error(\scode)?\s?
            ([]:!()*.]|$|\d|(occurred|executing|calling|running|invoking|while|when|using|during|from|in\stool)\b)
        | [\w.]*(Error|Exception|Exit|Timeout|Interrupt)(\[\w+\])?\s?[:(]   # what Python writes of an exception
        | Traceback\s\(most\srecent
        | ((tool|call|request|execution)\s){1,3}failed\b | failed(:|\sto\b)
    )""",
    re.VERBOSE | re.IGNORECASE,
)
_ERROR_KEYS = ("error", "errors", "exception")
_LONGEST_JSON = 10_000
"""Characters of a result that is read as JSON: one that says what went wrong is short."""


def says_it_failed(text: str) -> bool:
    """Tell whether the result of a tool call begins as agents and their frameworks write of a call that went wrong, or
    is a JSON object that says so. Of a failure that is told in other words nobody can know.

    >>> [says_it_failed(text) for text in ("Error: no network", "KeyError('price')", '{"error": "no such city"}')]
    [True, True, True]
    >>> [says_it_failed(text) for text in ("84", "Errors are part of life", '{"error": null, "result": 84}')]
    [False, False, False]
    """
    text = text.strip()
    if not text.startswith("{"):
        return _ERROR.match(text[:200].partition("\n")[0]) is not None
    if len(text) > _LONGEST_JSON:
        return False
    try:
        found = json.loads(text)
    except ValueError:
        return False
    if any(found.get(key) for key in _ERROR_KEYS) or found.get("isError") is True or found.get("is_error") is True:
        return True
    return found.get("status") in ("error", "failed") or found.get("success") is False or found.get("ok") is False


class ToolLog:
    """Counts each result once, however often an agent sends it along with its history."""

    def __init__(self) -> None:
        self._seen: set[str] = set()
        self._offered: set[str] = set()
        self._called: dict[str, str] = {}
        """The tools of calls without a result yet, by the id of the call."""
        self._uses: dict[str, ToolUse] = {}

    def add_offered(self, names: Iterable[str]) -> None:
        self._offered.update(names)

    def add_calls(self, message: Mapping[str, Any]) -> None:
        """A model's answer, in OpenAI's shape, which may call tools."""
        self._called |= {call["id"]: call["function"]["name"] for call in message.get("tool_calls") or ()}

    def add_request(self, messages: Sequence[Mapping[str, Any]], tools: Iterable[Mapping[str, Any]]) -> None:
        """Count the results among the messages of an agent's request, in OpenAI's shape. Their text alone says how each
        call went."""
        self._offered.update(tool["function"]["name"] for tool in tools)
        for message in reversed(messages):
            if not self._called:
                return
            if message.get("role") == "tool" and (name := self._called.get(str(message.get("tool_call_id")))):
                text = show_content(message)
                self.add_result(str(message["tool_call_id"]), name, text if says_it_failed(text) else None)

    def add_result(self, call_id: str, name: str, error: str | None) -> None:
        """The result of call `call_id` of the tool `name`; `error` is what went wrong, None if nothing did."""
        self._called.pop(call_id, None)
        if call_id in self._seen:
            return
        self._seen.add(call_id)
        name = name if name in self._offered else UNKNOWN_TOOL
        before = self._uses.get(name, ToolUse())
        message = before.message or (error or "")
        self._uses[name] = ToolUse(before.calls + 1, before.errors + (error is not None), message)

    @property
    def metrics(self) -> dict[str, float]:
        """`tool_calls` of an episode that was offered tools, also where it called none; nothing where it was offered
        none."""
        return {"tool_calls": float(sum(use.calls for use in self._uses.values()))} if self._offered else {}

    @property
    def uses(self) -> Mapping[str, ToolUse]:
        return dict(self._uses)


UNKNOWN_CALL = "tool result without a call"
UNANSWERED = "tool call without a result"
TWICE = "tool call id used twice"


def find_broken_history(messages: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    """Yield the kind of each problem, and a clause that says where it is.

    A call is answered by a result after it and before the next answer of the assistant.
    """
    known: dict[Any, int] = {}
    waiting: dict[Any, int] = {}
    for index, message in enumerate(messages):
        if message.get("role") == "assistant":
            yield from _find_unanswered(waiting)
            waiting = {}
            for call in message.get("tool_calls") or ():
                if call.get("id") in known:
                    yield (
                        TWICE,
                        f"messages[{index}] has a call with the id {call.get('id')!r:.100}, as has "
                        + (f"messages[{known[call.get('id')]}]"),
                    )
                known[call.get("id")] = waiting[call.get("id")] = index
        elif message.get("role") == "tool":
            answered = message.get("tool_call_id")
            if answered is None:
                yield UNKNOWN_CALL, f"messages[{index}] is a tool result without a tool_call_id"
            elif answered not in known:
                yield UNKNOWN_CALL, f"messages[{index}] is the result of a call {answered!r:.100} that nobody made"
            waiting.pop(answered, None)
    yield from _find_unanswered(waiting)


def _find_unanswered(waiting: Mapping[Any, int]) -> Iterator[tuple[str, str]]:
    for call_id, index in waiting.items():
        yield UNANSWERED, f"the call {call_id!r:.100} of messages[{index}] has no result"

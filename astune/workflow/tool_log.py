"""An episode's tool calls: counted, with those that failed and why, and checked, whether each has its result.

A call has failed as `tuner.tools` or the agent's framework reports its result, else as the text of the result says.
Models are shown a history whose calls and results do not fit all the same, and learn from it.
"""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from astune.context_tracker.prompt.messages import show_content
from astune.errors import ToolServerError
from astune.task_judge.tool_use.calls import can_take
from astune.tools.results import ToolResult, read_cause
from astune.types import UNKNOWN_TOOL, ToolCause, ToolUse, Turn

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
    """Counts each result once, however often an agent sends it along with its history. A call with one of the causes
    `ends` ends the episode: the error is added to `failures`, and `check` raises it."""

    def __init__(self, ends: frozenset[ToolCause] = frozenset(), failures: list[Exception] | None = None) -> None:
        self.sandbox_failures: Sequence[Exception] = ()
        """Errors of the episode's sandbox itself, a list that grows: from then on it is why calls fail."""
        self._ends, self._failures = ends, failures
        self._ended: ToolServerError | None = None
        self._seen: set[str] = set()
        self._offered: dict[str, Mapping[str, Any]] = {}
        self._called: dict[str, Mapping[str, Any]] = {}
        """The functions, with arguments, of calls without a result yet, by the id of the call."""
        self._made: set[tuple[str, str]] = set()
        """Names and arguments of calls that have their result."""
        self._reported: dict[str, deque[ToolUse]] = {}
        """What `tuner.tools` said of calls whose result no model was shown yet, by the name of the tool."""
        self._causes: dict[str, Collection[ToolCause]] = {}
        """By the id of the call."""
        self._uses: dict[str, ToolUse] = {}

    def add_offered(self, tools: Iterable[Mapping[str, Any]]) -> None:
        """Tools that a model is offered, in OpenAI's shape."""
        self._offered.update((tool["function"]["name"], tool["function"]) for tool in tools)

    def add_calls(self, message: Mapping[str, Any]) -> None:
        """A model's answer, in OpenAI's shape, which may call tools."""
        self._called |= {call["id"]: call["function"] for call in message.get("tool_calls") or ()}

    def add_unread(self, tool_call: str) -> None:
        """An answer that the agent gets as text, though it has marks of a call: malformed, of nobody knows which."""
        self._end_by(UNKNOWN_TOOL, ToolUse(message=f"no call could be read: {tool_call:.200}", causes={"malformed": 1}))

    def add_request(self, messages: Sequence[Mapping[str, Any]], tools: Iterable[Mapping[str, Any]]) -> None:
        """Count the results among the messages of an agent's request, in OpenAI's shape. Their text alone says how each
        call went."""
        self.add_offered(tools)
        for message in reversed(messages):
            if not self._called:
                return
            if message.get("role") == "tool" and (function := self._called.get(str(message.get("tool_call_id")))):
                text = show_content(message)
                self.add_result(str(message["tool_call_id"]), function["name"], text if says_it_failed(text) else None)

    def add_result(self, call_id: str, name: str, error: str | None) -> None:
        """The result of call `call_id` of the tool `name`; `error` is what went wrong, None if nothing did."""
        function = self._called.pop(call_id, None)
        if call_id in self._seen:
            return
        self._seen.add(call_id)
        offered = self._offered.get(name)
        cause: ToolCause | None = "unknown" if offered is None else None
        repeated, arguments = False, None
        if function is not None:
            arguments = _read_arguments(function)
            made = name, json.dumps(arguments, sort_keys=True)
            repeated = made in self._made
            self._made.add(made)
        if error is not None and offered is not None:
            cause = self.find_cause(None if function is None else offered, arguments, error)
        name = UNKNOWN_TOOL if offered is None else name
        waiting = self._reported.get(name)
        if waiting and (cause != "malformed" or cause in waiting[0].causes):  # a framework may stop such a call itself
            known = waiting.popleft()
        else:
            known = ToolUse(1, int(error is not None), error or "", {} if cause is None else {cause: 1})
        if repeated:
            known = known + ToolUse(causes={"repeated": 1})
        self._causes[call_id] = known.causes.keys()
        self._uses[name] = self._uses.get(name, ToolUse()) + known
        self._end_by(name, known)

    def report(self, name: str, result: ToolResult) -> None:
        """The result of a call that `tuner.tools` made, before any model is shown it."""
        causes = {cause: 1 for cause in (result.cause, "cut_short" if result.cut_short else None) if cause is not None}
        use = ToolUse(1, int(result.cause is not None), (result.detail or result.text) if result.cause else "", causes)
        name = UNKNOWN_TOOL if result.cause == "unknown" else name
        self._reported.setdefault(name, deque()).append(use)
        self._end_by(name, use)

    def find_cause(self, definition: Mapping[str, Any] | None, arguments: object, error: str) -> ToolCause:
        """Why a call of an offered tool failed; without a definition, so far as the error tells."""
        if self.sandbox_failures:
            return "sandbox"
        fits = definition is None or can_take(definition, arguments)
        return read_cause(error) if fits else "malformed"

    def check(self) -> None:
        """Raises ToolServerError if a call has ended the episode."""
        if self._ended is not None:
            raise self._ended

    def turns_with(self, causes: frozenset[ToolCause], turns: Sequence[Turn]) -> frozenset[int]:
        """The numbers of the turns with a call that has one of the causes. One that could not be read is malformed."""
        found = {call_id for call_id, of_call in self._causes.items() if not causes.isdisjoint(of_call)}
        return frozenset(
            number
            for number, turn in enumerate(turns)
            if ("malformed" in causes and turn.unread)
            or any(call.get("id") in found for call in turn.response.get("tool_calls") or ())
        )

    def _end_by(self, name: str, use: ToolUse) -> None:
        ending = next((cause for cause in use.causes if cause in self._ends), None)
        if ending is not None and self._ended is None:
            key = f"astune.tools.on_failure.{ending}"
            self._ended = ToolServerError(f"{name}: {use.message or ending} ({key}: end)")
            if self._failures is not None:
                self._failures.append(self._ended)

    @property
    def metrics(self) -> dict[str, float]:
        """`tool_calls` of an episode that was offered tools, also where it called none; nothing where it was offered
        none."""
        return {"tool_calls": float(sum(use.calls for use in self.uses.values()))} if self._offered else {}

    @property
    def uses(self) -> Mapping[str, ToolUse]:
        uses = dict(self._uses)
        for name, waiting in self._reported.items():
            for use in waiting:
                uses[name] = uses.get(name, ToolUse()) + use
        return uses


def _read_arguments(function: Mapping[str, Any]) -> object:
    """The arguments of a call, None where they are no JSON."""
    try:
        return json.loads(function.get("arguments") or "{}")
    except (ValueError, RecursionError):
        return None


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

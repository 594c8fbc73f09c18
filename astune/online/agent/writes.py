"""Decisions on tool calls in a shadow run: a tool that writes must not run twice."""

from __future__ import annotations

import functools
import json
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from astune.errors import OnlineError

Decision = Literal["ran", "recorded", "sandbox", "refused"]
DECISIONS: tuple[Decision, ...] = ("ran", "recorded", "sandbox", "refused")
POLICIES = ("recorded", "refuse")
REFUSAL = (
    "The call of {name} was not made: it changes things, and this is a trial run in which nothing may be changed. "
    "Go on without its result."
)
_MARKER = "__astune_read_only__"

_Function = TypeVar("_Function", bound=Callable[..., Any])


def read_only(function: _Function) -> _Function:
    """Mark a tool that changes nothing, so that shadow runs may call it.

    @read_only
    def search(query: str) -> str: ...
    """
    setattr(function, _MARKER, True)
    return function


def is_read_only(function: Any) -> bool:
    """True if `function` is marked, also as a method, in a `functools.partial` or behind `functools.wraps`."""
    while isinstance(function, functools.partial):
        function = function.func
    return getattr(function, _MARKER, False) is True


@dataclass(frozen=True)
class RecordedTool:
    """A tool call of the production run and its result, in the agent framework's own shape."""

    name: str
    arguments: Any
    """A mapping, or the JSON text of one."""
    result: Any


@dataclass(frozen=True)
class ToolDecision:
    """The decision on a tool call in a shadow run."""

    name: str
    arguments: Any
    decision: Decision
    result: Any = None
    """The result in the production run, if the decision is `recorded`."""


def check_policy(writes: object) -> None:
    """Raises OnlineError for a text that is no policy. Anything but a text is a sandbox."""
    if isinstance(writes, str) and writes not in POLICIES:
        raise OnlineError(f"writes={writes!r}; expected 'recorded', 'refuse', or a sandbox: tools by name")


class WriteGuard:
    """Decides for each tool call of one shadow run.

    A tool that only reads runs. One that may write runs in the sandbox, if there is one that has it; with "recorded"
    it is answered with what the production run got for the same name and arguments, the first call with its first
    result, the second with its second; anything else is refused. It may be asked from several threads.
    """

    def __init__(self, writes: object, read_only: Collection[str], recorded: Iterable[RecordedTool]) -> None:
        self.sandbox: Any = None if isinstance(writes, str) else sandbox_of(writes)
        self.read_only = frozenset(read_only)
        self._recorded: dict[tuple[str, str], deque[Any]] = {}
        for call in recorded if writes == "recorded" else ():
            key = call.name, same_arguments(call.arguments)
            self._recorded.setdefault(key, deque()).append(call.result)
        self._lock = threading.Lock()
        self.uses: list[ToolDecision] = []

    def decide(self, name: str, arguments: Any, *, reads: bool, in_sandbox: bool = False) -> ToolDecision:
        """Decide on a call and keep the decision. `reads`: the tool is marked; `in_sandbox`: the sandbox has it."""
        with self._lock:
            use = self._choose(name, arguments, reads or name in self.read_only, in_sandbox)
            self.uses.append(use)
        return use

    def _choose(self, name: str, arguments: Any, reads: bool, in_sandbox: bool) -> ToolDecision:
        if reads:
            return ToolDecision(name, arguments, "ran")
        if in_sandbox:
            return ToolDecision(name, arguments, "sandbox")
        results = self._recorded.get((name, same_arguments(arguments)))
        if results:
            return ToolDecision(name, arguments, "recorded", results.popleft())
        return ToolDecision(name, arguments, "refused")


def sandbox_of(writes: object) -> Any:
    """The tools to call; a function makes new ones for every run."""
    return writes() if callable(writes) else writes


def same_arguments(arguments: Any) -> str:
    """A text that is equal for equal arguments: the order of keys does not count, and 3 equals 3.0.

    >>> same_arguments('{"b": 1, "a": [2]}') == same_arguments({"a": [2.0], "b": 1})
    True
    """
    if isinstance(arguments, str):
        try:
            return same_arguments(dict(json.loads(arguments or "{}")))
        except (ValueError, TypeError):
            return arguments
    return json.dumps(_same_numbers(arguments), sort_keys=True, default=repr)


def _same_numbers(value: Any) -> Any:
    """The value with integers in place of whole floats."""
    if isinstance(value, Mapping):
        return {str(key): _same_numbers(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_same_numbers(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value

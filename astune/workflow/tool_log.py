"""Count an episode's tool calls and those that failed, as the agent's framework reports each result."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from astune.types import ToolUse

UNKNOWN = "(no such tool)"
"""Stands for tools that a model calls and nobody offered: their names are the model's, and without end."""


class ToolLog:
    """Counts each result once, however often an agent sends it along with its history."""

    def __init__(self) -> None:
        self._seen: set[str] = set()
        self._offered: set[str] = set()
        self._uses: dict[str, ToolUse] = {}

    def offered(self, names: Iterable[str]) -> None:
        self._offered.update(names)

    def result(self, call_id: str, name: str, error: str | None) -> None:
        """The result of call `call_id` of the tool `name`; `error` is what went wrong, None if nothing did."""
        if call_id in self._seen:
            return
        self._seen.add(call_id)
        name = name if name in self._offered else UNKNOWN
        before = self._uses.get(name, ToolUse())
        message = before.message or (error or "")
        self._uses[name] = ToolUse(before.calls + 1, before.errors + (error is not None), message)

    @property
    def uses(self) -> Mapping[str, ToolUse]:
        return dict(self._uses)

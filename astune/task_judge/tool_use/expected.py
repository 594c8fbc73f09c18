"""Read the tool calls that a task expects, and find the calls of an episode that serve them.

{"query": "...", "expected_tools": ["search", {"name": "book", "arguments": {"flight": "LX 18"}}]}

`"expected_tools_ordered": true` beside it says that their order matters, `"expected_steps": 4` how many model calls the
task takes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from astune.errors import JudgeError, nearest
from astune.task_judge.tool_use.calls import CheckedCall
from astune.types import Task

FIELD, ORDERED, STEPS = "expected_tools", "expected_tools_ordered", "expected_steps"
KEYS = ("name", "arguments")


@dataclass(frozen=True)
class Expected:
    """A tool call that a task expects. `arguments=None`: any will do."""

    name: str
    arguments: Mapping[str, Any] | None = None

    def is_right(self, call: CheckedCall) -> bool:
        """The right tool with the right arguments, no more and no fewer."""
        return self.is_tool(call) and (self.arguments is None or same_json(self.arguments, call.arguments))

    def is_tool(self, call: CheckedCall) -> bool:
        return call.valid and call.name == self.name


def read_expected_tools(task: Task) -> tuple[Expected, ...] | None:
    """The calls that the task expects; None if it does not say. Raises `JudgeError` for anything but a list of
    names and of {name, arguments}."""
    listed = task.metadata.get(FIELD)
    if listed is None:
        return None
    if not isinstance(listed, Sequence) or isinstance(listed, str):
        raise JudgeError(f"task {task.task_id!r}: {FIELD} must be a list, found {listed!r:.80}")
    return tuple(_read_expected(task, f"{FIELD}[{number}]", entry) for number, entry in enumerate(listed))


def _read_expected(task: Task, place: str, entry: Any) -> Expected:
    if isinstance(entry, str) and entry:
        return Expected(entry)
    if not isinstance(entry, Mapping):
        raise JudgeError(f"task {task.task_id!r}: {place} must be a name or {{name, arguments}}, found {entry!r:.80}")
    for key in entry:
        if key not in KEYS:
            raise JudgeError(
                f"task {task.task_id!r}: {place} has an unknown key {key!r}.{nearest(str(key), KEYS)} "
                f"Expected: {', '.join(KEYS)}"
            )
    name, arguments = entry.get("name"), entry.get("arguments")
    if not isinstance(name, str) or not name:
        raise JudgeError(f"task {task.task_id!r}: {place}.name must be the name of a tool, found {name!r:.80}")
    if arguments is not None and not isinstance(arguments, Mapping):
        raise JudgeError(f"task {task.task_id!r}: {place}.arguments must be an object, found {arguments!r:.80}")
    return Expected(name, arguments)


def order_matters(task: Task) -> bool:
    """True if calls must come in the order in which the task expects them. Raises `JudgeError` for no truth value."""
    ordered = task.metadata.get(ORDERED)
    if ordered is not None and not isinstance(ordered, bool):
        raise JudgeError(f"task {task.task_id!r}: {ORDERED} must be true or false, found {ordered!r:.80}")
    return bool(ordered)


def read_expected_steps(task: Task, expected: Sequence[Expected] | None) -> int:
    """Model calls that the task takes: as many as it says, else one for each expected call and one for the answer; just
    that one where it says neither. Raises `JudgeError` for no whole number from 1 on."""
    steps = task.metadata.get(STEPS)
    if steps is None:
        return len(expected or ()) + 1
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
        raise JudgeError(f"task {task.task_id!r}: {STEPS} must be a whole number from 1 on, found {steps!r:.80}")
    return steps


def same_json(left: Any, right: Any) -> bool:
    """Equality of JSON values: 3 is 3.0 but not true, and space around a text does not matter.

    >>> same_json({"days": 3, "city": "Bern"}, {"city": " Bern ", "days": 3.0}), same_json(1, True)
    (True, False)
    """
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    if isinstance(left, str) and isinstance(right, str):
        return left.strip() == right.strip()
    if isinstance(left, Mapping) and isinstance(right, Mapping):
        return left.keys() == right.keys() and all(same_json(value, right[key]) for key, value in left.items())
    if isinstance(left, list | tuple) and isinstance(right, list | tuple):
        return len(left) == len(right) and all(map(same_json, left, right))
    return bool(left == right)


def serve(expected: Sequence[Expected], calls: Sequence[CheckedCall], ordered: bool) -> dict[int, int]:
    """For each expectation (by its number) the call that serves it, a call at most one; those that nothing serves are
    left out. As many as can be are served, as many of them as can be with the right arguments. A call that repeats
    another one serves nothing but an expectation of just these arguments: saying it twice is no second call.

    >>> serve([Expected("b"), Expected("a", {"x": 1})], [CheckedCall("a", {"x": 1}, True, False)], ordered=False)
    {1: 0}
    """
    return _in_order(expected, calls) if ordered else _in_any_order(expected, calls)


def _in_any_order(expected: Sequence[Expected], calls: Sequence[CheckedCall]) -> dict[int, int]:
    """Serves first those whose arguments are given and right, then where any will do, then by name; calls that
    succeeded come before those that failed. No choice can spoil another: right arguments are equal arguments."""
    order = sorted(range(len(calls)), key=lambda number: calls[number].failed)
    exact = [number for number, one in enumerate(expected) if one.arguments is not None]
    served: dict[int, int] = {}
    for one in exact:
        right = (call for call in order if call not in served.values() and expected[one].is_right(calls[call]))
        if (call := next(right, None)) is not None:
            served[one] = call
    for one in sorted(range(len(expected)), key=exact.__contains__):
        new = (call for call in order if expected[one].is_tool(calls[call]) and _is_new(call, calls, served))
        if one not in served and (call := next(new, None)) is not None:
            served[one] = call
    return served


def _is_new(call: int, calls: Sequence[CheckedCall], served: Mapping[int, int]) -> bool:
    """True if neither this call nor one like it serves an expectation."""
    mine = calls[call]
    return not any(
        calls[other].name == mine.name and same_json(calls[other].arguments, mine.arguments)
        for other in served.values()
    )


_Best = tuple[tuple[int, int, int], tuple[tuple[int, int], ...]]


def _in_order(expected: Sequence[Expected], calls: Sequence[CheckedCall]) -> dict[int, int]:
    """The longest common subsequence; of equally long ones the one with more right arguments, then fewer failures."""
    nothing: _Best = ((0, 0, 0), ())
    below: list[_Best] = [nothing] * (len(calls) + 1)  # row `one` holds the best of expected[one:] and calls[call:]
    for one in reversed(range(len(expected))):
        row = [nothing] * (len(calls) + 1)
        for call in reversed(range(len(calls))):
            row[call] = max(below[call], row[call + 1], key=lambda best: best[0])
            if expected[one].is_tool(calls[call]):
                (tools, right, fine), pairs = below[call + 1]
                score = (tools + 1, right + expected[one].is_right(calls[call]), fine + (not calls[call].failed))
                row[call] = max(row[call], (score, ((one, call), *pairs)), key=lambda best: best[0])
        below = row
    served: dict[int, int] = {}
    for one, call in below[0][1]:
        exact = expected[one].arguments is not None and expected[one].is_right(calls[call])
        if exact or _is_new(call, calls, served):
            served[one] = call
    return served

"""`ToolUseJudge`: did the agent call the tools that the task expects, and get the answer right?

Read the tool calls that a task expects, and find the calls of an episode that serve them.

{"query": "...", "expected_tools": ["search", {"name": "book", "arguments": {"flight": "LX 18"}}]}

`"expected_tools_ordered": true` beside it says that their order matters, `"expected_steps": 4` how many model calls the
task takes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from astune.config.judges import TaskJudgeConfig
from astune.errors import JudgeError, nearest
from astune.task_judge.answer_text import answer_text
from astune.task_judge.math.final_answer import extract_answer
from astune.task_judge.math.judge import MathAnswerAsJudge
from astune.task_judge.tool_use.calls import CheckedCall, tool_calls, turns_of_agents
from astune.types import Episode, Task, Verdict

NAME = "ToolUseJudge"

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


@dataclass(frozen=True)
class _Part:
    """A part of the verdict: `shares` are worth their weights in `astune.task_judge.tool_use`, `figures` nothing."""

    shares: dict[str, float] = field(default_factory=dict)
    figures: dict[str, float] = field(default_factory=dict)
    right: bool = True
    reason: str = ""


class ToolUseJudge:
    """The reward is a sum of shares, each between 0 and 1, times the weights in `astune.task_judge.tool_use`:

        correct_tool    expected calls whose tool was called
        correct_args    expected calls that were made with the right arguments
        tool_success    calls that succeeded, of those that serve an expectation or failed
        invalid_tool    calls that no tool could take, of those and of those that serve an expectation
        correctness     1 for a right final answer (MathAnswerAsJudge)
        format_bonus    1 for a final answer that is marked as `astune.task_judge.answer_format` says
        steps_penalty   the one that is a number: model calls beyond one per expected call and one for the answer, or
                        beyond `expected_steps` of the task

    A task says what it expects in `expected_tools` (see above); the first three are left
    out where it does not, the two of the answer where it has no reference. Where it expects no tools, none is right.
    One more metric earns nothing: `recall`, the share of the expected calls whose tool was called, in whatever order;
    it is left out where none is expected.
    A call that nothing expects earns nothing, however often it is made, and none dilutes what another one costs.
    An episode has passed if every expected call was made with the right arguments, none was invalid, and the answer is
    right. Raises `JudgeError` for a task that says neither what it expects nor what is the answer.
    """

    def __init__(self, config: TaskJudgeConfig) -> None:
        self._config = config
        self._math = MathAnswerAsJudge(config)

    async def judge(self, task: Task, episode: Episode) -> Verdict:
        expected = read_expected_tools(task)
        if expected is None and not task.answer:
            raise JudgeError(f"task {task.task_id!r} has neither {FIELD} nor a reference answer to judge by")
        calls = tool_calls(episode.turns)
        parts = [_of_tools(expected, calls, expected is not None and order_matters(task))]
        if task.answer:
            parts.append(await self._of_answer(task, episode))
        steps = max(len(turns_of_agents(episode.turns)) - read_expected_steps(task, expected), 0)
        shares: dict[str, float] = {"steps_penalty": float(steps)}
        figures: dict[str, float] = {}
        for part in parts:
            shares |= part.shares
            figures |= part.figures
        weights = self._config.tool_use.model_dump()
        return Verdict(
            reward=math.fsum(weights[name] * share for name, share in shares.items()),
            passed=all(part.right for part in parts),
            reason="; ".join(part.reason for part in parts) + (f"; {steps} more steps than needed" if steps else ""),
            metrics=shares | figures,
            judged_by=NAME,
        )

    async def _of_answer(self, task: Task, episode: Episode) -> _Part:
        verdict = await self._math.judge(task, episode)
        wanted = self._config.answer_format
        final = extract_answer(answer_text(task, episode), wanted)
        marked = final is not None and (wanted != "auto" or final.found_in != "plain")
        shares = {"correctness": float(bool(verdict.passed)), "format_bonus": float(marked)}
        return _Part(shares, right=bool(verdict.passed), reason=verdict.reason)


def _of_tools(expected: Sequence[Expected] | None, calls: Sequence[CheckedCall], ordered: bool) -> _Part:
    served = serve(expected or (), calls, ordered)
    invalid = sum(not call.valid for call in calls)
    shares = {"invalid_tool": _share(invalid, invalid + len(served))}
    said = f", {invalid} invalid" if invalid else ""
    if expected is None:
        return _Part(shares, right=not invalid, reason=f"{len(calls)} tool calls{said}")
    if not expected:
        none = _tool_shares(*[float(not calls)] * 3)
        return _Part(shares | none, right=not calls, reason=f"{len(calls)} tool calls, 0 expected")
    right = sum(expected[one].is_right(calls[call]) for one, call in served.items())
    fine = sum(not calls[call].failed for call in served.values())
    useless = [call for number, call in enumerate(calls) if number not in served.values()]
    failures = sum(call.failed or not call.valid for call in useless)
    of_tools = _tool_shares(len(served) / len(expected), right / len(expected), _share(fine, len(served) + failures))
    reason = f"{len(served)} of {len(expected)} expected tools called, {right} with the right arguments{said}"
    recall = {"recall": len(serve(expected, calls, ordered=False)) / len(expected)}
    return _Part(shares | of_tools, recall, right == len(expected) and not invalid, reason)


def _tool_shares(tool: float, arguments: float, success: float) -> dict[str, float]:
    return {"correct_tool": tool, "correct_args": arguments, "tool_success": success}


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0

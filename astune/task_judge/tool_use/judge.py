"""`ToolUseJudge`: did the agent call the tools that the task expects, and get the answer right?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from astune.config.judges import TaskJudgeConfig
from astune.errors import JudgeError
from astune.task_judge.answer_text import answer_text
from astune.task_judge.math.final_answer import extract_answer
from astune.task_judge.math.judge import MathAnswerAsJudge
from astune.task_judge.tool_use.calls import CheckedCall, tool_calls, turns_of_agents
from astune.task_judge.tool_use.expected import (
    FIELD,
    Expected,
    order_matters,
    read_expected_steps,
    read_expected_tools,
    serve,
)
from astune.types import Episode, Task, Verdict

NAME = "ToolUseJudge"


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

    A task says what it expects in `expected_tools` (see `tool_use.expected`); the first three are left
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

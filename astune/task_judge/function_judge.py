"""Plain functions as judges.

def judge(task, episode):                              # task: Task, episode: Episode
    return episode.output.answer == task.answer        # bool, number, JudgeOutput or Verdict

async def judge(task, response, auxiliary_models):     # AgentScope 1.x: task is the row as a dict
    return JudgeOutput(reward=1.0 if task["answer"] in str(response) else 0.0)

async def judge(model_answer, ground_truth):           # AgentRL: the final answer, and {"query": ..., "answer": ...}
    return float(model_answer == ground_truth["answer"])
"""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Callable, Mapping
from numbers import Real
from typing import Any, Protocol, runtime_checkable

from astune.errors import JudgeError, PluginError, nearest
from astune.support.concurrency import begin
from astune.support.user_values import contain, show_value
from astune.task_judge.answer_text import answer_text, cut_off
from astune.task_judge.judge_base import check_verdict
from astune.task_judge.math.final_answer import AnswerFormat, extract_answer
from astune.types import Episode, Task, Verdict

PARAMETERS = ("task", "episode", "response", "auxiliary_models", "logger", "model_answer", "ground_truth")
WHAT_WAS_DONE = ("episode", "response", "model_answer")
CONTRACT = (
    "a judge function takes (task, episode) or, as in AgentScope 1.x, (task, response, auxiliary_models, logger) or, "
    "as in AgentRL, (model_answer, ground_truth)"
)


@runtime_checkable
class RewardAndMetrics(Protocol):
    """The shape of a `JudgeOutput`. AgentScope's own class of that name has both, and it is never
    imported here."""

    reward: float
    metrics: Mapping[str, float] | None


class FunctionJudge:
    """Calls `function` with the parameters that it names, each one of `PARAMETERS`.

    `task` is a `Task` beside `episode` and the row as a new dict otherwise; `response` is what the workflow
    returned; `auxiliary_models` is empty. `model_answer` is the final answer that is marked as `answer_format` says,
    empty if none is, and `ground_truth` has the task's `query` and `answer`.
    A function that is not async runs in a thread of its own: it cannot hold up other episodes, and one that never ends
    cannot hold up the end of the run. How long it may take is for the caller to limit, as for every judge
    (`astune.rollout.verdict.ask_judge`).
    Raises `PluginError` for other parameters.
    """

    def __init__(self, function: Callable[..., Any], name: str, answer_format: AnswerFormat = "auto") -> None:
        self._function = function
        self._name = name
        self._parameters = _check_parameters(function, name)
        self._answer_format = answer_format

    @property
    def reads_answer_format(self) -> bool:
        return "model_answer" in self._parameters

    async def judge(self, task: Task, episode: Episode) -> Verdict:
        result = await self._call_function(self._arguments(task, episode))
        return check_verdict(_as_verdict(result, self._name), self._name)

    def _arguments(self, task: Task, episode: Episode) -> dict[str, Any]:
        values: dict[str, Any] = {
            "task": task if "episode" in self._parameters else dict(task.metadata),
            "episode": episode,
            "response": None if episode.output is None else episode.output.response,
            "auxiliary_models": {},
            "logger": logging.getLogger("astune.task_judge"),
            "ground_truth": {"query": task.query, "answer": task.answer},
        }
        if self.reads_answer_format:
            text = answer_text(task, episode)
            found = None if cut_off(episode, text) else extract_answer(text, self._answer_format)
            values["model_answer"] = "" if found is None else found.text
        return {name: values[name] for name in self._parameters}

    async def _call_function(self, arguments: dict[str, Any]) -> Any:
        with contain(f"judge {self._name}", GeneratorExit):
            if inspect.iscoroutinefunction(self._function):
                return await self._function(**arguments)
            result = await begin(functools.partial(self._function, **arguments), "judge", JudgeError)
            return await result if inspect.isawaitable(result) else result


def _check_parameters(function: Callable[..., Any], name: str) -> tuple[str, ...]:
    parameters = inspect.signature(function).parameters
    for parameter in parameters.values():
        if parameter.name not in PARAMETERS:
            raise PluginError(
                f"judge {name}: unknown parameter {parameter.name!r}.{nearest(parameter.name, PARAMETERS)} "
                f"Allowed: {', '.join(PARAMETERS)}; {CONTRACT}"
            )
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise PluginError(f"judge {name}: parameter {parameter.name!r} cannot be passed by name; {CONTRACT}")
    if sum(parameter in WHAT_WAS_DONE for parameter in parameters) != 1:
        raise PluginError(f"judge {name}: needs exactly one of {', '.join(map(repr, WHAT_WAS_DONE))}; {CONTRACT}")
    return tuple(parameters)


def _as_verdict(result: Any, name: str) -> Verdict:
    if isinstance(result, Verdict):
        return result
    if isinstance(result, bool):
        return Verdict(reward=float(result), passed=result, judged_by=name)
    if isinstance(result, Real):
        return Verdict(reward=float(result), judged_by=name)
    if isinstance(result, RewardAndMetrics):
        return Verdict(reward=result.reward, metrics=dict(result.metrics or {}), judged_by=name)
    raise JudgeError(
        f"judge {name} returned {show_value(result)}, expected a number, a truth value, a JudgeOutput or a Verdict"
    )

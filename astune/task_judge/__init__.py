"""Judges: from a finished episode to a `Verdict`.

judge = make_judge(config.astune.task_judge)
verdict = await judge.judge(task, episode)
"""

from __future__ import annotations

import inspect

from astune.config.schema import TaskJudgeConfig
from astune.errors import PluginError
from astune.plugins import load_plugin
from astune.task_judge.function_judge import FunctionJudge
from astune.task_judge.judge_base import Judge, check_verdict
from astune.task_judge.math_answer_as_judge import MathAnswerAsJudge

__all__ = ["FunctionJudge", "Judge", "MathAnswerAsJudge", "check_verdict", "make_judge"]

BUILTIN_JUDGES = {"MathAnswerAsJudge": "astune.task_judge.math_answer_as_judge:MathAnswerAsJudge"}


def make_judge(config: TaskJudgeConfig) -> Judge | None:
    """The judge that `astune.task_judge.judge_protocol` names; None where the workflow returns the reward itself.

    A class is constructed with `config`; a function, async or not, is called for each episode (`FunctionJudge`).
    Raises `PluginError` for anything else.
    """
    if config.judge_protocol is None:
        return None
    place = f"astune.task_judge.judge_protocol: {config.judge_protocol!r}"
    found = load_plugin(config.judge_protocol, kind="judge", builtin=BUILTIN_JUDGES)
    if not isinstance(found, type):
        if not callable(found):
            raise PluginError(f"{place} is a {type(found).__name__}, expected a class or a function")
        return FunctionJudge(found, name=config.judge_protocol, timeout=config.timeout)
    judge = found(config)
    if not isinstance(judge, Judge) or not inspect.iscoroutinefunction(judge.judge):
        raise PluginError(f"{place} has no method async judge(self, task, episode) -> Verdict")
    return judge

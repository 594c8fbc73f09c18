"""Judges: from a finished episode to a `Verdict`.

judge = make_judge(config.astune.task_judge)
verdict = await judge.judge(task, episode)
"""

from __future__ import annotations

from astune.config.judges import TaskJudgeConfig
from astune.task_judge.composite_judge import CompositeJudge, make_composite
from astune.task_judge.function_judge import FunctionJudge
from astune.task_judge.judge_base import GroupJudge, Judge, check_verdict
from astune.task_judge.math.judge import MathAnswerAsJudge
from astune.task_judge.registry import BUILTIN_JUDGES, load_judge, register_judge
from astune.task_judge.task_judges import TaskJudges

__all__ = [
    "BUILTIN_JUDGES",
    "CompositeJudge",
    "FunctionJudge",
    "GroupJudge",
    "Judge",
    "MathAnswerAsJudge",
    "TaskJudges",
    "check_verdict",
    "make_judge",
    "register_judge",
]

KEY = "astune.task_judge.judge_protocol"


def make_judge(config: TaskJudgeConfig) -> Judge | None:
    """The judge that `astune.task_judge.judge_protocol` names, one made of several for a list; None where the workflow
    returns the reward itself. Raises `PluginError` for what is no judge."""
    judges = [(named.judge, named.weight, load_judge(named.judge, config, key=KEY)) for named in config.judges]
    if not judges:
        return None
    return make_composite(judges) if isinstance(config.judge_protocol, tuple) else judges[0][2]

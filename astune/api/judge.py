"""`astune.judge`: ask a judge about one answer."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from typing import Any

from astune.api.settings import configure
from astune.check_tasks.try_answers import episode_of
from astune.errors import ConfigError, TaskError
from astune.rollout.verdict import ask_judge
from astune.support.concurrency import run_and_leave
from astune.task_judge import make_judge
from astune.task_reader.rows import RowMapping
from astune.types import Task, Verdict


def judge(
    judge: object,
    task: Mapping[str, Any] | Task,
    answer: str,
    *,
    conf: str | PathLike[str] | None = None,
    **keys: Any,
) -> Verdict:
    """The verdict of a judge, as `astune.tune` takes one, on an answer to a task. Raises `JudgeError` where it cannot
    tell.

    >>> judge("MathAnswerAsJudge", {"query": "6 * 7?", "answer": "42"}, "The answer is 42.").passed
    True
    """
    with configure(judge=judge, conf=conf, keys=keys, for_run=False) as loaded:
        config = loaded.config.astune
        made = make_judge(config.task_judge)
        if made is None:
            raise ConfigError("judge: got None; expected a function, a class, or the name of a judge")
        if not isinstance(task, Task | Mapping):
            raise TaskError(f"task: got {task!r:.80} of type {type(task).__name__}; expected a dict or a Task")
        read = task if isinstance(task, Task) else RowMapping(config.task_reader.fields).record(task, "task").task
        return run_and_leave(ask_judge(made, episode_of(read, answer), config.task_judge.seconds))

"""Figures of an evaluation, each with its interval and with the number of tasks that it is over."""

from __future__ import annotations

import math
from collections.abc import Sequence

from astune.rollout.metrics import judging_metrics
from astune.support.statistics import estimate, pass_at_k
from astune.types import Group


def evaluation_metrics(groups: Sequence[Group], seconds: float) -> dict[str, float]:
    """`success` and `reward` where they are known, and `pass_at_k` for 2, 4, 8 and so on up to the number of attempts
    at each task. Each is a mean over tasks, with the ends of its 95 % interval (`success_low`, `success_high`) where
    the tasks tell of one, and the tasks that have the figure (`success_tasks`).

    `tasks` and `attempts` are those that were played, `unjudged` the attempts among them that have no verdict.
    """
    episodes = [episode for group in groups for episode in group.episodes]
    metrics: dict[str, float] = {}
    for figure, values in values_by_task(groups).items():
        found = estimate(list(values.values()), share=is_share(figure))
        metrics[figure] = found.mean
        if found.interval is not None:
            metrics[f"{figure}_low"], metrics[f"{figure}_high"] = found.interval
        metrics[f"{figure}_tasks"] = float(found.n)
    return (
        metrics
        | judging_metrics("judging_", episodes)
        | {
            "tasks": float(len(groups)),
            "attempts": float(len(episodes)),
            "unjudged": float(sum(episode.verdict is None for episode in episodes)),
            "seconds": seconds,
        }
    )


def is_share(figure: str) -> bool:
    """Whether the figure of a task lies between 0 and 1, 0 and 1 included, as `success` and `pass_at_k` do."""
    return figure != "reward"


def values_by_task(groups: Sequence[Group]) -> dict[str, dict[str, float]]:
    """For each figure its value of each task that has it, the mean over the task's judged attempts. A task with fewer
    judged attempts than k has no `pass_at_k`."""
    passed = {group.task.task_id: _passed(group) for group in groups}
    rewards = {
        group.task.task_id: [episode.reward for episode in group.episodes if episode.reward is not None]
        for group in groups
    }
    found = {
        "success": {task: sum(each) / len(each) for task, each in passed.items() if each},
        "reward": {task: math.fsum(each) / len(each) for task, each in rewards.items() if each},
    }
    k, most = 2, max((len(group.episodes) for group in groups), default=0)
    while k <= most:
        enough = {task: each for task, each in passed.items() if len(each) >= k}
        found[f"pass_at_{k}"] = {task: pass_at_k(len(each), sum(each), k) for task, each in enough.items()}
        k *= 2
    return {figure: values for figure, values in found.items() if values}


def _passed(group: Group) -> list[bool]:
    """Whether each attempt passed, of those of which the judge says so."""
    verdicts = [episode.verdict for episode in group.episodes if episode.verdict is not None]
    return [verdict.passed for verdict in verdicts if verdict.passed is not None]

"""Figures of an evaluation, each with its interval and with the number of tasks that it is over."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

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
    for figure, values in figures_of(groups):
        found = estimate(values, share=figure != "reward")
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


def figures_of(groups: Sequence[Group]) -> Iterator[tuple[str, list[float]]]:
    """Name and values of each figure: one value per task that has it, the mean over its judged attempts. A task with
    fewer judged attempts than k has no `pass_at_k`."""
    passed = [_passed(group) for group in groups]
    rewards = [[episode.reward for episode in group.episodes if episode.reward is not None] for group in groups]
    most = max((len(group.episodes) for group in groups), default=0)
    yield from _known("success", [sum(each) / len(each) for each in passed if each])
    yield from _known("reward", [math.fsum(each) / len(each) for each in rewards if each])
    k = 2
    while k <= most:
        enough = [each for each in passed if len(each) >= k]
        yield from _known(f"pass_at_{k}", [pass_at_k(len(each), sum(each), k) for each in enough])
        k *= 2


def _known(figure: str, values: list[float]) -> Iterator[tuple[str, list[float]]]:
    if values:
        yield figure, values


def _passed(group: Group) -> list[bool]:
    """Whether each attempt passed, of those of which the judge says so."""
    verdicts = [episode.verdict for episode in group.episodes if episode.verdict is not None]
    return [verdict.passed for verdict in verdicts if verdict.passed is not None]

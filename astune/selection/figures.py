"""What there is to know of a model that has played tasks: how many it solves, what a solved one costs, how long it
takes and why attempts failed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import NamedTuple, TypeAlias

from astune.config.evaluation import is_share
from astune.monitor.causes import Cause, Causes
from astune.support.statistics import MeanOverTasks, PairedTest, estimate, holm, permutation_test, quantile
from astune.training.standalone import Played
from astune.types import Episode, Group, StopReason

Values: TypeAlias = Mapping[str, float]
"""Of each task the mean over the attempts at it."""
OF_THE_MODEL = ("workflow", "policy")
"""Where an attempt fails that the model has to answer for."""


@dataclass(frozen=True)
class ModelFigures:
    """The figures of one model in one evaluation. `solved` is the share of tasks solved, or the mean reward where the
    judge knows no success; None where nothing tells. An attempt that failed in the model or the workflow is not solved;
    one that its judge or environment failed is left out. Costs and tokens are those of all calls divided by the solved
    attempts; None where one is not known, or none was solved. Seconds are the median and the 95th percentile, of an
    episode without its judging, and of a call that was answered."""

    name: str
    values: Values
    solved: MeanOverTasks | None
    attempts: int
    failed: int
    causes: Sequence[tuple[Cause, int]]
    answered: int
    cost: float | None
    cost_per_solved: float | None
    tokens_per_solved: float | None
    episode_seconds: tuple[float, float] | None
    call_seconds: tuple[float, float] | None


class AgainstBest(NamedTuple):
    """A model beside the best one, on the tasks that both have played: the mean difference (it less the best) with its
    interval, and the paired test; `corrected` is its p after Holm, for the pairs of all models, as which is best is
    only known afterwards."""

    name: str
    difference: MeanOverTasks
    test: PairedTest
    corrected: float


def figure_of(groups: Sequence[Sequence[Group]]) -> str:
    """`success`, or `reward` where no judge of any model's attempts knows success."""
    verdicts = (episode.verdict for each in groups for group in each for episode in group.episodes)
    judged = [verdict for verdict in verdicts if verdict is not None]
    return "reward" if judged and all(verdict.passed is None for verdict in judged) else "success"


def measure(played: Played, evaluation: str, figure: str, *, reached: bool = True) -> ModelFigures:
    """Measure a model. One that was not `reached` has solved nothing that counts."""
    groups = played.groups[evaluation]
    episodes = [episode for group in groups for episode in group.episodes]
    rows = [row for episode in episodes for row in played.calls.get(episode.episode_id, ())]
    answered = [row for row in rows if not row.whole and row.error is None]
    whole = [row.seconds for row in rows if row.whole]
    values = values_of(groups, figure) if reached else {}
    solved = sum(episode.verdict is not None and bool(episode.verdict.passed) for episode in episodes)
    costs = [row.cost for row in answered]
    tokens = [row.tokens for row in answered]
    cost = _sum(costs)
    causes = Causes()
    for episode in episodes:
        causes.add(episode)
    return ModelFigures(
        name=played.about.candidate.name,
        values=values,
        solved=estimate(list(values.values()), share=is_share(figure)) if values else None,
        attempts=len(episodes),
        failed=sum(episode.verdict is None for episode in episodes),
        causes=causes.most,
        answered=len(answered),
        cost=cost,
        cost_per_solved=cost / solved if solved and cost is not None else None,
        tokens_per_solved=total / solved if solved and (total := _sum(tokens)) is not None else None,
        episode_seconds=_middle_and_end(whole),
        call_seconds=_middle_and_end([row.seconds for row in answered]),
    )


def values_of(groups: Sequence[Group], figure: str) -> Values:
    found = {}
    for group in groups:
        told = [value for episode in group.episodes if (value := _value(episode, figure)) is not None]
        if told:
            found[group.task.task_id] = math.fsum(told) / len(told)
    return found


def _value(episode: Episode, figure: str) -> float | None:
    """The value of an attempt; None where nothing tells."""
    verdict = episode.verdict
    if verdict is not None:
        passed = None if verdict.passed is None else float(verdict.passed)
        return verdict.reward if figure == "reward" else passed
    failed = episode.error is not None and episode.error.stage in OF_THE_MODEL
    return 0.0 if figure == "success" and failed and episode.stop_reason is not StopReason.CANCELLED else None


def _sum(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return math.fsum(known) if known and len(known) == len(values) else None


def _middle_and_end(seconds: Sequence[float]) -> tuple[float, float] | None:
    return (quantile(seconds, 0.5), quantile(seconds, 0.95)) if seconds else None


def find_best(figures: Sequence[ModelFigures]) -> ModelFigures | None:
    """The one that solves most; of equal ones the cheapest for a solved task, then the first. None where none is
    known."""
    known = [(one.solved.mean, one) for one in figures if one.solved is not None]
    if not known:
        return None
    most = max(mean for mean, _ in known)
    return min((one for mean, one in known if mean == most), key=lambda one: _or_last(one.cost_per_solved))


def _or_last(value: float | None) -> float:
    return math.inf if value is None else value


def compare_with_best(figures: Sequence[ModelFigures], there: Sequence[ModelFigures]) -> list[AgainstBest]:
    """Compare each that has a figure with the best of those that are still there."""
    best, known = find_best(there), [one for one in figures if one.solved is not None]
    pairs = [pair for pair in combinations(known, 2) if pair[0].values.keys() & pair[1].values.keys()]
    differences = [_differences(*pair) for pair in pairs]
    tests = [permutation_test(each) for each in differences]
    found = []
    for (one, other), changes, test, p in zip(pairs, differences, tests, holm([each.p for each in tests]), strict=True):
        if best is one or best is other:
            name, sign = (other.name, 1) if best is one else (one.name, -1)
            found.append(AgainstBest(name, estimate([sign * change for change in changes]), test, p))
    return found


def _differences(one: ModelFigures, other: ModelFigures) -> list[float]:
    """The second less the first, of the tasks in both."""
    return [other.values[task] - value for task, value in one.values.items() if task in other.values]

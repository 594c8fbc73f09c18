"""Compute the figures of a judge from labelled answers and its verdicts on them."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean

from astune.errors import TaskError
from astune.judging.agreement import (
    Bin,
    Confusion,
    Interval,
    bootstrap_interval,
    calibration_bins,
    calibration_error,
    cohen_kappa,
    confusion,
    quadratic_kappa,
    wilson_by_cluster,
)
from astune.judging.ranking import Concordance, concordance, spearman
from astune.task_judge.judge_base import judging_cost, metric_values
from astune.types import Verdict

Outcome = Verdict | Exception
"""The verdict on an answer, or the error that kept the judge from one."""


@dataclass(frozen=True)
class Label:
    """The label that people gave one answer: `right` as yes or no, `value` as a number."""

    task_id: str
    value: float
    right: bool
    length: int
    """Characters of the answer."""


@dataclass(frozen=True)
class Estimate:
    """A figure with its 95 % interval; None where the examples do not say."""

    value: float | None
    interval: Interval | None = None


@dataclass(frozen=True)
class JudgeUsage:
    """Time, calls, tokens and money per 1,000 answers, from the metrics of the verdicts; None where they do not say.
    Replies from the cache are counted on their own; they take no call, no tokens and no money."""

    seconds: float
    calls: float | None
    cached: float | None
    tokens: float | None
    cost: float | None


@dataclass(frozen=True)
class JudgeFigures:
    """The figures of one judge. All but `n`, `failed` and `right_of_all` are of the answers of which it could tell."""

    judge: str
    n: int
    failed: int
    confusion: Confusion[bool]
    """Of label `right` and what the judge said."""
    accuracy: Estimate
    right_of_all: float | None
    """Share of all answers that were judged rightly: one that was not judged is not."""
    kappa: Estimate
    spearman: Estimate
    """Of reward and label; None unless labels are graded."""
    quadratic_kappa: Estimate
    """Of the reward with the label on a scale from 0 to 1; None for rewards outside of that too."""
    pairs: int
    pairs_of_a_task: bool
    """Whether `pairs` are answers to the same task; any two, where no task has answers with different labels."""
    pairwise: Estimate
    """Share of pairs with different labels in which the better answer has the higher reward; ties count half."""
    reward_by_label: tuple[tuple[float, int, float], ...]
    """(label, judged answers, mean reward), lowest label first."""
    bins: tuple[Bin, ...]
    """Empty for rewards outside of 0 to 1, as is the error None."""
    calibration_error: float | None
    length_and_reward: float | None
    """Rank correlation. A judge that likes long answers has more of it than the labels have."""
    length_and_label: float | None
    position_consistency: float | None
    """Mean of the metric of that name: the share of comparisons that came out the same in both orders."""
    by_reward: int
    """Verdicts that do not say whether the answer passed, so that the reward decided."""
    usage: JudgeUsage

    @property
    def judged(self) -> int:
        return self.n - self.failed

    @property
    def false_positives(self) -> int:
        return self.confusion.counts[False, True]

    @property
    def false_negatives(self) -> int:
        return self.confusion.counts[True, False]


def accepts(verdict: Verdict, pass_reward: float) -> bool:
    """True if the judge takes the answer for right: as it says, else if the reward is `pass_reward` or more."""
    return verdict.reward >= pass_reward if verdict.passed is None else verdict.passed


def judge_figures(
    judge: str,
    labels: Sequence[Label],
    outcomes: Sequence[Outcome],
    *,
    graded: bool,
    seconds: float,
    pass_reward: float,
) -> JudgeFigures:
    """Figures of the judge named `judge`, `outcomes[i]` being of `labels[i]`. Intervals are resampled with a fixed
    seed, whole tasks at a time, since answers to one task go together. `graded` labels say more than right or wrong."""
    pairs = [(label, said) for label, said in zip(labels, outcomes, strict=True) if isinstance(said, Verdict)]
    known, verdicts = [label for label, _ in pairs], [verdict for _, verdict in pairs]
    right, given = [label.right for label in known], [accepts(verdict, pass_reward) for verdict in verdicts]
    rewards, tasks = [float(verdict.reward) for verdict in verdicts], [label.task_id for label in known]
    values, in_range = [label.value for label in known], all(0 <= reward <= 1 for reward in rewards)
    table = confusion(right, given, (True, False))
    scaled = _scale_to_one(values, [label.value for label in labels]) if in_range and graded else []
    bins = tuple(calibration_bins(rewards, right)) if in_range else ()
    count, of_a_task, pairwise = _pairwise(values, rewards, tasks)
    lengths = [float(label.length) for label in known]
    consistency = metric_values(verdicts, "position_consistency")
    return JudgeFigures(
        judge=judge,
        n=len(labels),
        failed=len(labels) - len(known),
        confusion=table,
        accuracy=_accuracy(right, given, tasks),
        right_of_all=table.agreed / len(labels) if labels else None,
        kappa=_estimate(cohen_kappa, right, given, tasks),
        spearman=_estimate(spearman, values, rewards, tasks) if graded else Estimate(None),
        quadratic_kappa=_estimate(quadratic_kappa, scaled, rewards, tasks) if scaled else Estimate(None),
        pairs=count,
        pairs_of_a_task=of_a_task,
        pairwise=pairwise,
        reward_by_label=_reward_by_label(values, rewards),
        bins=bins,
        calibration_error=calibration_error(bins),
        length_and_reward=spearman(lengths, rewards),
        length_and_label=spearman(lengths, values),
        position_consistency=fmean(consistency) if consistency else None,
        by_reward=sum(verdict.passed is None for verdict in verdicts),
        usage=_usage(verdicts, len(labels), seconds),
    )


def _accuracy(right: Sequence[bool], given: Sequence[bool], tasks: Sequence[str]) -> Estimate:
    if not right:
        return Estimate(None)
    agreed = [label == said for label, said in zip(right, given, strict=True)]
    return Estimate(sum(agreed) / len(agreed), wilson_by_cluster(agreed, tasks))


def _estimate(
    figure: Callable[[Sequence[float], Sequence[float]], float | None],
    labels: Sequence[float],
    given: Sequence[float],
    tasks: Sequence[str],
) -> Estimate:
    def of(chosen: Sequence[int]) -> float | None:
        return figure([labels[index] for index in chosen], [given[index] for index in chosen])

    value = figure(labels, given)
    return Estimate(value, None if value is None else bootstrap_interval(of, len(labels), clusters=tasks))


def _scale_to_one(values: Sequence[float], all_values: Sequence[float]) -> list[float]:
    """`values` on a scale from 0 to 1, from the lowest to the highest label; empty if all labels are the same."""
    low, high = min(all_values, default=0.0), max(all_values, default=0.0)
    return [(value - low) / (high - low) for value in values] if high > low else []


def _pairwise(values: Sequence[float], rewards: Sequence[float], tasks: Sequence[str]) -> tuple[int, bool, Estimate]:
    """Number of pairs, whether they are of the same task, and the share in order."""
    members: dict[str, list[int]] = defaultdict(list)
    for index, task in enumerate(tasks):
        members[task].append(index)

    def among(chosen: Sequence[int]) -> Concordance:
        return concordance([values[index] for index in chosen], [rewards[index] for index in chosen])

    by_task = [found for chosen in members.values() if (found := among(chosen)).pairs]
    if by_task:
        together = sum(by_task, Concordance(0, 0, 0))
        interval = bootstrap_interval(
            lambda drawn: sum((by_task[index] for index in drawn), Concordance(0, 0, 0)).accuracy,
            len(by_task),
        )
        return together.pairs, True, Estimate(together.accuracy, interval)
    everything = among(range(len(values)))
    if not everything.pairs:
        return 0, False, Estimate(None)
    interval = bootstrap_interval(lambda drawn: among(drawn).accuracy, len(values), clusters=tasks)
    return everything.pairs, False, Estimate(everything.accuracy, interval)


def _reward_by_label(values: Sequence[float], rewards: Sequence[float]) -> tuple[tuple[float, int, float], ...]:
    by_label: dict[float, list[float]] = defaultdict(list)
    for value, reward in zip(values, rewards, strict=True):
        by_label[value].append(reward)
    return tuple((value, len(found), fmean(found)) for value, found in sorted(by_label.items()))


def _usage(verdicts: Sequence[Verdict], n: int, seconds: float) -> JudgeUsage:
    """A verdict without `llm_calls` took none; calls of which one tells no cost have no known cost."""
    sums = judging_cost(verdicts)
    per_thousand = {name: 1000 * value / len(verdicts) for name, value in sums.items()}
    return JudgeUsage(
        seconds=1000 * seconds / n if n else 0.0,
        calls=per_thousand.get("calls"),
        cached=per_thousand.get("cached"),
        tokens=per_thousand.get("tokens"),
        cost=per_thousand.get("cost"),
    )


def check_one_scale(labels: Sequence[tuple[str, object]]) -> None:
    """Labels with their places. Raises TaskError where true or false stands beside numbers other than 0 and 1: is true
    the best of such a scale, or its 1?"""
    truths = [(place, label) for place, label in labels if isinstance(label, bool)]
    numbers = [(place, label) for place, label in labels if isinstance(label, int | float) and label not in (0, 1)]
    if truths and numbers:
        (there, truth), (here, number) = truths[0], numbers[0]
        raise TaskError(
            f"{here}: the label {number:g} is on a scale, but {there} has {json.dumps(truth)}; expected numbers in "
            "all lines of the file, or true and false in all"
        )

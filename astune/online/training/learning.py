"""The updates of a commit, and how far they may go from the version before."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from astune.algorithm.method import method_of
from astune.config.schema import AstuneConfig
from astune.errors import TrainingError
from astune.methods.distill import learn_from_prompted
from astune.online.training.commit_data import CommitData, Method
from astune.online.training.weighing import limit_authors, scale_weights, weigh
from astune.training.engine import Learner
from astune.training.schedule import learning_rate
from astune.types import Sample

MOST_HALVINGS = 10
"""Most halvings of the learning rate in one commit; an update that goes too far even so is left for a later one."""
SHARE = "learning_rate/share"
"""The figure of a commit that says by how much of the configured learning rate its last update was made."""
_MOST = 600.0
"""A token that got more than e to this times as likely counts as that: beyond, there are no numbers."""
_LEAST = 1e-12
"""The least probability that a division is by."""


@dataclass(frozen=True)
class OwnReference:
    """Scores by the policy, which is its own reference as long as a commit has changed nothing."""

    learner: Learner

    async def logprobs(self, samples: Sequence[Sample], *, reference: bool = False) -> list[Sequence[float]]:
        return await self.learner.logprobs(samples)


@dataclass
class CommitUpdates:
    """`taken` are the samples of the updates that were taken, `skipped` those whose loss was no finite number, `undone`
    those that were not learned from, as a step would have become too large or as `waits` says."""

    taken: list[Sample] = field(default_factory=list)
    skipped: list[Sample] = field(default_factory=list)
    undone: list[Sample] = field(default_factory=list)
    waits: str = "for_a_smaller_step"
    metrics: dict[str, float] = field(default_factory=dict)
    updates: int = 0


async def learn(
    learner: Learner,
    data: CommitData,
    config: AstuneConfig,
    restore: Callable[[], Awaitable[Learner]],
    share: float = 1.0,
) -> tuple[Learner, CommitUpdates]:
    """Take the updates of a commit by `share` of the configured learning rate.

    An update after which the mean KL of a token from the version before is more than `astune.online.commit.max_kl` is
    undone: `restore` goes back to the version before, the updates before it are taken again, which gives the same
    weights, and then it is taken by half the rate, as are all that follow. Raises TrainingError if all were skipped.
    """
    parts, told = await _parts(learner, data, config)
    before = await learner.logprobs(data.probes)
    measure = mean_kl if data.is_probed_by_answers else least_kl
    most = config.online.commit.max_kl
    figures: list[Mapping[str, float]] = []
    learned, kl, skipped, halvings = CommitUpdates(metrics=told), 0.0, 0, 0
    made: list[tuple[list[Sample], float]] = []
    waiting = deque(parts)
    while waiting:
        update = await learner.update(waiting[0], share * _rate(learner, config))
        moved = 0.0 if update.skipped else measure(before, await learner.logprobs(data.probes))
        if most is not None and not moved <= most:
            learned.metrics["kl/undone"] = moved
            learner = await restore()
            for part, taken_by in made:
                await learner.update(part, taken_by * _rate(learner, config))
            if halvings == MOST_HALVINGS:
                break
            halvings, share = halvings + 1, share / 2
            continue
        part = waiting.popleft()
        made.append((part, share))
        if update.skipped:
            learned.skipped += part
            skipped += 1
            continue
        kl = moved
        figures.append(update.metrics)
        learned.taken += part
        learned.updates += 1
    learned.undone = [sample for part in waiting for sample in part]
    if learned.skipped and not learned.taken and not learned.undone:
        raise TrainingError("the loss or gradient of every update was not finite: nothing was learned")
    means = {name: math.fsum(each[name] for each in figures) / len(figures) for name in (figures[0] if figures else ())}
    learned.metrics |= means | {"kl/from_version_before": kl, "updates/taken": float(learned.updates)}
    learned.metrics |= {"updates/skipped": float(skipped), "updates/undone": float(halvings + bool(waiting))}
    learned.metrics[SHARE] = share
    return learner, learned


async def _parts(
    learner: Learner, data: CommitData, config: AstuneConfig
) -> tuple[list[list[Sample]], dict[str, float]]:
    """The samples of each update. What is no reward is learned in the first, where the policy is its own reference."""
    rules, told = config.online.commit, dict[str, float]()
    beside: list[tuple[list[Sample], float]] = [(data.corrections, rules.weight_corrections)]
    of_whole_answers: tuple[tuple[Method, list[Sample], float], ...] = (
        ("kto", data.thumbs, rules.weight_thumbs),
        ("dpo", data.comparisons, rules.weight_preferences),
    )
    for method, samples, weight in of_whole_answers:
        if samples:
            algorithm = config.algorithm.model_copy(update={"method": method})
            sloped, figures = await method_of(algorithm).before_update(OwnReference(learner), samples)
            count = len({sample.episode_id for sample in samples})  # of whose losses the figures have the mean
            beside.append(([scale_weights(sample, count) for sample in sloped], weight))
            told[f"loss/{method}"] = figures["loss"]
    if data.hints:
        beside.append((await learn_from_prompted(OwnReference(learner), data.hints), rules.weight_hints))
    parts, many = limit_authors(weigh(data.parts, beside), data.authors_of, rules.most_per_author)
    told |= {"authors": float(len(data.authors)), "authors/bounded": float(many)}
    return parts, told


def _rate(learner: Learner, config: AstuneConfig) -> float:
    return learning_rate(config.trainer, learner.updates, learner.updates + 1)


def mean_kl(before: Sequence[Sequence[float]], after: Sequence[Sequence[float]]) -> float:
    """Mean over all tokens of (r - 1) - log r with r the ratio of their probabilities after and before: the estimator
    k3 (Schulman 2020) of KL(before, after), from tokens that the model before sampled. Each row has the
    log-probabilities of one sample's tokens.

    >>> round(mean_kl([[-1.0, -2.0]], [[-1.0, -1.0]]), 4)
    0.3591
    """
    moved = [new - old for old, new in _pair_up(before, after)]
    return math.fsum(math.expm1(min(each, _MOST)) - each for each in moved) / len(moved) if moved else 0.0


def least_kl(before: Sequence[Sequence[float]], after: Sequence[Sequence[float]]) -> float:
    """The same of tokens that somebody else wrote, of which `mean_kl` would tell how much likelier they are now: the
    KL of "this token or another", which that of all tokens is no less than.

    >>> round(least_kl([[-5.0]], [[-0.1]]), 4), round(mean_kl([[-5.0]], [[-0.1]]), 4)
    (2.2966, 128.3898)
    """
    found = [_two_way_kl(math.exp(old), math.exp(new)) for old, new in _pair_up(before, after)]
    return math.fsum(found) / len(found) if found else 0.0


def _two_way_kl(before: float, after: float) -> float:
    pairs = ((before, after), (1.0 - before, 1.0 - after))
    return math.fsum(p * math.log(p / max(q, _LEAST)) for p, q in pairs if p > 0.0)


def _pair_up(before: Sequence[Sequence[float]], after: Sequence[Sequence[float]]) -> Iterator[tuple[float, float]]:
    for rows in zip(before, after, strict=True):
        yield from zip(*rows, strict=True)

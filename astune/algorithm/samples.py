"""Groups in, training samples out, with a receipt for everything that was left out and why."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from astune.algorithm.aggregation import Entry, LossAggregation, token_weights
from astune.algorithm.credit import Credit, EpisodeCredit, credit_groups, span_shares
from astune.algorithm.receipt import NO_SIGNAL, Receipt, receipt_of, why_unjudged
from astune.algorithm.step_advantage import Advantage, as_estimator
from astune.types import Episode, Group, Sample


@dataclass(frozen=True)
class Weighting:
    """`astune.algorithm.loss_aggregation`, `astune.algorithm.credit` and `astune.rollout.max_tokens`."""

    aggregation: LossAggregation = "episode_mean"
    credit: Credit = "once"
    max_tokens: int = 1024


def to_samples(
    groups: Sequence[Group],
    advantage: Advantage,
    weighting: Weighting | None = None,
    left_out: Sequence[tuple[str, Episode]] = (),
) -> tuple[list[Sample], Receipt]:
    """Give every turn its advantage within its group and every trained token its weight.

    Episodes without a verdict are left out of the mean of their group. A group whose advantages are all zero
    carries no signal and is left out whole, unless a critic makes the advantages. `left_out` are episodes that were
    taken out of their groups before, each with its reason, for the receipt.
    """
    weighting, estimator = weighting or Weighting(), as_estimator(advantage)
    used: list[EpisodeCredit] = []
    dropped = list(left_out)
    without_signal = 0
    for group, credited in zip(groups, credit_groups(groups, estimator), strict=True):
        dropped += [(why_unjudged(episode), episode) for episode in group.episodes if episode.verdict is None]
        if has_signal(credited) or (estimator.for_critic and credited):
            used += credited
        else:
            without_signal += 1
            dropped += [(NO_SIGNAL, credit.episode) for credit in credited]
    samples = _weigh(used, weighting, with_rewards=estimator.for_critic)
    episodes = [*(episode for group in groups for episode in group.episodes), *(episode for _, episode in left_out)]
    return samples, replace(
        receipt_of(episodes, [credit.episode for credit in used], dropped),
        loss_terms=sum(sample.trained_tokens for sample in samples),
        weight_sum=math.fsum(sample.weight_sum for sample in samples),
        groups_used=len(groups) - without_signal,
        groups_without_signal=without_signal,
    )


def has_signal(credited: Sequence[EpisodeCredit]) -> bool:
    """True if there is anything to learn from a group: an advantage of a turn that could be trained is not 0."""
    return any(credit.has_signal for credit in credited)


def _weigh(used: Sequence[EpisodeCredit], weighting: Weighting, with_rewards: bool) -> list[Sample]:
    """The samples of the episodes: their timelines, less those that are context only."""
    entries = [entry for number, credit in enumerate(used) for entry in _entries(number, credit.episode, weighting)]
    weights = iter(token_weights(entries, weighting.aggregation, weighting.max_tokens))
    samples = []
    for credit in used:
        for line in credit.episode.timelines:
            row = tuple(next(weights) for _ in line.spans)
            if any(row):
                names = credit.episode.task.task_id, credit.episode.episode_id
                rewards = credit.span_rewards(line) if with_rewards else ()
                samples.append(Sample(line, credit.span_advantages(line), row, *names, rewards))
    return samples


def _entries(number: int, episode: Episode, weighting: Weighting) -> Iterator[Entry]:
    """Give one entry per span of each timeline, in order."""
    for line, shares in zip(episode.timelines, span_shares(episode, weighting.credit), strict=True):
        for span, share in zip(line.spans, shares, strict=True):
            yield Entry(episode.task.task_id, number, (number, span.turn), len(span), share, line.agent)


def split_samples(samples: Sequence[Sample], parts: int, aggregation: LossAggregation) -> list[list[Sample]]:
    """Deal whole episodes out to at most `parts` updates, and scale the weights of each so that they sum to 1 again
    (with `constant`: to what its episodes would have in a step of their own).

    Episodes go round in their order, so every update sees some of every group.
    """
    episodes = list(dict.fromkeys(sample.episode_id for sample in samples))
    place = {episode: number % parts for number, episode in enumerate(episodes)}
    dealt = [[sample for sample in samples if place[sample.episode_id] == part] for part in range(parts)]
    return [_scale(part, _factor(part, len(episodes), aggregation)) for part in dealt if part]


def reweigh(samples: Sequence[Sample], kept: Collection[str], aggregation: LossAggregation) -> list[Sample]:
    """Give the samples of the episodes `kept` the weights that they would have without the others."""
    part = [sample for sample in samples if sample.episode_id in kept]
    return _scale(part, _factor(part, len({sample.episode_id for sample in samples}), aggregation))


def _factor(part: Sequence[Sample], episodes: int, aggregation: LossAggregation) -> float:
    if aggregation == "constant":
        return episodes / len({sample.episode_id for sample in part})
    return 1.0 / math.fsum(sample.weight_sum for sample in part)


def _scale(samples: Sequence[Sample], factor: float) -> list[Sample]:
    return [replace(sample, weights=tuple(weight * factor for weight in sample.weights)) for sample in samples]

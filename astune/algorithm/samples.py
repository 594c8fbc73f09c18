"""Groups in, training samples out, with a receipt for everything that was left out and why."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from astune.algorithm.advantage import AdvantageFunction
from astune.errors import TrainingError
from astune.types import Episode, Group, Sample

LossAggregation = Literal["episode_mean", "token_mean"]


@dataclass(frozen=True)
class Receipt:
    """What became of the tokens that were sampled in a step.

    Invariant: `sampled == trained + sum(dropped.values())`; and over all samples the sum of weight times trained
    tokens is 1 (0 if there is no sample).
    """

    turns: int = 0
    timelines: int = 0
    sampled: int = 0
    trained: int = 0
    flattened: int = 0
    """Tokens of all samples, context included: what a trainer that shares nothing computes."""
    dropped: dict[str, int] = field(default_factory=dict)
    """Sampled tokens by the reason they are not trained: `unjudged`, `no_signal`, `not_trainable`."""
    forks: dict[str, int] = field(default_factory=dict)
    weight_sum: float = 0.0
    groups_used: int = 0
    groups_without_signal: int = 0


def to_samples(
    groups: Sequence[Group], advantage: AdvantageFunction, aggregation: LossAggregation = "token_mean"
) -> tuple[list[Sample], Receipt]:
    """Give every episode its advantage within its group and every trained token its weight.

    Episodes without a verdict are left out of the mean of their group. A group whose advantages are all zero
    carries no signal and is left out whole.
    """
    credited: list[tuple[Episode, float]] = []
    dropped: Counter[str] = Counter()
    without_signal = 0
    for group in groups:
        judged = [episode for episode in group.episodes if episode.reward is not None]
        dropped["unjudged"] += sum(_sampled(episode) for episode in group.episodes if episode.reward is None)
        advantages = _group_advantages(group, judged, advantage)
        if any(advantages):
            credited += zip(judged, advantages, strict=True)
        else:
            without_signal += 1
            dropped["no_signal"] += sum(map(_sampled, judged))
    samples = _weighted(credited, aggregation)
    trained = sum(sample.timeline.trained_tokens for sample in samples)
    dropped["not_trainable"] = sum(_sampled(episode) for episode, _ in credited) - trained
    episodes = [episode for group in groups for episode in group.episodes]
    return samples, Receipt(
        turns=sum(len(episode.turns) for episode in episodes),
        timelines=sum(len(episode.timelines) for episode in episodes),
        sampled=sum(map(_sampled, episodes)),
        trained=trained,
        flattened=sum(len(sample.timeline.token_ids) for sample in samples),
        dropped={reason: count for reason, count in dropped.items() if count},
        forks=dict(Counter(line.fork for episode in episodes for line in episode.timelines if line.fork)),
        weight_sum=math.fsum(sample.weight * sample.timeline.trained_tokens for sample in samples),
        groups_used=len(groups) - without_signal,
        groups_without_signal=without_signal,
    )


def _sampled(episode: Episode) -> int:
    return sum(len(turn.output_ids) for turn in episode.turns)


def _group_advantages(group: Group, judged: Sequence[Episode], advantage: AdvantageFunction) -> list[float]:
    if not judged:
        return []
    rewards = [float(episode.reward) for episode in judged if episode.reward is not None]
    advantages = advantage(rewards)
    if len(advantages) != len(rewards) or not all(map(math.isfinite, advantages)):
        raise TrainingError(
            f"astune.algorithm.advantage: {advantage!r} gave {list(advantages)!r} for the {len(rewards)} rewards of "
            f"task {group.task.task_id!r}; expected one finite number for each"
        )
    return list(advantages)


def _weighted(credited: Sequence[tuple[Episode, float]], aggregation: LossAggregation) -> list[Sample]:
    """`token_mean`: every trained token weighs 1 / (all trained tokens). `episode_mean`: every episode weighs
    the same, so a token weighs 1 / (episodes x trained tokens of its episode)."""
    trained = [sum(line.trained_tokens for line in episode.timelines) for episode, _ in credited]
    contributing = sum(1 for count in trained if count)
    samples = []
    for (episode, value), count in zip(credited, trained, strict=True):
        weight = 1.0 / sum(trained) if aggregation == "token_mean" and count else 0.0
        if aggregation == "episode_mean" and count:
            weight = 1.0 / (contributing * count)
        for line in episode.timelines:
            if line.trained_tokens:
                credit = (value,) * len(line.spans)
                samples.append(Sample(line, credit, weight, episode.task.task_id, episode.episode_id))
    return samples


def split_samples(samples: Sequence[Sample], parts: int) -> list[list[Sample]]:
    """Deal whole episodes out to at most `parts` updates, each with weights that sum to 1 again.

    Episodes go round in their order, so every update sees some of every group.
    """
    episodes = list(dict.fromkeys(sample.episode_id for sample in samples))
    place = {episode: number % parts for number, episode in enumerate(episodes)}
    dealt = [[sample for sample in samples if place[sample.episode_id] == part] for part in range(parts)]
    return [_renormalised(part) for part in dealt if part]


def _renormalised(samples: Sequence[Sample]) -> list[Sample]:
    total = math.fsum(sample.weight * sample.timeline.trained_tokens for sample in samples)
    return [replace(sample, weight=sample.weight / total) for sample in samples]

"""The receipt of a step: what became of every sampled token."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from astune.types import Episode, Group, Sample, StopReason, Turn

UNJUDGED, NO_SIGNAL, LATE, NOT_ITS_TURN = "unjudged", "no_signal", "late", "not_its_turn"
"""Why whole episodes are left out."""
SKIPPED_UPDATE, NO_TEACHER = "skipped_update", "no_teacher"
"""Why they are after all, as an update shows."""


@dataclass(frozen=True)
class Receipt:
    """Account of the tokens that were sampled in a step: trained, or dropped and why.

    Invariants: `sampled == trained + sum(dropped.values())`; `trained == sum(trained_by_version.values())`; tokens
    times weight over all samples is `weight_sum`: 1, or 0 if there is no sample (any number with `constant`).
    """

    turns: int = 0
    truncated: int = 0
    """Turns that ran into a token limit."""
    timelines: int = 0
    sampled: int = 0
    trained: int = 0
    """Sampled tokens that carry loss, each counted once, on however many branches it counts."""
    loss_terms: int = 0
    """Tokens with loss over all samples: more than `trained` where branches share turns and all of them count."""
    inexact: int = 0
    """Trained tokens whose ids were made from text (`astune.rollout.allow_inexact`)."""
    flattened: int = 0
    """Tokens of all timelines, context included: what a trainer that shares nothing computes."""
    unique: int = 0
    """The same for a trainer that shares all prefixes within an episode."""
    dropped: dict[str, int] = field(default_factory=dict)
    """Sampled tokens by the reason they are not trained: `unjudged`, `late`, `no_signal`, `skipped_update`,
    `no_teacher`, `not_its_turn`, or what `Turn.excluded` says."""
    forks: dict[str, int] = field(default_factory=dict)
    trained_by_version: dict[int, int] = field(default_factory=dict)
    """Trained tokens by the policy version that sampled them."""
    weight_sum: float = 0.0
    groups_used: int = 0
    groups_without_signal: int = 0

    def __add__(self, other: Receipt) -> Receipt:
        """Account for what two models said. Groups and weights are those of the one that has the most."""
        sums: dict[str, Any] = {}
        for each in fields(self):
            one, two = getattr(self, each.name), getattr(other, each.name)
            sums[each.name] = dict(Counter(one) + Counter(two)) if isinstance(one, dict) else one + two
        used = max(self.groups_used, other.groups_used)
        groups = max(each.groups_used + each.groups_without_signal for each in (self, other))
        sums |= {"groups_used": used, "groups_without_signal": groups - used}
        return Receipt(**sums | {"weight_sum": max(self.weight_sum, other.weight_sum)})

    def count_from(self, policy_version: int) -> Receipt:
        """The same with versions counted from that one on, as those of several models can be added up."""
        ages = {version - policy_version: count for version, count in self.trained_by_version.items()}
        return replace(self, trained_by_version=ages)

    def metrics(self, policy_version: int) -> dict[str, float]:
        """The receipt as figures for the log. `policy_version` is the one before the update."""
        figures: dict[str, float] = {
            "turns/total": self.turns,
            "turns/truncated": self.truncated,
            "tokens/trained": self.trained,
            "tokens/trained_inexact": self.inexact,
            "tokens/loss_terms": self.loss_terms,
            "tokens/flattened": self.flattened,
            "tokens/unique": self.unique,
            "timelines/total": self.timelines,
            "groups/used": self.groups_used,
            "groups/no_signal": self.groups_without_signal,
            "weight_sum": self.weight_sum,
        }
        if self.unique:
            figures["tokens/flattened_per_unique"] = self.flattened / self.unique
        if self.trained:
            ages = {policy_version - version: count for version, count in self.trained_by_version.items()}
            figures["policy_age/mean"] = sum(age * count for age, count in ages.items()) / self.trained
            figures["policy_age/max"] = max(ages)
        figures |= {f"tokens/dropped_{reason}": count for reason, count in self.dropped.items()}
        figures |= {f"forks/{cause}": count for cause, count in self.forks.items()}
        return {name: float(value) for name, value in figures.items()}


def why_unjudged(episode: Episode) -> str:
    """The reason why an episode without a verdict is left out."""
    return LATE if episode.stop_reason is StopReason.LATE else UNJUDGED


def why_left_out(turn: Turn, whole: str | None) -> str | None:
    """The reason why a turn is not trained; None if it is. `whole` is the reason why its episode is left out as a
    whole: that nobody judged it, or that it was late, comes before all else, that its group has no signal only where
    the turn could have been trained."""
    return whole if whole in (UNJUDGED, LATE) else turn.excluded or whole


def receipt_of(
    episodes: Sequence[Episode], used: Sequence[Episode], left_out: Sequence[tuple[str, Episode]]
) -> Receipt:
    """The receipt of `episodes`, of which `used` are trained and `left_out` are not, each for its reason; without
    what only the samples tell."""
    turns = [turn for episode in episodes for turn in episode.turns]
    trained = [turn for episode in used for turn in episode.turns if turn.trainable]
    lines = [timeline for episode in episodes for timeline in episode.timelines]
    dropped: Counter[str] = Counter()
    for reason, episode in [*left_out, *((None, episode) for episode in used)]:
        for turn in episode.turns:
            if (why := why_left_out(turn, reason)) is not None:
                dropped[why] += len(turn.output_ids)
    by_version: Counter[int] = Counter()
    for turn in trained:
        by_version[turn.policy_version] += len(turn.output_ids)
    return Receipt(
        turns=len(turns),
        truncated=sum(turn.finish_reason == "length" for turn in turns),
        timelines=len(lines),
        sampled=sum(len(turn.output_ids) for turn in turns),
        trained=sum(len(turn.output_ids) for turn in trained),
        inexact=sum(len(turn.output_ids) for turn in trained if not turn.exact),
        flattened=sum(len(line.token_ids) for line in lines),
        unique=sum(episode.unique_tokens for episode in episodes),
        dropped={reason: count for reason, count in dropped.items() if count},
        forks=dict(Counter(line.fork for line in lines if line.fork)),
        trained_by_version=dict(by_version),
    )


def without_lost(receipt: Receipt, groups: Sequence[Group], lost: Mapping[str, Collection[Sample]]) -> Receipt:
    """The receipt once it is known what updates did not learn from: what the samples `lost`, by the reason, would have
    trained counts as left out. An update has an episode whole or not at all."""
    for reason, samples in lost.items():
        receipt = _without(receipt, groups, samples, reason)
    return receipt


def _without(receipt: Receipt, groups: Sequence[Group], skipped: Collection[Sample], reason: str) -> Receipt:
    if not skipped:
        return receipt
    names = {sample.episode_id for sample in skipped}
    episodes = [episode for group in groups for episode in group.episodes if episode.episode_id in names]
    turns = [turn for episode in episodes for turn in episode.turns if turn.trainable]
    tokens = sum(len(turn.output_ids) for turn in turns)
    by_version = Counter(receipt.trained_by_version)
    for turn in turns:
        by_version[turn.policy_version] -= len(turn.output_ids)
    trained = receipt.trained - tokens
    return replace(
        receipt,
        trained=trained,
        loss_terms=receipt.loss_terms - sum(sample.trained_tokens for sample in skipped),
        inexact=receipt.inexact - sum(len(turn.output_ids) for turn in turns if not turn.exact),
        dropped={**receipt.dropped, reason: tokens},
        trained_by_version={version: count for version, count in by_version.items() if count},
        weight_sum=receipt.weight_sum if trained else 0.0,
    )

"""Advantages and weights of the episodes of one step, computed as the training loop does."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from astune.algorithm import ADVANTAGES, Advantage, Weighting, load_estimator, to_samples
from astune.algorithm.advantage import dr_grpo
from astune.algorithm.credit import credit_groups
from astune.algorithm.receipt import NO_SIGNAL, why_unjudged
from astune.config.schema import AlgorithmConfig, AstuneConfig
from astune.types import Episode, Group

STAND_IN = {
    "running_mean": "reward less the mean of the others of its step, in place of running_mean",
    "gae": "reward to the end, of which the critic makes advantages",
}
"""What is shown of estimators that know more than the episodes of a step."""


RULES = ("balance", "overlong_buffer", "efficiency_bonus")
"""Rules that change what is compared; looking at a run does not repeat them."""


@dataclass(frozen=True)
class Estimator:
    """The advantages and weights that a run gives its episodes. `name` is for people to read."""

    name: str
    advantage: Advantage
    weighting: Weighting

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Estimator:
        """The estimator of a run's configuration. A plug-in is not loaded, as looking at a run must not run code of it:
        rewards less the mean of their group stand for its advantages. Nor are earlier steps known here."""
        chosen = str(config.get("astune.algorithm.advantage", "grpo"))
        name, defaults = STAND_IN.get(chosen, chosen), AstuneConfig()
        if chosen not in ADVANTAGES:
            name = f"reward less the mean of its group, in place of {chosen}"
        if any(config.get(f"astune.algorithm.{key}") for key in RULES):
            name += ", of rewards before the rules over groups"
        if any(key.startswith("astune.models.") for key in config):
            name += ", as if all models were one"
        step_norm = bool(config.get("astune.algorithm.step_norm", False))
        return cls(
            name,
            load_estimator(AlgorithmConfig(advantage=chosen, step_norm=step_norm)) if chosen in ADVANTAGES else dr_grpo,
            Weighting(
                config.get("astune.algorithm.loss_aggregation", defaults.algorithm.loss_aggregation),
                config.get("astune.algorithm.credit", defaults.algorithm.credit),
                config.get("astune.rollout.max_tokens", defaults.rollout.max_tokens),
            ),
        )


@dataclass(frozen=True)
class Credited:
    """Advantages and weights of one episode. `advantages` and `weights` have one entry per span of each timeline.

    `left_out` says why nothing of it is trained: "unjudged", "late" or "no_signal"; None also where no turn could have
    been.
    """

    outcome: float | None = None
    advantages: Sequence[Sequence[float]] | None = None
    weights: Sequence[Sequence[float]] | None = None
    left_out: str | None = None


def credit_step(episodes: Sequence[Episode], estimator: Estimator) -> list[Credited]:
    """One for each episode of a step, in order. Attempts at the same task are a group."""
    groups: dict[str, list[Episode]] = {}
    for episode in episodes:
        groups.setdefault(episode.task.task_id, []).append(episode)
    credits = {
        id(credit.episode): credit
        for credits_of_group in credit_groups(_as_groups(groups), estimator.advantage)
        for credit in credits_of_group
        if _is_judged(credit.episode)
    }
    samples, _ = to_samples(_as_groups(groups), estimator.advantage, estimator.weighting)
    weights = {id(sample.timeline): sample.weights for sample in samples}
    trained = {episode.task.task_id for episode in episodes if any(id(line) in weights for line in episode.timelines)}
    found = []
    for episode in episodes:
        if not _is_judged(episode):
            found.append(Credited(left_out=why_unjudged(episode)))
            continue
        credit = credits[id(episode)]
        could_train = any(turn.trainable for turn in episode.turns)
        found.append(
            Credited(
                credit.outcome,
                [credit.span_advantages(line) for line in episode.timelines],
                [weights.get(id(line), (0.0,) * len(line.spans)) for line in episode.timelines],
                None if episode.task.task_id in trained or not could_train else NO_SIGNAL,
            )
        )
    return found


def _as_groups(groups: Mapping[str, Sequence[Episode]]) -> list[Group]:
    """Groups of what can be compared: a reward that was no number was written as null and cannot."""
    return [
        Group(
            episodes[0].task, tuple(episode for episode in episodes if episode.verdict is None or _is_judged(episode))
        )
        for episodes in groups.values()
    ]


def _is_judged(episode: Episode) -> bool:
    return episode.reward is not None and math.isfinite(episode.reward)

"""Advantages and weights of the episodes of one step, computed as the training loop does."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from astune.algorithm import ADVANTAGES, Advantage, Weighting, load_estimator, to_samples
from astune.algorithm.advantage import dr_grpo
from astune.algorithm.credit import credit_groups
from astune.algorithm.receipt import NO_SIGNAL, why_unjudged
from astune.config.schema import AlgorithmConfig, AstuneConfig
from astune.rollout.own_turns import take_own
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
        changed = config.get("astune.algorithm.agent_reward", defaults.algorithm.agent_reward)
        if changed != defaults.algorithm.agent_reward or any(config.get(f"astune.algorithm.{key}") for key in RULES):
            name += ", of rewards before the rules over groups"
        if any(key.startswith("astune.models.") for key in config):
            name += ", of each model by itself, by the algorithm of all"
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
    """One for each episode of a step, in order. Attempts at the same task are a group. Of several models each is
    compared with itself; what stands for the whole episode is of one that learns from it, if any does."""
    models = sorted({turn.model for episode in episodes for turn in episode.turns})
    if len(models) < 2:
        return _credit_model(episodes, estimator)
    parts: list[dict[str, Credited]] = [{} for _ in episodes]
    for model in models:
        own = [(place, take_own(episode, model)) for place, episode in enumerate(episodes)]
        own = [(place, episode) for place, episode in own if episode.turns]
        credited = _credit_model([episode for _, episode in own], estimator)
        for (place, _), credit in zip(own, credited, strict=True):
            parts[place][model] = credit
    return [_join(episode, part, estimator) for episode, part in zip(episodes, parts, strict=True)]


def _join(episode: Episode, parts: Mapping[str, Credited], estimator: Estimator) -> Credited:
    """Put the timelines of all models in the order of the episode, in which each model's are as among its own."""
    told = [credit for credit in parts.values() if credit.advantages is not None]
    if not told:
        return _credit_model([episode], estimator)[0]
    first = next(
        (credit for credit in told if credit.left_out is None and any(map(any, credit.weights or ()))), told[0]
    )
    rows = {model: zip(credit.advantages or (), credit.weights or (), strict=True) for model, credit in parts.items()}
    joined = [next(rows[episode.turns[line.spans[0].turn].model]) for line in episode.timelines]
    return replace(first, advantages=[row for row, _ in joined], weights=[row for _, row in joined])


def _credit_model(episodes: Sequence[Episode], estimator: Estimator) -> list[Credited]:
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

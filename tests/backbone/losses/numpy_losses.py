"""The losses again, one row and one token at a time, in numpy and double precision.

`losses` is a function of `logprob`; what a formula holds fixed is taken from the case's own `logprob`. Its slope there
is the gradient that the loss must have.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from astune.config.algorithm import AlgorithmConfig


@dataclass(frozen=True)
class Case:
    """One array (e,) each; `row` and `age` are whole numbers."""

    logprob: np.ndarray
    sampled: np.ndarray
    advantage: np.ndarray
    row: np.ndarray
    age: np.ndarray


def losses(case: Case, logprob: np.ndarray, config: AlgorithmConfig) -> np.ndarray:
    """The loss (e,) at `logprob`, with what is held fixed from `case`."""
    return np.array([_one(case, logprob, place, config) for place in range(len(logprob))])


def _one(case: Case, logprob: np.ndarray, place: int, config: AlgorithmConfig) -> float:
    now, before, advantage = logprob[place], case.logprob[place], case.advantage[place]
    ratio, fixed = np.exp(now - case.sampled[place]), np.exp(before - case.sampled[place])
    if config.loss == "ppo_clip":
        gain = surrogate(ratio, advantage, config)
        if config.clip_dual is not None and advantage < 0:
            gain = max(gain, config.clip_dual * advantage)
        return float(-gain)
    if config.loss == "gspo":
        same = case.row == case.row[place]
        of_row = np.exp(np.mean(case.logprob[same] - case.sampled[same]))
        return float(-surrogate(of_row * np.exp(now - before), advantage, config))
    if config.loss == "cispo":
        return float(-min(fixed, 1 + config.clip_high) * advantage * now)
    if config.loss == "minirl":
        cap = config.importance_weight_cap_ratio
        factor = 1 / cap if config.strict_in_bound else np.exp(min(0.0, -case.age[place] * config.out_of_date_decay))
        upper, lower = 1 + config.clip_high * cap * factor, 1 - config.clip_low * cap * factor
        if (fixed > upper and advantage > 0) or (fixed < lower and advantage < 0):
            return 0.0
        return float(-fixed * advantage * now)
    weight = {
        "none": 1.0,
        "truncate": min(fixed, config.importance_cap),
        "mask": fixed if fixed <= config.importance_cap else 0.0,
    }[config.importance]
    return float(-weight * advantage * now / (1 + config.opmd_tau if config.loss == "opmd" else 1))


def surrogate(ratio: float, advantage: float, config: AlgorithmConfig) -> float:
    inside = min(max(ratio, 1 - config.clip_low), 1 + config.clip_high)
    return min(ratio * advantage, inside * advantage)


def slopes(case: Case, config: AlgorithmConfig, step: float = 1e-6) -> np.ndarray:
    """Central differences: of each entry's loss with respect to its own logprob."""
    up, down = losses(case, case.logprob + step, config), losses(case, case.logprob - step, config)
    return (up - down) / (2 * step)

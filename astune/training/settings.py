"""Settings of a configuration as the types that rollouts and losses take."""

from __future__ import annotations

from typing import Literal

from astune.algorithm import Weighting
from astune.config.schema import AstuneConfig
from astune.types import Sampling


def sampling_for(config: AstuneConfig, decoding: Literal["sampled", "greedy"]) -> Sampling:
    """How answers are drawn unless the agent asks otherwise: as in training, or greedily."""
    rollout = config.rollout
    if decoding == "greedy":
        return Sampling(max_tokens=rollout.max_tokens, temperature=0.0)
    return Sampling(rollout.max_tokens, rollout.temperature, rollout.top_p, rollout.top_k)


def weighting_for(config: AstuneConfig) -> Weighting:
    """How trained tokens count in the loss."""
    algorithm = config.algorithm
    return Weighting(algorithm.loss_aggregation, algorithm.credit, config.rollout.max_tokens)

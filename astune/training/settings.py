"""Settings of a configuration as the types that rollouts and losses take."""

from __future__ import annotations

from typing import Literal

from astune.algorithm import Weighting
from astune.config.schema import AstuneConfig
from astune.types import Sampling


def sampling_for(config: AstuneConfig, decoding: Literal["sampled", "greedy"]) -> Sampling:
    """Draw answers as in training, or greedily, unless the agent asks otherwise."""
    rollout = config.rollout
    if decoding == "greedy":
        return Sampling(max_tokens=rollout.max_tokens, temperature=0.0)
    return Sampling(rollout.max_tokens, rollout.temperature, rollout.top_p, rollout.top_k)


def weighting_for(config: AstuneConfig) -> Weighting:
    """Weight trained tokens in the loss as `astune.algorithm` says."""
    algorithm = config.algorithm
    return Weighting(algorithm.loss_aggregation, algorithm.credit, config.rollout.max_tokens)

"""`astune.algorithm`: from rewards to the loss."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, NonNegativeFloat, PositiveFloat

from astune.config.section import Plugin, Section

EXAMPLE_METHODS = ("sft", "dpo")
"""The values of `method` that learn from examples in a file; with the others episodes are played."""


class AlgorithmConfig(Section):
    method: Literal["rl", "sft", "dpo"] = Field(
        "rl",
        description="what is learned from: rl: rewards of episodes; sft: example conversations; dpo: preferred against "
        "rejected answers, on --backbone=trinity",
    )
    advantage: Plugin = Field(
        "grpo",
        description="within a group: 'grpo', 'dr_grpo', 'rloo', 'rloo_clamped', 'step_wise_grpo'; over the step: "
        "'reinforce_pp', 'reinforce_pp_baseline'; over the run: 'running_mean'; or a plug-in 'package.module:function'",
    )
    step_norm: bool = Field(
        False, description="advantage step_wise_grpo: divided by the number of turns of the episode"
    )
    baseline_by: str | None = Field(
        None,
        description="advantage running_mean: metadata column that says a task's kind; null: its environment's type",
    )
    baseline_decay: float = Field(
        0.9, ge=0.0, lt=1.0, description="advantage running_mean: part of the earlier steps in the mean after a step"
    )
    loss: str = Field("ppo_clip", description="'ppo_clip' or 'reinforce'")
    clip_low: float = Field(
        0.2, gt=0.0, lt=1.0, description="PPO: lower bound of the probability ratio is 1 - clip_low"
    )
    clip_high: float = Field(0.28, gt=0.0, description="PPO: upper bound of the probability ratio is 1 + clip_high")
    loss_aggregation: Literal["episode_mean", "token_mean", "turn_mean", "task_mean", "constant"] = Field(
        "episode_mean",
        description="what counts the same in the loss: each episode (GRPO), token (DAPO), turn or task;"
        " constant: every token 1 / rollout.max_tokens (Dr. GRPO)",
    )
    credit: Literal["once", "per_branch", "mean_branch"] = Field(
        "once",
        description="tokens that branches of an episode share: trained in the first, in each, or in each by its part",
    )
    kl_beta: NonNegativeFloat = Field(
        0.0, description="how much the divergence (KL) from the model that the run began with counts; 0: not at all"
    )
    kl_estimator: Literal["k1", "k2", "k3"] = Field(
        "k3", description="how kl_beta's divergence is estimated from sampled tokens; in the loss k2 or k3"
    )
    kl_in: Literal["loss", "reward"] = Field(
        "loss",
        description="loss: kl_beta times the divergence is added to the loss; reward: what a token and those after it "
        "diverge is taken off its advantage",
    )
    dpo_beta: PositiveFloat = Field(
        0.1, description="method dpo: how much a preference counts, as against staying near the model it began with"
    )

    @property
    def needs_reference(self) -> bool:
        """Whether log-probabilities under the weights that the run began with are needed."""
        return self.kl_beta > 0

"""Combinations of `astune.algorithm.advantage` with other values that are each right but cannot work together."""

from __future__ import annotations

from collections.abc import Iterator

from astune.config.algorithm import AlgorithmConfig
from astune.config.schema import AstuneConfig

GROUP_ADVANTAGES = ("grpo", "dr_grpo", "rloo", "rloo_clamped", "step_wise_grpo", "reinforce_pp_baseline")
"""Those that compare the attempts at one task."""
USED_BY = {"step_norm": "step_wise_grpo", "baseline_by": "running_mean", "baseline_decay": "running_mean"}
"""The keys of `astune.algorithm` that one advantage alone has a use for."""


def advantage_contradictions(astune: AstuneConfig) -> Iterator[tuple[str, str]]:
    """The key to change and what is wrong with it."""
    algorithm, attempts = astune.algorithm, astune.rollout.num_repeat
    if attempts == 1 and algorithm.advantage in GROUP_ADVANTAGES:
        yield (
            "astune.rollout.num_repeat",
            f"1 attempt at each task has nothing to be compared with: every advantage of {algorithm.advantage!r} would "
            "be 0; expected 2 or more, or astune.algorithm.advantage 'running_mean'",
        )
    if attempts * astune.trainer.tasks_per_step == 1 and algorithm.advantage == "reinforce_pp":
        yield (
            "astune.trainer.tasks_per_step",
            "1 attempt at 1 task in a step has nothing to be compared with: every advantage of 'reinforce_pp' would be "
            "0; expected 2 or more",
        )


def unused_advantage_keys(algorithm: AlgorithmConfig) -> Iterator[tuple[str, str]]:
    """Keys that the advantage has no use for."""
    defaults = AlgorithmConfig()
    for key, user in USED_BY.items():
        if algorithm.advantage != user and getattr(algorithm, key) != getattr(defaults, key):
            yield (
                f"astune.algorithm.{key}",
                f"only advantage {user!r} has it, and the advantage is {algorithm.advantage!r}; take the key out",
            )

"""Combinations of `astune.algorithm.advantage` with other values that are each right but cannot work together."""

from __future__ import annotations

from collections.abc import Iterator

from astune.config.algorithm import AlgorithmConfig
from astune.config.schema import AstuneConfig

GROUP_ADVANTAGES = ("grpo", "dr_grpo", "rloo", "rloo_clamped", "step_wise_grpo", "reinforce_pp_baseline")
"""Those that compare the attempts at one task."""
OVER_THE_STEP = ("reinforce_pp", "reinforce_pp_baseline", "running_mean", "gae")
"""Those for which a group of equal rewards may teach something."""
ALONE = tuple(name for name in GROUP_ADVANTAGES if name not in OVER_THE_STEP)
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
    yield from critic_contradictions(astune)
    yield from batch_rule_contradictions(astune)


def batch_rule_contradictions(astune: AstuneConfig) -> Iterator[tuple[str, str]]:
    algorithm, rollout = astune.algorithm, astune.rollout
    if algorithm.dynamic_sampling and algorithm.advantage in OVER_THE_STEP:
        yield (
            "astune.algorithm.dynamic_sampling",
            f"with advantage {algorithm.advantage!r} a group of equal rewards teaches something too, so none is "
            f"replaced; expected 0, or one of {', '.join(ALONE)}",
        )
    if algorithm.overlong_buffer > rollout.max_tokens:
        yield (
            "astune.algorithm.overlong_buffer",
            f"{algorithm.overlong_buffer} tokens are more than astune.rollout.max_tokens = {rollout.max_tokens}: every "
            "answer would cost reward; expected fewer",
        )
    if not algorithm.overlong_buffer and algorithm.overlong_penalty != AlgorithmConfig().overlong_penalty:
        yield (
            "astune.algorithm.overlong_penalty",
            "nothing is overlong without astune.algorithm.overlong_buffer; set that, or take the key out",
        )
    if algorithm.overlong_buffer and astune.backbone == "trinity" and astune.model.max_model_len is None:
        yield (
            "astune.model.max_model_len",
            "not set; astune.algorithm.overlong_buffer has to know where the context ends, which Trinity does not tell",
        )
    for key in ("balance", "efficiency_bonus", "dynamic_sampling"):
        if getattr(algorithm, key) and rollout.num_repeat == 1:
            yield (
                f"astune.algorithm.{key}",
                "it looks at several attempts at a task, and astune.rollout.num_repeat is 1; expected 2 or more there, "
                "or take the key out",
            )


def critic_contradictions(astune: AstuneConfig) -> Iterator[tuple[str, str]]:
    """Those of a critic that is used."""
    critic, trainer = astune.algorithm.critic, astune.trainer
    if astune.algorithm.advantage != "gae":
        return
    if astune.algorithm.kl_beta and astune.algorithm.kl_in == "reward":
        yield (
            "astune.algorithm.kl_in",
            "'reward' takes the divergence off the advantages that the critic has made, which never learns of it; "
            "expected 'loss'",
        )
    if critic.value_clip is not None and critic.updates == 1:
        yield (
            "astune.algorithm.critic.value_clip",
            "in its first update no value has moved yet, so nothing is clipped; take the key out, or expected "
            "astune.algorithm.critic.updates 2 or more",
        )
    if trainer.total_steps is not None and critic.warmup_updates >= trainer.total_steps * trainer.updates_per_step:
        yield (
            "astune.algorithm.critic.warmup_updates",
            f"{critic.warmup_updates} updates are the whole run (astune.trainer.total_steps), and the policy would "
            "never learn; expected fewer",
        )


def unused_advantage_keys(algorithm: AlgorithmConfig) -> Iterator[tuple[str, str]]:
    """Keys that the advantage has no use for."""
    defaults = AlgorithmConfig()
    for name, value in algorithm.critic:
        if algorithm.advantage != "gae" and value != getattr(defaults.critic, name):
            yield (
                f"astune.algorithm.critic.{name}",
                f"only advantage 'gae' has a critic, and the advantage is {algorithm.advantage!r}; take the key out",
            )
    for key, user in USED_BY.items():
        if algorithm.advantage != user and getattr(algorithm, key) != getattr(defaults, key):
            yield (
                f"astune.algorithm.{key}",
                f"only advantage {user!r} has it, and the advantage is {algorithm.advantage!r}; take the key out",
            )

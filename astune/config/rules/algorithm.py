"""Values of `astune.algorithm` that are each right but cannot work together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from astune.config.algorithm import AlgorithmConfig
from astune.config.rules.method import MethodRules, rules_of
from astune.config.schema import AstuneConfig

LOSSES_WITH: Mapping[str, tuple[str, ...]] = {
    "clip_low": ("ppo_clip", "gspo", "minirl"),
    "clip_high": ("ppo_clip", "gspo", "cispo", "minirl"),
    "clip_dual": ("ppo_clip",),
    "importance_weight_cap_ratio": ("minirl",),
    "strict_in_bound": ("minirl",),
    "out_of_date_decay": ("minirl",),
    "opmd_tau": ("opmd",),
    "importance": ("opmd", "reinforce"),
}
"""The losses that use a key."""
WHY = {"importance": ", as the others weigh each token by its ratio already"}


def algorithm_contradictions(algorithm: AlgorithmConfig) -> Iterator[tuple[str, str]]:
    """The key to change and what is wrong with it."""
    method = rules_of(algorithm)
    if method.loss != "likelihood":
        yield from _loss(algorithm)
    yield from _divergence(algorithm, method)
    if not algorithm.trained_agents:
        yield "astune.algorithm.trained_agents", "no agent would be trained; expected at least one name or pattern"
    for pattern in algorithm.trained_agents:
        if "[" in pattern:
            yield (
                "astune.algorithm.trained_agents",
                f"{pattern!r} has a bracket; expected names in which * and ? stand for others",
            )
    if algorithm.entropy_bonus and "entropy_bonus" not in method.keys:
        yield _for_rewards_only("entropy_bonus", algorithm)


def _loss(algorithm: AlgorithmConfig) -> Iterator[tuple[str, str]]:
    for name, losses in LOSSES_WITH.items():
        if algorithm.loss not in losses and algorithm.find_changed([name]):
            one = f"only {', '.join(losses)} {'has' if len(losses) == 1 else 'have'} it{WHY.get(name, '')}"
            yield f"astune.algorithm.{name}", f"the loss {algorithm.loss!r} does not use it: {one}; {_away(name)}"
    if algorithm.importance == "none" and algorithm.find_changed(["importance_cap"]):
        yield (
            "astune.algorithm.importance_cap",
            f"astune.algorithm.importance is 'none', so that nothing is capped; {_away('importance_cap')}, or say "
            "'truncate' or 'mask'",
        )
    if algorithm.strict_in_bound:
        for name in algorithm.find_changed(("importance_weight_cap_ratio", "out_of_date_decay")):
            yield (
                f"astune.algorithm.{name}",
                f"with strict_in_bound the bounds are clip_low and clip_high, never wider; {_away(name)}",
            )


def _divergence(algorithm: AlgorithmConfig, method: MethodRules) -> Iterator[tuple[str, str]]:
    if algorithm.kl_beta == 0:
        for name in algorithm.find_changed(("kl_estimator", "kl_in")):
            yield (
                f"astune.algorithm.{name}",
                f"astune.algorithm.kl_beta is 0, so that no divergence counts; {_away(name)}, or set kl_beta",
            )
    elif "kl_beta" not in method.keys:
        yield _for_rewards_only("kl_beta", algorithm)
    elif algorithm.kl_in == "loss" and algorithm.kl_estimator == "k1":
        yield (
            "astune.algorithm.kl_estimator",
            "the gradient of k1 in the loss is 0 on average, so that nothing holds the policy back; expected 'k2' or "
            "'k3', or astune.algorithm.kl_in 'reward'",
        )


def _for_rewards_only(name: str, algorithm: AlgorithmConfig) -> tuple[str, str]:
    return f"astune.algorithm.{name}", f"only method 'rl' has it, and the method is {algorithm.method!r}; {_away(name)}"


def _away(name: str) -> str:
    """Advise to take out a key that a file or a preset sets."""
    default = getattr(AlgorithmConfig(), name)
    return f"take the key out (its default is {'null' if default is None else default})"


GROUP_ADVANTAGES = ("grpo", "dr_grpo", "rloo", "rloo_clamped", "step_wise_grpo", "reinforce_pp_baseline")
"""Advantages that compare the attempts at one task."""
OVER_THE_STEP = ("reinforce_pp", "reinforce_pp_baseline", "running_mean", "gae")
"""Advantages for which a group of equal rewards may teach something."""
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
    yield from _replays(astune)
    if not algorithm.overlong_buffer and algorithm.find_changed(["overlong_penalty"]):
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
    """Contradictions of a critic that is used."""
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


def curriculum_contradictions(astune: AstuneConfig) -> Iterator[tuple[str, str]]:
    """The key of `astune.trainer.curriculum` to change and what is wrong with it."""
    keys, method, key = astune.trainer.curriculum, rules_of(astune.algorithm), "astune.trainer.curriculum.enabled"
    if not keys.enabled:
        for name in keys.find_changed():
            yield f"astune.trainer.curriculum.{name}", "there is no curriculum without enabled: true; take the key out"
    elif not method.plays or method.loss == "teacher":
        yield (
            key,
            f"method {astune.algorithm.method!r} does not learn from rewards, which it goes by; take the key out",
        )
    elif astune.rollout.num_repeat == 1:
        yield (
            "astune.rollout.num_repeat",
            f"1 attempt does not tell what a task is worth to a curriculum; expected 2 or more, or take {key} out",
        )


def find_unused_advantage_keys(algorithm: AlgorithmConfig) -> Iterator[tuple[str, str]]:
    """Keys that the advantage has no use for."""
    for name in algorithm.critic.find_changed() if algorithm.advantage != "gae" else ():
        yield (
            f"astune.algorithm.critic.{name}",
            f"only advantage 'gae' has a critic, and the advantage is {algorithm.advantage!r}; take the key out",
        )
    for key in algorithm.find_changed(USED_BY):
        if algorithm.advantage != USED_BY[key]:
            yield (
                f"astune.algorithm.{key}",
                f"only advantage {USED_BY[key]!r} has it, and the advantage is {algorithm.advantage!r}; take the key "
                "out",
            )


def _replays(astune: AstuneConfig) -> Iterator[tuple[str, str]]:
    """Settings with which an attempt that is played again from its seed goes another way, or is not waited for."""
    if astune.algorithm.agent_reward != "leave_one_out":
        return
    key, instead = "astune.algorithm.agent_reward", "expected 'own', 'same' or 'difference'"
    if not astune.traits.own_engine or astune.rollout.engine != "torch":
        yield (
            key,
            "'leave_one_out' plays attempts again from their seeds, and only the engine of --backbone=local "
            f"(astune.rollout.engine: torch) then gives the same answers; {instead}",
        )
    if astune.synchronizer.style != "fixed" or astune.synchronizer.quorum < 1.0:
        yield (
            key,
            "'leave_one_out' plays attempts again with the same weights once all of a step have ended; expected "
            "astune.synchronizer.style 'fixed' and quorum 1, or 'own', 'same' or 'difference'",
        )

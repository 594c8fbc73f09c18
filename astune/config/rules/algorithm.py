"""Values of `astune.algorithm` that are each right but cannot work together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from astune.config.algorithm import AlgorithmConfig
from astune.config.rules.method import MethodRules, rules_of

UNSET = AlgorithmConfig()
"""A key that is away from its default was asked for."""

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
    if algorithm.entropy_bonus and "entropy_bonus" not in method.keys:
        yield _for_rewards_only("entropy_bonus", algorithm)


def _loss(algorithm: AlgorithmConfig) -> Iterator[tuple[str, str]]:
    for name, losses in LOSSES_WITH.items():
        if algorithm.loss not in losses and _is_set(algorithm, name):
            one = f"only {', '.join(losses)} {'has' if len(losses) == 1 else 'have'} it{WHY.get(name, '')}"
            yield f"astune.algorithm.{name}", f"the loss {algorithm.loss!r} does not use it: {one}; {_away(name)}"
    if algorithm.importance == "none" and _is_set(algorithm, "importance_cap"):
        yield (
            "astune.algorithm.importance_cap",
            f"astune.algorithm.importance is 'none', so that nothing is capped; {_away('importance_cap')}, or say "
            "'truncate' or 'mask'",
        )
    if algorithm.strict_in_bound:
        for name in ("importance_weight_cap_ratio", "out_of_date_decay"):
            if _is_set(algorithm, name):
                yield (
                    f"astune.algorithm.{name}",
                    f"with strict_in_bound the bounds are clip_low and clip_high, never wider; {_away(name)}",
                )


def _divergence(algorithm: AlgorithmConfig, method: MethodRules) -> Iterator[tuple[str, str]]:
    if algorithm.kl_beta == 0:
        for name in ("kl_estimator", "kl_in"):
            if _is_set(algorithm, name):
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


def _is_set(algorithm: AlgorithmConfig, name: str) -> bool:
    return bool(getattr(algorithm, name) != getattr(UNSET, name))


def _away(name: str) -> str:
    """What to do about a key that a file or a preset sets."""
    default = getattr(UNSET, name)
    return f"take the key out (its default is {'null' if default is None else default})"

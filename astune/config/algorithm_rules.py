"""Values of `astune.algorithm` that are each right but cannot work together."""

from __future__ import annotations

from collections.abc import Iterator

from astune.config.algorithm import AlgorithmConfig

UNSET = AlgorithmConfig()
"""A key that is away from its default was asked for."""


def algorithm_contradictions(algorithm: AlgorithmConfig) -> Iterator[tuple[str, str]]:
    """The key to change and what is wrong with it."""
    yield from _divergence(algorithm)


def _divergence(algorithm: AlgorithmConfig) -> Iterator[tuple[str, str]]:
    if algorithm.kl_beta == 0:
        for name in ("kl_estimator", "kl_in"):
            if getattr(algorithm, name) != getattr(UNSET, name):
                yield (
                    f"astune.algorithm.{name}",
                    "astune.algorithm.kl_beta is 0, so that no divergence counts; take the key out, or set kl_beta",
                )
    elif algorithm.method != "rl":
        yield (
            "astune.algorithm.kl_beta",
            f"only method 'rl' has it, and the method is {algorithm.method!r}; take it out",
        )
    elif algorithm.kl_in == "loss" and algorithm.kl_estimator == "k1":
        yield (
            "astune.algorithm.kl_estimator",
            "the gradient of k1 in the loss is 0 on average, so that nothing holds the policy back; expected 'k2' or "
            "'k3', or astune.algorithm.kl_in 'reward'",
        )

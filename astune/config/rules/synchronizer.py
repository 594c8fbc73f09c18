"""Values of `astune.synchronizer` that ASTune's own training loop cannot honour, or that need others."""

from __future__ import annotations

from collections.abc import Iterator

from astune.config.rules.method import rules_of
from astune.config.schema import AstuneConfig, SynchronizerConfig

UNSET = SynchronizerConfig()
"""A key that is away from its default was asked for."""


def synchronizer_contradictions(astune: AstuneConfig) -> Iterator[tuple[str, str]]:
    """The key to change and what is wrong with it, for every backbone whose loop is ASTune's."""
    synchronizer = astune.synchronizer
    if not rules_of(astune.algorithm).plays:
        yield from _without_rollouts(astune)
        return
    for name in ("interval", "offset"):
        value, default = getattr(synchronizer, name), getattr(UNSET, name)
        if value != default:
            yield (
                f"astune.synchronizer.{name}",
                f"got {value!r}, which only Trinity has; expected {default}, or --backbone=trinity (how far "
                "rollouts may be ahead here: astune.synchronizer.max_staleness, with style 'async')",
            )
    if synchronizer.patience != UNSET.patience and synchronizer.quorum == 1.0:
        yield (
            "astune.synchronizer.patience",
            "astune.synchronizer.quorum is 1, so that every episode is waited for; take the key out, or set a quorum, "
            "as 0.9",
        )
    if synchronizer.style == "async":
        yield from _async(astune)
    elif synchronizer.style != "fixed":
        yield (
            "astune.synchronizer.style",
            f"got {synchronizer.style!r}, which only Trinity has; expected 'fixed' or 'async', or --backbone=trinity",
        )
    elif synchronizer.max_staleness is not None:
        yield (
            "astune.synchronizer.max_staleness",
            f"got {synchronizer.max_staleness}, but with style 'fixed' rollouts wait for training, so that nothing "
            "becomes stale; take the key out, or set astune.synchronizer.style to 'async'",
        )


def _without_rollouts(astune: AstuneConfig) -> Iterator[tuple[str, str]]:
    for name, value in astune.synchronizer:
        if value != getattr(UNSET, name):
            yield (
                f"astune.synchronizer.{name}",
                f"the method {astune.algorithm.method!r} plays no episodes that training could wait for; take the key "
                "out",
            )


def _async(astune: AstuneConfig) -> Iterator[tuple[str, str]]:
    algorithm, most = astune.algorithm, astune.synchronizer.max_staleness
    if most is None:
        yield (
            "astune.synchronizer.max_staleness",
            "not set; with style 'async' it says how many steps rollouts may be ahead of training; expected a number, "
            "1 to begin with",
        )
    weighs_tokens = rules_of(algorithm).loss != "likelihood"
    if algorithm.loss == "reinforce" and algorithm.importance == "none" and weighs_tokens:
        yield (
            "astune.algorithm.importance",
            "'none' takes tokens of older weights for tokens of the weights in training, and with "
            "astune.synchronizer.style 'async' they are older; expected 'truncate' or 'mask', or another loss",
        )
    shares = astune.traits.own_engine and astune.rollout.engine == "torch"
    if shares and astune.model.lora.rank is not None:
        yield (
            "astune.synchronizer.style",
            "'async' samples from a copy of the weights, and adapters share theirs with the model that is trained "
            "(astune.model.lora); expected 'fixed', or astune.rollout.engine: vllm",
        )

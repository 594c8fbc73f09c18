"""The constant part of Trinity's configuration, and the keys that a method has no use for. What becomes of each key of
`astune.*` stands in the schema, by its field (`OnTrinity`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from astune.backbone.foreign.keys import read_shipped
from astune.config.keys import fates
from astune.config.load import LoadedConfig
from astune.config.rules.method import rules_of
from astune.config.schema import AlgorithmConfig
from astune.config.section import OnTrinity

DEFAULTS = "trinity_default.yaml"
EXAMPLES = "trinity_{method}.yaml"
"""Laid over it with a method other than rl. Its arguments of the loss replace those below, as the losses differ."""
ONLINE = "trinity_online.yaml"
"""Laid over all where the versions of `astune online` are trained."""
LOSS_ARGS = "algorithm.policy_loss_fn_args."


def not_used(loaded: LoadedConfig) -> list[str]:
    """The keys that the user set and that astune.algorithm.method has no use for, to be shown before the run."""
    unused = fates(OnTrinity).keys() - rules_for(loaded).keys()
    return [key for key in loaded.set_by_user() if key in unused]


def rules_for(loaded: LoadedConfig) -> Mapping[str, OnTrinity]:
    """The rules of the keys that astune.algorithm.method uses."""
    method = loaded.config.astune.algorithm.method
    return {key: rule for key, rule in fates(OnTrinity).items() if method in rule.methods}


def constants(algorithm: AlgorithmConfig) -> tuple[dict[str, Any], dict[str, str]]:
    """The part that is the same for every configuration of the method, by dotted key, and the file of each value."""
    found: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for name in [DEFAULTS] if rules_of(algorithm).plays else [DEFAULTS, EXAMPLES.format(method=algorithm.method)]:
        values = read_shipped(name)
        found = {key: value for key, value in found.items() if not key.startswith(LOSS_ARGS)} | values
        origins |= dict.fromkeys(values, name)
    return found, {key: origins[key] for key in found}

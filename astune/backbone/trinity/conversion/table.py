"""The data behind `convert`: the constant part of Trinity's configuration, and a rule for each key of `astune.*`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from astune.backbone.foreign import shipped
from astune.config.load import LoadedConfig
from astune.support.resources import default_config_dir

DEFAULTS = "trinity_default.yaml"
EXAMPLES = "trinity_{method}.yaml"
"""Laid over it with a method other than rl. Its arguments of the loss replace those below, as the losses differ."""
ONLINE = "trinity_online.yaml"
"""Laid over all where the versions of `astune online` are trained."""
TABLE = "config_auto_convertion_trinity.json"
LOSS_ARGS = "algorithm.policy_loss_fn_args."


@dataclass(frozen=True)
class KeyRule:
    """What becomes of one key of `astune.*`: `to` has the conversion for each key of Trinity; else `ours` says what
    acts on the key, or `ignored` or `unsupported` why nothing does."""

    to: Mapping[str, str] = field(default_factory=dict)
    ours: str = ""
    ignored: str = ""
    unsupported: str = ""
    unless: Any = None
    """The one value, the default, that is accepted of an unsupported key."""
    tinker: str = ""
    """Why the key has no effect with the tinker engine."""
    cluster: str = ""
    """Why the key has no effect on a Ray cluster that the run joins."""
    own_server: bool = False
    """Whether the key reaches a tinker server that the run starts itself, whatever the two above say."""
    if_set: bool = False
    """Convert only a value that the user wrote: the default is Trinity's."""
    methods: Sequence[str] = ("rl", "sft", "dpo")
    """The values of astune.algorithm.method that use the key."""


@cache
def table() -> Mapping[str, KeyRule]:
    """The rule for every key of `astune.*`."""
    text = (default_config_dir() / TABLE).read_text(encoding="utf-8")
    return {key: KeyRule(**rule) for key, rule in json.loads(text).items()}


def not_used(loaded: LoadedConfig) -> list[str]:
    """The keys that the user set and that astune.algorithm.method has no use for, to be shown before the run."""
    method, rules = loaded.config.astune.algorithm.method, table()
    return [key for key in loaded.set_by_user() if key in rules and method not in rules[key].methods]


def constants(method: str) -> tuple[dict[str, Any], dict[str, str]]:
    """The part that is the same for every configuration of the method, by dotted key, and the file of each value."""
    found: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for name in [DEFAULTS] if method == "rl" else [DEFAULTS, EXAMPLES.format(method=method)]:
        values = shipped(name)
        found = {key: value for key, value in found.items() if not key.startswith(LOSS_ARGS)} | values
        origins |= dict.fromkeys(values, name)
    return found, {key: origins[key] for key in found}

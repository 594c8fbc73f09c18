"""Trinity's configuration for the versions of `astune online`: its trainer alone, in mode `train`.

What a commit learns, its advantages, thumbs, comparisons and corrections, is computed by ASTune; so are checkpoints.
Keys that are about these alone work, whatever a run on Trinity says of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from astune.backbone.foreign.keys import at, leaves, put, read_shipped
from astune.backbone.trinity.conversion.convert import ONLINE, Converted, convert
from astune.backbone.trinity.conversion.values import NOT_ON_TRINITY, uses_tinker
from astune.config.keys import value_at
from astune.config.load import DEFAULTS, LoadedConfig
from astune.config.schema import Config
from astune.config.section import Section
from astune.errors import ConfigError

OURS = (
    "astune.algorithm.baseline_by",
    "astune.algorithm.baseline_decay",
    "astune.algorithm.kto_bad_weight",
    "astune.algorithm.kto_good_weight",
    "astune.algorithm.preference_loss",
    "astune.algorithm.preference_margin",
    "astune.synchronizer",
    "astune.trainer.keep_checkpoints",
    "astune.trainer.save_every",
    "astune.trainer.total_epochs",
    "astune.trainer.total_steps",
    "astune.trainer.updates_per_step",
)
"""What a run on Trinity gets from these keys, or refuses, has no meaning here."""
IN_VAIN = ("algorithm.advantage_fn", "algorithm.advantage_fn_args", "buffer.trainer_input", "data_processor")
"""Sections of Trinity's that have no effect, as a commit's rows come with all that is to be trained."""


def convert_online(loaded: LoadedConfig, folder: Path) -> Converted:
    """Trinity's configuration for the service in `folder`. Raises ConfigError with every key that Trinity's trainer
    cannot honour, or that would have no effect."""
    constants = read_shipped(ONLINE)
    problems = list(_wrong(loaded))
    for key, _ in leaves(loaded.config.trinity):
        if key in constants or key.startswith(IN_VAIN):
            problems.append(f"{_where(loaded, key)}: has no effect on online training; take the key out")
    try:
        converted = convert(replace(loaded, config=_without_ours(loaded.config)), folder)
    except ConfigError as error:
        raise ConfigError("\n".join([*problems, str(error)])) from error
    if not uses_tinker(converted.tree):
        problems.append(
            "trinity.model.tinker.enable: not set; online training runs Trinity's tinker trainer, as its other one, "
            "verl, cuts the rows of an update into batches of a fixed number; expected true"
        )
    elif converted.tree["model"]["tinker"].get("base_url"):
        problems.append(
            f"{_where(loaded, 'model.tinker.base_url')}: a version is a folder of weights, and a tinker server "
            "elsewhere keeps them to itself; take the key out, so that one is started here"
        )
    elif rank := converted.tree["model"]["tinker"]["rank"]:
        problems.append(
            f"{_where(loaded, 'model.tinker.rank')}: got {rank}: a version is a folder of weights, not of an adapter; "
            "take the key out"
        )
    if problems:
        raise ConfigError("\n".join(problems))
    for key, value in constants.items():
        put(converted.tree, key, value)
    return Converted(converted.tree, {**converted.origins, **dict.fromkeys(constants, ONLINE)})


def _wrong(loaded: LoadedConfig) -> Iterator[str]:
    astune = loaded.config.astune
    if astune.algorithm.advantage == "gae":
        yield f"{loaded.where('astune.algorithm.advantage')}: got 'gae': {NOT_ON_TRINITY['gae']}"
    if astune.rollout.temperature != 1.0:
        yield (
            f"{loaded.where('astune.rollout.temperature')}: got {astune.rollout.temperature:g}; Trinity trains all "
            "tokens of an update at one temperature, and corrections, which nobody sampled, are learned at 1; "
            "expected 1.0 (or --backbone=local)"
        )
    address = loaded.config.trinity.get("cluster", {}).get("ray_address", "local")
    if address != "local":
        yield (
            f"{_where(loaded, 'cluster.ray_address')}: got {address!r}, but the tinker server that holds the "
            "weights is started on this machine and listens to it alone; expected 'local'"
        )


def _where(loaded: LoadedConfig, key: str) -> str:
    return at(loaded, f"trinity.{key}")


def _without_ours(config: Config) -> Config:
    """The configuration as a run on Trinity may have it."""
    values = config.model_dump()
    ours = [*OURS, "astune.algorithm.advantage"]  # advantages are computed before Trinity has the rows
    for key in ours:
        default = value_at(DEFAULTS, key)
        put(values, key, default.model_dump() if isinstance(default, Section) else default)
    return Config.model_validate(values)

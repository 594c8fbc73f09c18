"""Give a run its clock: the one time that chat templates are told, on every machine and when the run goes on.

It is written into the run's config.yaml like any other value, so whoever reads that (a resumed run, a replay) has it.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from pathlib import Path

from astune.config.load import LoadedConfig
from astune.config.schema import AstuneConfig
from astune.config.source import read_saved
from astune.errors import ConfigError


def now() -> datetime:
    """The time on this machine, to the second, without a zone: as templates write it."""
    return datetime.now().replace(microsecond=0)


def at_clock(config: AstuneConfig, clock: datetime) -> AstuneConfig:
    """`config` with that clock, unless it has one."""
    if config.model.clock is not None:
        return config
    return config.model_copy(update={"model": config.model.model_copy(update={"clock": clock})})


def with_clock(loaded: LoadedConfig, clock: datetime | None = None) -> LoadedConfig:
    """`loaded` and its stages with that clock, by default the time now, unless they have one."""
    clock = loaded.config.astune.model.clock or clock or now()
    config = loaded.config.model_copy(update={"astune": at_clock(loaded.config.astune, clock)})
    return replace(loaded, config=config, stages=tuple(with_clock(stage, clock) for stage in loaded.stages))


def read_clock(config_path: Path) -> datetime | None:
    """The clock of a run by its config.yaml; None where an older ASTune kept none."""
    model = read_saved(config_path).get("astune", {}).get("model", {})
    kept = model.get("clock")
    try:
        return None if kept is None else datetime.fromisoformat(kept)
    except (TypeError, ValueError):
        raise ConfigError(f"{config_path}: astune.model.clock: expected a time, got {kept!r}") from None

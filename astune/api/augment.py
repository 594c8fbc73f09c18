"""More training tasks before a run, as `astune.task_reader.augment` asks for them."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

from astune.api.rubric import show_stages
from astune.config.load import LoadedConfig
from astune.config.tasks import AugmentConfig
from astune.data.run import prepare_augmentation
from astune.errors import ConfigError
from astune.support.run_log import file_logger
from astune.support.visible import tell

log = file_logger(__name__)


def with_made_tasks(loaded: LoadedConfig) -> LoadedConfig:
    """Make the tasks, unless an equal run has, and give the configuration with which they are read. A set that a limit
    cut short is used, with a warning, and made whole by the next run; a run that goes on keeps the set that it has.

    Raises what `prepare_augmentation` raises, before any call."""
    if loaded.stages:
        return replace(loaded, stages=tuple(with_made_tasks(stage) for stage in loaded.stages))
    config = loaded.config.astune
    if config.task_reader.augment.target is None:
        return loaded
    if config.task_reader.augment.file is not None:
        raise ConfigError(
            f"{loaded.where('astune.task_reader.augment.file')}: with target the run makes the tasks itself; take one "
            "of the two out"
        )
    with show_stages() as stages:
        job = prepare_augmentation(loaded, Path(config.runs_dir) / "made_tasks", stages)
        (out,) = (part.out for part in job.parts)
        report = out.with_suffix(".report.json")
        if not report.is_file() or not (config.resume or json.loads(report.read_text(encoding="utf-8"))["complete"]):
            (harvest,) = job.run()
            if not harvest.complete:
                said = f"{len(harvest.kept)} of {harvest.target} tasks were made: {harvest.ended}"
                log.warning("%s", said)
                tell(said)
    tell(f"made tasks {out}")
    reader = config.task_reader.model_copy(update={"augment": AugmentConfig(file=str(out))})
    astune = config.model_copy(update={"task_reader": reader})
    return replace(loaded, config=loaded.config.model_copy(update={"astune": astune}))


def list_made_tasks(loaded: LoadedConfig, run_dir: Path) -> None:
    """Copy the made tasks, what was dropped and the report into the folder of the run."""
    for number, stage in enumerate(loaded.stages or (loaded,), start=1):
        file = stage.config.astune.task_reader.augment.file
        if file is None or not run_dir.is_dir():
            continue
        stem = f"made_tasks_{number}" if loaded.stages else "made_tasks"
        for suffix in (".jsonl", ".dropped.jsonl", ".report.json"):
            made = Path(file).with_suffix(suffix)
            if made.is_file():
                shutil.copyfile(made, run_dir / f"{stem}{suffix}")

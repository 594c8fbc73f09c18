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
from astune.support.visible import tell


def with_made_tasks(loaded: LoadedConfig) -> LoadedConfig:
    """Make the tasks, unless an equal run has, and give the configuration with which they are read. A set that a limit
    cut short is used, with a warning, and made whole by the next run; a run that goes on keeps the set that it has."""
    if loaded.stages:
        return replace(loaded, stages=tuple(with_made_tasks(stage) for stage in loaded.stages))
    config = loaded.config.astune
    if config.task_reader.augment.target is None:
        return loaded
    if config.task_reader.augment.file is not None:
        where = loaded.where("astune.task_reader.augment.file")
        raise ConfigError(f"{where}: with target the run makes the tasks itself; take one of the two out")
    with show_stages() as stages:
        job = prepare_augmentation(loaded, Path(config.runs_dir) / "made_tasks", stages)
        ((_, harvest),) = job.parts
        report = harvest.out.with_suffix(".report.json")
        if not report.is_file() or not (config.resume or json.loads(report.read_text(encoding="utf-8"))["complete"]):
            job.run()
            if not harvest.complete:
                tell(f"{len(harvest.kept)} of {harvest.target} tasks were made: {harvest.ended}")
    tell(f"made tasks {harvest.out}")
    reader = config.task_reader.model_copy(update={"augment": AugmentConfig(file=str(harvest.out))})
    astune = config.model_copy(update={"task_reader": reader})
    return replace(loaded, config=loaded.config.model_copy(update={"astune": astune}))


def list_made_tasks(loaded: LoadedConfig, run_dir: Path) -> None:
    """Copy the made tasks, what was dropped and the report into the folder of the run."""
    for number, stage in enumerate(loaded.stages or (loaded,), start=1):
        file = stage.config.astune.task_reader.augment.file
        if file is None or not run_dir.is_dir():
            continue
        stem = f"made_tasks_{number}" if loaded.stages else "made_tasks"
        for made in Path(file).parent.glob(f"{Path(file).stem}.*"):
            shutil.copyfile(made, run_dir / made.name.replace(Path(file).stem, stem, 1))

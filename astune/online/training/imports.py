"""A checkpoint of a training run becomes a version, so that there is one registry and not two."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from astune.config.schema import Config
from astune.config.source import read_saved
from astune.context_tracker.model_dir import load_chat_format
from astune.errors import ConfigError, ModelError, RunFolderError, StoreError
from astune.monitor.checkpoint_names import find_checkpoint
from astune.monitor.disk import writing
from astune.monitor.metrics import read_metrics
from astune.monitor.run_dir import COMPLETE, RunDir
from astune.online.place import online_folder, versions_folder
from astune.online.store import audit, leases, versions
from astune.online.store.feedback.states import lock
from astune.online.store.leases import name_of
from astune.online.store.versions import ModelVersion
from astune.online.training.checkpoint import new_folder, put_in_place, seal
from astune.online.training.probes import make_probes
from astune.online.training.weights import make_online_estimator
from astune.store.database import Database
from astune.training.engine import Engine, LoadEngine

IMPORT, IMPORT_SECONDS = "import", 3600.0
"""A lease: trainers delete no folder meanwhile."""


async def import_checkpoint(
    config: Config, database: Database, load_engine: LoadEngine, text: str, parent: ModelVersion, now: float
) -> ModelVersion:
    """Add the checkpoint that `text` names (see `find_checkpoint`) as a version made from `parent`. No alias moves.

    Raises:
        ConfigError: it is no checkpoint of a run, or one of another model, tokenizer or chat template.
        RunFolderError: a file of it is damaged, or the disk does not take the copy.
        StoreError: another process imports one.
    """
    checkpoint = find_checkpoint(text)
    if checkpoint is None:
        raise ConfigError(f"{text}: expected a run as runs/project/name, RUN@best or RUN@40, or a checkpoint of one")
    engine = load_engine(config.astune)
    _check_same_model(engine, config, checkpoint)
    with _lease(database, now), new_folder(versions_folder(online_folder(config))) as folder, writing(folder):
        shutil.copytree(checkpoint, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns(COMPLETE))
        make_online_estimator(config.astune.algorithm).save(folder)
        probes = await make_probes(engine.learner, engine.chat_format)
        sha256 = seal(folder)
        with database.reading() as connection:
            name = put_in_place(folder, versions.newest(connection).number + 1, sha256)
        made = ModelVersion(
            0,
            parent.number,
            folder=name,
            sha256=sha256,
            made=now,
            config=_settings(checkpoint),
            figures=_figures(checkpoint),
            probes=probes,
            origin=str(checkpoint.absolute()),
        )

        def add(connection: sa.Connection) -> ModelVersion:
            lock(connection)
            version = replace(made, number=versions.newest(connection).number + 1)  # a trainer may have been faster
            versions.add(connection, version)
            said = {"origin": version.origin, "parent": parent.number}
            audit.say(connection, "command", "version imported", str(version.number), now=now, **said)
            return version

        return database.write(add)


@contextmanager
def _lease(database: Database, now: float) -> Iterator[None]:
    """Keep trainers from deleting the folder, which no row names yet."""
    holder = name_of(os.getpid())
    with database.writing() as connection:
        lock(connection)
        if not leases.take(connection, IMPORT, holder, now, IMPORT_SECONDS):
            raise StoreError(f"{leases.find_holder(connection, IMPORT, now)} imports a version now: wait until it has")
    try:
        yield
    finally:
        with database.writing() as connection:
            leases.give_back(connection, IMPORT, holder)


def _check_same_model(engine: Engine, config: Config, checkpoint: Path) -> None:
    """Load the checkpoint into the model of the service."""
    of_ours = f"{checkpoint} is not of astune.model.path, {config.astune.model.path!r}"
    try:
        other = load_chat_format(config.astune.model, checkpoint).find_difference(engine.chat_format)
    except ModelError as error:
        raise ConfigError(f"{of_ours}: {error}") from error
    if other is not None:
        raise ConfigError(f"{of_ours}: it has another {other}, so that its tokens mean something else")
    try:
        engine.learner.load(checkpoint)
    except RunFolderError as error:
        raise ConfigError(f"{of_ours}: {error!s:.600}") from error


def _settings(checkpoint: Path) -> Mapping[str, Any]:
    """The part of the run's configuration that the checkpoint was made by."""
    section = read_saved(RunDir(checkpoint.parents[1]).config_path).get("astune") or {}
    return {name: section[name] for name in ("backbone", "model", "algorithm", "trainer", "seed") if name in section}


def _figures(checkpoint: Path) -> Mapping[str, float]:
    """The run's figures of the checkpoint's step."""
    path, step = RunDir(checkpoint.parents[1]).metrics_path, int(checkpoint.name.removeprefix("step_"))
    rows = read_metrics(path) if path.exists() else []
    return {name: value for row in rows if row["step"] == step for name, value in row.items()} | {"step": float(step)}

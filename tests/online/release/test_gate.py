"""The gate with real models: a child process plays held-out tasks, and the release does what came of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("agentscope.middleware", reason="the tasks are played by an agent of AgentScope 2.x")
from safetensors.torch import load_file, save_file

from astune.backbone.local.engine import load_engine
from astune.config.load import load_config
from astune.online.place import online_folder, store_url, versions_folder
from astune.online.release.gate import ChildGate, gate_folder
from astune.online.release.releaser import Releaser
from astune.online.store import releases, versions
from astune.online.store.versions import AS_CONFIGURED, ModelVersion
from astune.online.training.checkpoint import new_folder, put_in_place, seal
from astune.store import open_database
from astune.store.database import Database
from astune.store.tables import commits
from astune.support.resources import tutorial_dir
from tests.store.rows import add

CONF = tutorial_dir() / "online_release" / "release.yaml"


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    with closing(open_database(f"sqlite:///{tmp_path / 'online.db'}")) as opened:
        with opened.writing() as connection:
            versions.register(connection, AS_CONFIGURED)
        yield opened


@pytest.mark.slow
@pytest.mark.parametrize(
    ("factor", "state", "verdict"),
    [(-1.0, "rolled_back", "worse"), pytest.param(1.0, "testing", "passed", marks=pytest.mark.release)],
)
def test_the_gate_lets_a_version_to_users_unless_it_can_do_less(
    tmp_path: Path, database: Database, factor: float, state: str, verdict: str
) -> None:
    keys = [f"astune.online.folder={tmp_path}", "astune.online.release.gate_tasks=24"]
    config = load_config(CONF, keys, for_run=False).config
    assert store_url(config) == database.address
    with new_folder(versions_folder(online_folder(config))) as folder:
        load_engine(config.astune).learner.save(folder)
        (weights,) = folder.glob("*.safetensors")
        save_file({name: factor * value for name, value in load_file(weights).items()}, weights, {"format": "pt"})
        sha256 = seal(folder)
        name = put_in_place(folder, 1, sha256)
    with database.writing() as connection:
        made = add(connection, commits, by="timer", state="made", version=1)
        versions.add(connection, ModelVersion(1, 0, made, name, sha256))
    releaser = Releaser(config, database, ChildGate(["--conf", str(CONF), *keys], tmp_path, 0.05))
    assert [found.state for found in (releaser.tick(), releaser.tick()) if found] == ["gate", state]
    releaser.leave()
    with database.reading() as connection:
        (release,) = releases.recent(connection, 1)
    assert release.figures["gate"]["verdict"] == verdict, release.reason
    assert (gate_folder(tmp_path, release.number) / "challenger").is_dir()

"""A backup as the page says it, with versions that are made while it is."""

import os
import re
import shutil
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from astune.online.store import versions
from astune.online.training.checkpoint import check
from astune.store import tables
from astune.store.database import open_database
from tests.online.training.world import World

PAGE = Path(__file__).parents[3] / "docs" / "online_operations.md"
SQLITE3 = f"""#!{sys.executable}
import sqlite3, sys
sqlite3.connect(sys.argv[1]).backup(sqlite3.connect(sys.argv[2].removeprefix(".backup ")))
"""


@pytest.fixture
def path(tmp_path: Path) -> str:
    """Where commands are found; SQLite's own need not be installed."""
    if shutil.which("sqlite3") is None:
        (tmp_path / "sqlite3").write_text(SQLITE3)
        (tmp_path / "sqlite3").chmod(0o755)
    return f"{tmp_path}{os.pathsep}{os.environ['PATH']}"


@pytest.mark.fault(
    "Online training",
    "versions are made while a backup is",
    "store and folders of the copy fit: training goes on from its newest version",
)
def test_a_backup_as_documented_is_whole_however_many_versions_are_made_meanwhile(tmp_path: Path, path: str) -> None:
    (block,) = re.findall(r"\*\*Backup\.\*\*.*?```bash[^\n]*\n(.*?)```", PAGE.read_text(), re.DOTALL)
    commands = block.splitlines()
    assert len(commands) == 5
    folder, back = tmp_path / "runs" / "shop" / "assistant", tmp_path / "back"
    with closing(open_database(f"sqlite:///{tmp_path}/online.db")) as database:
        world = World(database, folder)
        trainer = world.trainer()

        def make_versions() -> None:
            for _ in range(3):
                for reward in (1.0, 0.0):
                    world.rate(reward, version=len(world.rows(tables.versions)))
                assert world.commit(trainer).state == "made"

        make_versions()
        for command in commands:
            subprocess.run(command, shell=True, check=True, cwd=tmp_path, env={**os.environ, "PATH": path})
            make_versions()
        trainer.leave()
        assert len(list((folder / "versions").iterdir())) == 2, "afterwards the trainer deletes old versions again"
    back.mkdir()
    (tmp_path / "copy_of_versions").rename(back / "versions")
    with closing(open_database(f"sqlite:///{tmp_path}/copy.db")) as database:
        with database.reading() as connection:
            newest = versions.newest(connection)
        assert newest.number == 6
        check(back / "versions" / str(newest.folder), newest.sha256)
        world = World(database, back)
        world.now = 10_000.0
        for reward in (1.0, 0.0):
            world.rate(reward, version=newest.number)
        assert world.commit().version == 7

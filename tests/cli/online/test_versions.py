"""`astune online versions` on the store and folder of a service."""

import asyncio
import json
import re
import shutil
from contextlib import closing
from pathlib import Path

import pytest
import yaml

from astune.cli import main
from astune.config.load import load_config
from astune.errors import ConfigError, StoreError
from astune.monitor.run_dir import COMPLETE, RunDir
from astune.online.store import aliases, leases, versions
from astune.online.store.versions import ModelVersion
from astune.online.training.imports import IMPORT, import_checkpoint
from astune.store.database import Database, open_database
from astune.support.resources import tiny_model_dir
from astune.testing.engine import STATE_FILE
from tests.online.training.world import COUNTING, World


class Service:
    """A configuration, its store, and three versions that commits made."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.conf = folder, folder / "service.yaml"
        store = f"sqlite:///{folder}/online.db"
        online = {"folder": str(folder), "store": store, "commit": {"min_episodes": 1, "every_seconds": None}}
        online["serve"] = {"pin_seconds": 0.5}
        settings = {"online": online, "trainer": {"keep_checkpoints": 1}, "model": {"device": "cpu"}}
        self.conf.write_text(yaml.safe_dump({"astune": settings}))
        self.config = load_config(self.conf, for_run=False).config
        self.database = open_database(store)
        world = World(self.database, folder, self.config)
        (folder / "keep_versions").touch()
        for _ in range(3):
            world.rate(1.0)
            world.rate(0.0)
            assert world.commit().state == "made"
        (folder / "keep_versions").unlink()

    def run(self, *words: str) -> int:
        return main(["online", "versions", *words, "--conf", str(self.conf)])


@pytest.fixture
def service(tmp_path: Path):
    made = Service(tmp_path)
    with closing(made.database):
        yield made


def champion(database: Database) -> int:
    with database.reading() as connection:
        return aliases.champion(connection).number


def folders(service: Service) -> list[str]:
    return sorted(path.name[:7] for path in (service.folder / "versions").iterdir())


def test_what_an_operator_does_in_a_bad_night(service: Service, capsys: pytest.CaptureFixture[str]) -> None:
    assert service.run() == 0
    shown = capsys.readouterr().out
    assert re.search(r"v3 +champion +v2 +\S+ \S+ UTC +commit 3", shown) and re.search(r"v2 +previous +v1", shown)
    assert service.run("name", "v2", "v1.0") == 0 and capsys.readouterr().out
    assert service.run("rollback", "champion", "--forget", "--json") == 0
    out = capsys.readouterr().out
    assert json.loads(out) == {"champion": 2, "away": [3], "feedback": 2}
    assert champion(service.database) == 2
    assert service.run("show", "v3") == 0
    shown = capsys.readouterr().out
    assert "held        rolled back: by hand" in shown and "2 episodes: rolled_back" in shown
    assert service.run("diff", "v1.0", "v3") == 0
    assert "common ancestor  v2, 1 steps apart" in (shown := capsys.readouterr().out) and "differs" in shown
    assert service.run("promote", "v3", "--json") == 0 and champion(service.database) == 3
    assert service.run("promote", "champoin") != 0 and "Did you mean 'champion'" in capsys.readouterr().err
    assert service.run("rollback", "v3", "--to", "v1") == 0 and champion(service.database) == 1
    weights = next(service.folder.glob("versions/v000003-*")) / STATE_FILE
    weights.write_text("{}")
    assert service.run("promote", "v3") != 0 and "is not as it was written" in capsys.readouterr().err
    assert champion(service.database) == 1


def test_prune_deletes_what_nothing_needs(service: Service, capsys: pytest.CaptureFixture[str]) -> None:
    assert service.run("prune", "--dry-run") == 0 and folders(service) == ["v000001", "v000002", "v000003"]
    assert service.run("prune") == 0 and folders(service) == ["v000002", "v000003"]
    assert "v2     stays: it is previous" in capsys.readouterr().out
    assert service.run("promote", "v1") != 0 and "v1 was pruned: its files are gone" in capsys.readouterr().err


def run_of(folder: Path) -> Path:
    """A run with a checkpoint of step 3, as an engine of `COUNTING` saves one."""
    run = RunDir(folder / "runs" / "shop" / "trained")
    run.path.mkdir(parents=True)
    run.config_path.write_text(yaml.safe_dump({"astune": {"seed": 7}}))
    with run.save_checkpoint(3) as checkpoint:
        for name in ("tokenizer.json", "tokenizer_config.json", "config.json", "chat_template.jinja"):
            if (tiny_model_dir() / name).is_file():
                shutil.copy(tiny_model_dir() / name, checkpoint)
        COUNTING(load_config(None, for_run=False).config.astune).learner.save(checkpoint)
    return run.path


def test_a_checkpoint_of_a_run_becomes_a_version(service: Service) -> None:
    run = run_of(service.folder)

    def bring(text: str) -> ModelVersion:
        parent = versions.AS_CONFIGURED
        return asyncio.run(import_checkpoint(service.config, service.database, COUNTING, text, parent, 5.0))

    made = bring(str(run))
    assert (made.number, made.parent, made.config, made.figures["step"]) == (4, 0, {"seed": 7}, 3.0)
    assert made.origin is not None and made.origin.endswith("step_000003")
    assert made.probes is not None and len(made.probes["rows"]) == 8
    assert service.run("promote", "v4") == 0 and champion(service.database) == 4
    with pytest.raises(ConfigError, match="expected a run as"):
        bring("nowhere/at/all")
    with service.database.writing() as connection:
        leases.take(connection, IMPORT, "another", 4.0, 100.0)
    with pytest.raises(StoreError, match="another imports a version now"):
        bring(str(run))
    checkpoint = Path(made.origin)
    (checkpoint / "tokenizer.json").write_text((checkpoint / "tokenizer.json").read_text().replace('"a"', '"aa"', 1))
    shutil.move(run, foreign := service.folder / "foreign")
    complete = shutil.ignore_patterns(COMPLETE)
    with RunDir(foreign).save_checkpoint(4) as copy:
        shutil.copytree(foreign / "checkpoints" / "step_000003", copy, dirs_exist_ok=True, ignore=complete)
    with pytest.raises(ConfigError, match=r"is not of astune\.model\.path"):
        bring(f"{foreign}@4")

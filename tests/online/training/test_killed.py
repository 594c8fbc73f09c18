"""A trainer that is killed has made a version, or has changed nothing: at every phase, and at random moments."""

import asyncio
import os
import random
import signal
import warnings
from collections import Counter
from pathlib import Path

import pytest

from astune.monitor.run_dir import COMPLETE
from astune.online.store import commits, versions
from astune.online.training.checkpoint import check
from astune.online.training.commit import LEASE_SECONDS
from astune.online.training.trainer import MOST_BEGINNINGS
from astune.store import tables
from astune.store.database import open_database
from astune.support.resources import tiny_model_dir
from tests.online.training.world import World, config_of
from tests.store.databases import database as database
from tests.store.databases import url as url
from tests.training.killed import Killed

KILLS = 12


def kill_at(world: World, wanted: str) -> None:
    """The next trainer dies when it comes to that phase, and is not heard of any more."""

    def phase(name: str) -> None:
        if name == wanted:
            raise Killed

    with pytest.raises(Killed):
        world.tick(world.trainer(phase))
    world.now += LEASE_SECONDS + 1


def folders(world: World) -> list[str]:
    return sorted(path.name for path in (world.folder / "versions").glob("*"))


def train_in_a_child(url: str, world: World, seconds: float) -> None:
    """A process of its own that makes commits until it is killed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads: none of them is needed
        child = os.fork()
    if child:
        os.waitpid(child, 0)
        return
    try:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)  # which ends a process as SIGKILL does
        signal.setitimer(signal.ITIMER_REAL, seconds)
        opened = World(open_database(url), world.folder, world.config)
        opened.now = world.now
        trainer = opened.trainer()
        while asyncio.run(trainer.tick()) is not None:
            pass
    finally:
        os._exit(0)


@pytest.mark.fault(
    "Online training", "the trainer is killed (SIGKILL) at random moments", "every rated answer is trained once"
)
def test_killed_at_random_moments_every_answer_is_trained_once(tmp_path: Path) -> None:
    draw, url = random.Random(7), f"sqlite:///{tmp_path}/store.db"
    database = open_database(url)
    world = World(database, tmp_path / "service")
    rated_ids = []
    for _ in range(KILLS):
        rated_ids += [*world.rate(1.0), *world.rate(0.25)]
        world.ask()
        database.close()
        train_in_a_child(url, world, draw.uniform(0.001, 0.12))
        world.now += LEASE_SECONDS + 1
    trainer = world.trainer()
    while world.tick(trainer) is not None:
        pass
    failed = {row["error"] for row in world.rows(tables.commits) if row["state"] not in ("made", "empty")}
    assert failed <= {f"{MOST_BEGINNINGS} trainers died in it; what was rated waits for another commit"}
    trained = Counter(row["msg_id"] for row in world.rows(tables.episode_messages))
    assert trained == Counter(rated_ids)
    turns = Counter(row["turn_id"] for row in world.rows(tables.samples))
    assert set(turns.values()) == {1}
    with database.reading() as connection:
        made = versions.every(connection)
        assert not commits.with_state(connection, "training")
    assert [version.number for version in made] == list(range(1, len(made) + 1))
    assert folders(world) == sorted(str(version.folder) for version in made[-2:])
    for version in made[-2:]:
        check(world.folder / "versions" / str(version.folder), version.sha256)
    database.close()


def contents(folder: Path) -> dict[str, bytes]:
    """All files by name. Of weights the tensors: the header of peft's file has its marks in any order."""
    found = {path.name: path.read_bytes() for path in folder.iterdir() if path.name != COMPLETE}
    for name in [name for name in found if name.endswith(".safetensors")]:
        size = int.from_bytes(found[name][:8], "little")
        found[name] = found[name][8 + size :]
    return found


@pytest.mark.parametrize("lora", [None, 4], ids=["weights", "adapter"])
def test_what_comes_after_a_kill_is_the_same_bit_for_bit(tmp_path: Path, lora: int | None) -> None:
    pytest.importorskip("torch")
    if lora:
        pytest.importorskip("peft")
    from astune.backbone.local.engine import load_engine

    model = {"device": "cpu", "path": str(tiny_model_dir()), "lora": {"rank": lora}}
    config = config_of(astune={"model": model, "trainer": {"learning_rate": 1e-3, "updates_per_step": 2}}, max_kl=None)
    found = []
    for phases in ((), ("updated", "renamed")):
        database = open_database(f"sqlite:///{tmp_path}/{len(phases)}.db")
        world = World(database, tmp_path / str(len(phases)), config, load_engine)
        for number in range(2):
            for token in range(4):
                world.rate(float(token % 2), prompt=(1, 2, 3), output=(40 + token, 50 + number), logprobs=(-3.0, -4.0))
            world.ask()
            for phase in phases if number else ():
                kill_at(world, phase)
            row = world.tick(trainer := world.trainer())
            trainer.leave()
            assert row is not None and row.state == "made" and row.figures is not None
        found.append({name: contents(world.folder / "versions" / name) for name in folders(world)})
        assert row.figures["kl/from_version_before"] > 0
        database.close()
    assert list(found[0].values()) == list(found[1].values())
    assert lora or list(found[0]) == list(found[1]), "folders are named after the digest of all their files"

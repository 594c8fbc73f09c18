"""A trainer whose disk takes nothing waits for room: in a process whose files may not grow."""

import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from astune.store import tables
from astune.store.database import open_database
from tests.online.training.world import World

CHILD = """
import asyncio, logging, sys
from pathlib import Path
from astune.config.schema import Config
from astune.online.training import trainer
from astune.online.training.log import CommitLog
from astune.store.database import open_database
from tests.online.training.world import World

logging.basicConfig(stream=sys.stdout, format="%(message)s")
trainer.POLL_SECONDS = trainer.RETRY_SECONDS = 0.01
folder = Path(sys.argv[1])
world = World(open_database(f"sqlite:///{folder}/store.db"), folder)
log = CommitLog(folder, world.database, Config())


def told(_):
    for row in log.catch_up():
        print(row.state, row.version, flush=True)


print("ready", flush=True)
asyncio.run(world.trainer().run(told))
"""


@pytest.mark.fault(
    "Online training",
    "the disk of `train` is full",
    "it says so once and tries again: nothing is half written, and training goes on as soon as there is room",
)
def test_a_trainer_waits_for_room_and_goes_on_by_itself(tmp_path: Path) -> None:
    database = open_database(f"sqlite:///{tmp_path}/store.db")
    world = World(database, tmp_path)
    child = subprocess.Popen([sys.executable, "-c", CHILD, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    try:
        assert child.stdout.readline() == "ready\n"
        for version in (1, 2):
            most = resource.prlimit(child.pid, resource.RLIMIT_FSIZE)
            resource.prlimit(child.pid, resource.RLIMIT_FSIZE, (0, most[1]))
            world.rate(1.0)
            world.rate(0.25)
            world.ask()
            assert child.stdout.readline().startswith("training waits, as nothing can be written: ")
            assert [row["state"] for row in world.rows(tables.feedback)].count("counts") == 2
            assert len(world.rows(tables.versions)) == len(list(tmp_path.glob("versions/*"))) == version - 1
            resource.prlimit(child.pid, resource.RLIMIT_FSIZE, most)
            said = {child.stdout.readline() for _ in range(2)}
            assert said == {f"made {version}\n", "what is written is taken again: training goes on\n"}
        child.send_signal(signal.SIGINT)
        child.communicate()
    finally:
        child.kill()
        child.wait()
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 2
    database.close()

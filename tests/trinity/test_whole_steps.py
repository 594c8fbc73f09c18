"""Which rows make a train step, with Trinity's own queue on a real Ray."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("trinity")

import ray
from trinity.buffer import get_buffer_writer
from trinity.common.config import BufferConfig, ExperienceBufferConfig, TrainerInput
from trinity.common.experience import EID, Experience

from astune.backbone.ray_cluster.connect import patient_start
from astune.backbone.trinity.explorer.experience import filler
from astune.backbone.trinity.explorer.samples import BATCH, ROWS
from astune.backbone.trinity.shared.mailbox import find_mailbox, open_mailbox
from astune.backbone.trinity.trainer import whole_steps
from astune.backbone.trinity.trainer.whole_steps import WholeSteps


@pytest.fixture(scope="module", autouse=True)
def joined() -> Iterator[Any]:
    with patient_start():
        ray.init(
            address="local",
            num_cpus=2,
            include_dashboard=False,
            log_to_driver=False,
            logging_level="ERROR",
            namespace="steps",
            object_store_memory=100 * 2**20,
        )
    mailbox = open_mailbox(None, "explorer")
    yield mailbox
    ray.shutdown()


def buffer(name: str, tmp_path: Path) -> BufferConfig:
    config = ExperienceBufferConfig(
        name=name, storage_type="queue", path=str(tmp_path / "rows.jsonl"), schema_type="experience", batch_size=2
    )
    config.ray_namespace = "steps"
    return BufferConfig(trainer_input=TrainerInput(experience_buffer=config))


def rows(batch: int, count: int, version: int) -> list[Experience]:
    made = [filler(EID(batch=str(batch), task="0", run=number)) for number in range(count)]
    for row in made:
        row.info |= {ROWS: count, BATCH: batch, "model_version": version, "episode_id": "e"}
    return made


def sampled(config: BufferConfig, batches: list[list[Experience]], steps: int, **settings: Any) -> list[Any]:
    """(explored batch, number of rows, batches dropped before it) of each train step."""

    async def play() -> list[Any]:
        writer = get_buffer_writer(config.trainer_input.experience_buffer)
        await writer.acquire()
        for batch in batches:
            await writer.write(batch)
        strategy = WholeSteps(config, **settings)
        found = []
        for step in range(1, steps + 1):
            made, metrics, _ = await strategy.sample(step)
            found.append((strategy.state_dict()["batch"], len(made), metrics["astune/stale_batches"]))
        await writer.release()
        with pytest.raises(StopAsyncIteration):
            await strategy.sample(steps + 1)
        return found

    return asyncio.run(play())


def test_a_step_trains_one_explored_batch_however_many_rows_it_has(tmp_path: Path) -> None:
    batches = [rows(1, 3, 0), rows(2, 1, 1), rows(3, 5, 2)]
    assert sampled(buffer("whole", tmp_path), batches, 3) == [(1, 3, 0.0), (2, 1, 0.0), (3, 5, 0.0)]


@pytest.mark.fault("Runs and resuming", "episodes were sampled with weights that are too old", "dropped and counted")
def test_batches_of_policies_that_are_too_old_are_dropped_and_counted(tmp_path: Path) -> None:
    """At step 1 version 0 is of age 0; at step 2 it is of age 1."""
    batches = [rows(1, 2, 0), rows(2, 2, 0), rows(3, 2, 0), rows(4, 2, 1)]
    assert sampled(buffer("fresh", tmp_path), batches, 2, max_staleness=0) == [(1, 2, 0.0), (4, 2, 2.0)]


def test_a_trainer_that_waits_for_rows_ends_when_the_user_wants_to_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(whole_steps, "WAIT", 0.1)
    strategy, reads = WholeSteps(buffer("stop", tmp_path)), []
    read = strategy._buffer.read
    monkeypatch.setattr(strategy._buffer, "read", lambda **settings: reads.append(settings) or read(**settings))

    async def play() -> None:
        waiting = asyncio.ensure_future(strategy.sample(1))
        while len(reads) < 4:  # it has waited in vain three times
            await asyncio.sleep(0.01)
            assert not waiting.done()
        await find_mailbox().stop.remote()
        with pytest.raises(StopAsyncIteration):
            await waiting

    asyncio.run(play())


def test_a_strategy_knows_after_a_restart_which_batch_it_trained_last(tmp_path: Path) -> None:
    strategy = WholeSteps(buffer("state", tmp_path))
    strategy.load_state_dict({"batch": 7})
    assert strategy.state_dict() == {"batch": 7}

"""Workers that are lost: what is played again, and where. The workers only do as they are told."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from astune.errors import SetupError, TrainingError
from astune.rollout.setup import Attempt
from astune.training.rollout_workers.pool import MOST_LOST, EpisodeWorkers
from astune.types import Episode, Sampling, StopReason, Task

ATTEMPT = Attempt(Task("t", "?"), "train/1/t/0", 5, Sampling(4))


class ToldWorker:
    """Plays what it is given as soon as it is told to, or is lost."""

    def __init__(self, machine: str, error: str = "") -> None:
        self.machine, self.error = machine, error
        self.ended = asyncio.Event()
        self.ready = False
        self.exit = f"{machine} is gone"
        self.playing: list[asyncio.Future[Episode | None]] = []
        self.left = False

    @property
    def load(self) -> int:
        return len(self.playing)

    async def begin(self) -> str:
        await turns(5)  # which is why the others get what one that is lost was at
        self.ready = not self.error
        if self.error:
            self.ended.set()
        return self.error

    async def play(self, number: int, attempt: Attempt, late: asyncio.Event | None = None) -> Episode | None:
        self.playing.append(asyncio.get_running_loop().create_future())
        return await self.playing[-1]

    def end_all(self) -> None:
        for one in self.playing:
            one.set_result(Episode(ATTEMPT.episode_id, ATTEMPT.task, (), (), StopReason.COMPLETED))
        self.playing.clear()

    def lose(self) -> None:
        self.ready = False
        self.ended.set()
        for one in self.playing:
            one.set_result(None)
        self.playing.clear()

    async def leave(self) -> None:
        self.left = True

    def kill(self) -> None:
        self.lose()


class Cluster:
    """Workers on machines, in the order in which they are begun. The last machine gets all that follow."""

    def __init__(self, machines: Sequence[str], errors: Sequence[str] = ()) -> None:
        self.machines, self.errors = machines, errors
        self.begun: list[ToldWorker] = []

    def new(self, name: str) -> ToldWorker:
        number = len(self.begun)
        error = self.errors[number] if number < len(self.errors) else ""
        self.begun.append(ToldWorker(self.machines[min(number, len(self.machines) - 1)], error))
        return self.begun[-1]


async def turns(number: int = 50) -> None:
    """Let all that can go on do so."""
    for _ in range(number):
        await asyncio.sleep(0)


async def test_a_lost_machine_costs_an_episode_one_play_though_its_workers_are_missed_one_by_one() -> None:
    cluster = Cluster(["a", "a", "a", "b"])
    async with EpisodeWorkers(4, cluster.new) as player:
        playing = [asyncio.create_task(player.play(ATTEMPT)) for _ in range(4)]
        await turns()
        for worker in cluster.begun[:3]:  # nobody knows yet that they share their fate
            worker.lose()
            await turns()
        for worker in cluster.begun:
            assert worker.ready == (worker.machine == "b")
            worker.end_all()
        episodes = await asyncio.gather(*playing)
    assert sorted(episode.metrics.get("played_again", 0.0) for episode in episodes) == [0.0, 1.0, 1.0, 1.0]
    assert all(episode.stop_reason is StopReason.COMPLETED for episode in episodes)


async def test_an_attempt_goes_to_the_worker_with_the_fewest_also_on_the_machine_of_one_that_was_lost() -> None:
    cluster = Cluster(["a"])
    async with EpisodeWorkers(2, cluster.new) as player:
        playing = [asyncio.create_task(player.play(ATTEMPT)) for _ in range(5)]
        await turns()
        assert sorted(worker.load for worker in cluster.begun) == [2, 3]
        cluster.begun[0].lose()
        await turns()
        assert len(cluster.begun) == 3 and sum(worker.load for worker in cluster.begun[1:]) == 5
        for worker in cluster.begun[1:]:
            worker.end_all()
        assert len(await asyncio.gather(*playing)) == 5


async def test_an_episode_lost_twice_is_data_with_its_cause() -> None:
    cluster = Cluster(["a", "b"])
    async with EpisodeWorkers(2, cluster.new) as player:
        playing = asyncio.create_task(player.play(ATTEMPT))
        for _ in range(2):
            await turns()
            next(worker for worker in cluster.begun if worker.load).lose()
        episode = await playing
    assert episode.stop_reason is StopReason.ERROR and episode.metrics == {"played_again": 1.0}
    assert episode.error is not None and episode.error.kind == "WorkerDied"
    assert episode.error.message.endswith("the one that played it again: b is gone")


async def test_a_worker_that_cannot_begin_again_is_tried_again() -> None:
    cluster = Cluster(["a"], errors=["", "no memory", "no memory"])
    async with EpisodeWorkers(1, cluster.new) as player:
        playing = asyncio.create_task(player.play(ATTEMPT))
        await turns()
        cluster.begun[0].lose()
        await turns()
        assert len(cluster.begun) == 4
        cluster.begun[3].end_all()
        assert (await playing).metrics == {"played_again": 1.0}


async def test_workers_that_cannot_begin_any_more_end_the_run_with_the_reason() -> None:
    cluster = Cluster(["a"], errors=["", *["no memory"] * 99])
    async with EpisodeWorkers(1, cluster.new) as player:
        playing = asyncio.create_task(player.play(ATTEMPT))
        await turns()
        cluster.begun[0].lose()
        with pytest.raises(TrainingError, match=f"{MOST_LOST} workers .* the last by a is gone"):
            await playing
        assert len(cluster.begun) == MOST_LOST


async def test_all_workers_may_be_lost_at_once_again_and_again_if_episodes_end_between() -> None:
    cluster = Cluster(["a"])
    async with EpisodeWorkers(2, cluster.new) as player:
        for _ in range(2 * MOST_LOST):
            playing = asyncio.create_task(player.play(ATTEMPT))
            await turns()
            for worker in cluster.begun[-2:]:
                worker.lose()
            await turns()
            for worker in cluster.begun[-2:]:
                worker.end_all()
            assert (await playing).stop_reason is StopReason.COMPLETED


async def test_a_worker_that_cannot_begin_at_first_begins_no_run() -> None:
    cluster = Cluster(["a", "b"], errors=["", "no workflow there"])
    with pytest.raises(SetupError, match="no workflow there"):
        async with EpisodeWorkers(2, cluster.new):
            raise AssertionError
    assert not any(worker.ready for worker in cluster.begun)


async def test_workers_are_told_to_leave_before_they_end() -> None:
    cluster = Cluster(["a", "b"])
    async with EpisodeWorkers(2, cluster.new):
        pass
    await turns()
    assert len(cluster.begun) == 2 and all(worker.left and worker.ended.is_set() for worker in cluster.begun)

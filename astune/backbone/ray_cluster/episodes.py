"""Episodes that are played in actors of Ray's, spread over the nodes of the cluster that the run has joined."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, TypeAlias, TypeVar

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from astune.backbone.ray_cluster.episode_actor import EpisodeActor, StartActor
from astune.backbone.ray_cluster.nodes import live_nodes
from astune.config.schema import AstuneConfig
from astune.context_tracker.prompt.chat_format import ChatFormat
from astune.errors import TrainingError, named
from astune.rollout.player import Attempt
from astune.rollout.quorum import late_before
from astune.support.concurrency import all_or_none
from astune.training.rollout_workers.messages import EngineFailure, read_episode
from astune.training.rollout_workers.output import repeat
from astune.training.rollout_workers.pool import EpisodeWorkers
from astune.training.rollout_workers.process import LEAVE_SECONDS, STOP_SECONDS
from astune.types import Episode, Policy
from astune.workflow.notes import Notes

T = TypeVar("T")
Remember: TypeAlias = Callable[[Sequence[int]], None]

LONGEST_START = 300.0
"""Seconds for Ray to start the process of an actor, which imports verl and torch; `setup` comes on top."""
CALLS_BESIDES = 64
"""Calls of an actor that may be under way beside attempts: those that end one, and those of attempts that do not."""


def in_actors(
    policy: Policy, chat_format: ChatFormat, remember: Remember, config: AstuneConfig, notes: Notes
) -> EpisodeActors:
    """What plays episodes in `astune.rollout.workers` actors. `policy` goes to each of them; `remember` is given
    prompts with their answers, some of each episode's."""
    level = logging.getLogger().getEffectiveLevel()
    start = StartActor(config, chat_format, policy, level, os.getcwd(), dict(os.environ))
    return EpisodeActors(ray.put(start), config, notes, remember)


class EpisodeActors(EpisodeWorkers["RayWorker"]):
    """Workers whose model calls go to the servers and pass nothing of this process."""

    def __init__(self, start: ray.ObjectRef, config: AstuneConfig, notes: Notes, remember: Remember) -> None:
        self._open = asyncio.Event()
        self._open.set()
        self._times_shut = 0
        made = partial(RayWorker, start, config, notes, remember, WorkersByNode(), self._open)
        super().__init__(config.rollout.workers, made)

    @asynccontextmanager
    async def shut(self) -> AsyncIterator[None]:
        """Of one that is lost meanwhile nobody waits for an answer any more; one that begins meanwhile waits."""
        self._open.clear()
        self._times_shut += 1
        number, playing = self._times_shut, [worker for worker in self.workers if worker.ready]
        try:
            await all_or_none([worker.hold(number) for worker in playing])
            yield
        finally:
            self._open.set()
            for worker in playing:
                worker.release(number)


class WorkersByNode:
    """How many workers each node has."""

    def __init__(self) -> None:
        self._taken: Counter[str] = Counter()

    def take(self, nodes: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
        """One of the nodes for one more worker: that with the fewest for its CPUs. One without CPUs is the last."""

        def crowded(node: Mapping[str, Any]) -> tuple[float, str]:
            return (self._taken[node["NodeID"]] + 1) / (node["Resources"].get("CPU") or 1e-6), node["NodeID"]

        node = min(nodes, key=crowded)
        self._taken[node["NodeID"]] += 1
        return node

    def leave(self, node: Mapping[str, Any]) -> None:
        self._taken[node["NodeID"]] -= 1


class RayWorker:
    """A `PoolWorker` that is an actor, on a node that is chosen as it is made, and is ready as soon as `may_play` is
    set."""

    def __init__(
        self,
        start: ray.ObjectRef,
        config: AstuneConfig,
        notes: Notes,
        remember: Remember,
        places: WorkersByNode,
        may_play: asyncio.Event,
    ) -> None:
        self._notes, self._remember, self._places, self._may_play = notes, remember, places, may_play
        self.ended = asyncio.Event()
        self.exit = ""
        self.ready = False
        self.load = 0
        self._node = places.take(live_nodes())
        self.machine = self._node["NodeID"]
        strategy = NodeAffinitySchedulingStrategy(self.machine, soft=False)
        self._actor = (
            ray.remote(EpisodeActor)
            .options(
                num_cpus=0, scheduling_strategy=strategy, max_concurrency=config.rollout.max_concurrent + CALLS_BESIDES
            )
            .remote(start)
        )
        self._listening: asyncio.Task[None] | None = None

    async def begin(self) -> str:
        try:
            await asyncio.wait_for(_answered(self._actor.__ray_ready__.remote()), LONGEST_START)
            error = await _answered(self._actor.open.remote())
        except asyncio.TimeoutError:
            error = f"it has not begun after {LONGEST_START:.0f} s; see `ray status` and Ray's logs there"
        except ray.exceptions.RayError as raised:
            error = _cause(raised)
        if error:
            self._end(error)
            return f"a worker of astune.rollout.workers could not begin: {self.exit}"
        self._listening = asyncio.create_task(self._listen())
        while not self._may_play.is_set():
            await self._may_play.wait()
        self.ready = not self.ended.is_set()
        return self.exit

    async def hold(self, number: int) -> None:
        """Let no model call begin there before `release` of this number, which grows; returns once none is under way,
        or the worker has ended."""
        try:
            await _answered(self._actor.hold.remote(number))
        except ray.exceptions.RayError as error:
            self._end(_cause(error))

    def release(self, number: int) -> None:
        self._actor.release.remote(number)

    async def play(self, number: int, attempt: Attempt, late: asyncio.Event | None = None) -> Episode | None:
        self.load += 1
        playing = asyncio.ensure_future(self._play(number, attempt))
        playing.add_done_callback(_noticed)
        try:
            if await late_before(late, playing):
                self._actor.cut_off.remote(number)
                await asyncio.wait({playing})
        except asyncio.CancelledError:
            self._actor.stop.remote(number)
            await asyncio.wait({playing}, timeout=STOP_SECONDS)
            raise
        finally:
            self.load -= 1
        return playing.result()

    async def _play(self, number: int, attempt: Attempt) -> Episode | None:
        try:
            data = await _answered(self._actor.play.remote(number, attempt))
        except ray.exceptions.RayTaskError as error:
            raise TrainingError(f"{attempt.episode_id} could not be played: {named(error.cause)}") from error
        except ray.exceptions.RayError as error:
            self._end(_cause(error))
            return None
        if data is None:
            return None
        if isinstance(data, EngineFailure):
            raise data.raised()
        episode = read_episode(data, attempt)
        for turn in episode.turns[-1:]:
            self._remember([*turn.prompt_ids, *turn.output_ids])
        return episode

    async def leave(self) -> None:
        self._actor.close.remote()
        assert self._listening is not None
        await asyncio.wait({self._listening}, timeout=LEAVE_SECONDS)

    def kill(self) -> None:
        self._end("it was told to")

    async def _listen(self) -> None:
        """Repeat what is said there, until it is over; a worker that is lost is noticed here, if not before."""
        try:
            while said := await _answered(self._actor.said.remote()):
                for message in said:
                    repeat(message, self._notes)
        except ray.exceptions.RayError as error:
            self._end(_cause(error))

    def _end(self, how: str) -> None:
        if not self.ended.is_set():
            self.ready = False
            self.exit = f"on {self._node['NodeManagerAddress']}, {how}"
            self._places.leave(self._node)
            self.ended.set()
            with contextlib.suppress(ray.exceptions.RayError):
                ray.kill(self._actor)


def _cause(error: Exception) -> str:
    """What Ray says of a worker that is lost, without its list of what it might have been."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}".partition(" Some common causes")[0]


async def _answered(answer: Any) -> Any:
    """What an actor answers; `answer` is Ray's name for it, which can be awaited but is no coroutine."""
    return await answer


def _noticed(playing: asyncio.Future[Any]) -> None:
    """So that asyncio does not report an error that nobody waited for any more."""
    if not playing.cancelled():
        playing.exception()

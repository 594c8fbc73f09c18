"""Episodes that are played in actors of Ray's, spread over the nodes of the cluster that the run has joined."""

from __future__ import annotations

import asyncio
import contextlib
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
from astune.errors import TrainingError, name_error
from astune.rollout.setup import Attempt, late_before
from astune.support.concurrency import all_or_none
from astune.training.rollout_workers.messages import EngineFailure, read_episode
from astune.training.rollout_workers.output import list_levels, repeat
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
    """Make the player of episodes in `astune.rollout.workers` actors. `policy` goes to each of them; `remember` is
    given prompts with their answers, some of each episode."""
    start = StartActor(config, chat_format, policy, list_levels(), os.getcwd(), dict(os.environ))
    return EpisodeActors(ray.put(start), config, notes, remember)


class EpisodeActors(EpisodeWorkers["RayWorker"]):
    """Workers that call the servers directly: no model call passes this process."""

    def __init__(self, start: ray.ObjectRef, config: AstuneConfig, notes: Notes, remember: Remember) -> None:
        self._open = asyncio.Event()
        self._open.set()
        self._times_shut = 0
        made = partial(RayWorker, start, config, notes, remember, WorkersByNode(), self._open)
        super().__init__(config.rollout.workers, made)

    @asynccontextmanager
    async def hold_calls(self) -> AsyncIterator[None]:
        """Hold the model calls of all workers. A worker that is lost meanwhile is not waited for; one that begins
        meanwhile waits itself."""
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
    """The number of workers on each node."""

    def __init__(self) -> None:
        self._taken: Counter[str] = Counter()

    def take(self, nodes: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
        """Choose the node for one more worker: the one with the fewest for its CPUs. A node without CPUs is the
        last."""

        def count_load(node: Mapping[str, Any]) -> tuple[float, str]:
            return (self._taken[node["NodeID"]] + 1) / (node["Resources"].get("CPU") or 1e-6), node["NodeID"]

        node = min(nodes, key=count_load)
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
        name: str,
    ) -> None:
        self._name = name
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
            await asyncio.wait_for(self._actor.__ray_ready__.remote(), LONGEST_START)
            error = await self._actor.open.remote()
        except asyncio.TimeoutError:
            error = f"it has not begun after {LONGEST_START:.0f} s; see `ray status` and Ray's logs there"
        except ray.exceptions.RayError as raised:
            error = _explain(raised)
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
            await self._actor.hold.remote(number)
        except ray.exceptions.RayError as error:
            self._end(_explain(error))

    def release(self, number: int) -> None:
        self._actor.release.remote(number)

    async def play(self, number: int, attempt: Attempt, late: asyncio.Event | None = None) -> Episode | None:
        self.load += 1
        playing = asyncio.ensure_future(self._play(number, attempt))
        playing.add_done_callback(_take_error)
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
            data = await self._actor.play.remote(number, attempt)
        except ray.exceptions.RayTaskError as error:
            raise TrainingError(f"{attempt.episode_id} could not be played: {name_error(error.cause)}") from error
        except ray.exceptions.RayError as error:
            self._end(_explain(error))
            return None
        if data is None:
            return None
        if isinstance(data, EngineFailure):
            raise data.make_error()
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
        """Repeat the messages of the worker until it ends; a worker that is lost is noticed here, if not before."""
        try:
            while said := await self._actor.take_messages.remote():
                for message in said:
                    repeat(message, self._notes, self._name)
        except ray.exceptions.RayError as error:
            self._end(_explain(error))

    def _end(self, how: str) -> None:
        if not self.ended.is_set():
            self.ready = False
            self.exit = f"on {self._node['NodeManagerAddress']}, {how}"
            self._places.leave(self._node)
            self.ended.set()
            with contextlib.suppress(ray.exceptions.RayError):
                ray.kill(self._actor)


def _explain(error: Exception) -> str:
    """Shorten Ray's message about a worker that is lost: without its list of possible causes."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}".partition(" Some common causes")[0]


def _take_error(playing: asyncio.Future[Any]) -> None:
    """Take the error out of an attempt, or asyncio would report it where nobody waits for the attempt any more."""
    if not playing.cancelled():
        playing.exception()

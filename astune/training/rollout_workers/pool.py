"""All workers of a run: attempts are dealt out, a worker that is lost is replaced."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import replace
from functools import partial
from itertools import count
from types import TracebackType
from typing import Generic, Protocol, TypeVar

from astune.config.schema import AstuneConfig
from astune.errors import SetupError, TrainingError
from astune.rollout.setup import PLAYED_AGAIN, Attempt, RolloutSetup
from astune.support.concurrency import all_or_none
from astune.training.engine import Engine
from astune.training.rollout_setup import rollout_setup
from astune.training.rollout_workers.messages import Start, make_unplayed
from astune.training.rollout_workers.output import list_levels
from astune.training.rollout_workers.process import EpisodeProcess
from astune.types import Episode, EpisodeError
from astune.workflow.notes import Notes

logger = logging.getLogger(__name__)


PLAYS = 2
"""How often an attempt is begun whose worker is lost."""
MOST_LOST = 5
"""Times that each worker may be lost, on average, without an episode that ends: all of them may share a machine."""


class PoolWorker(Protocol):
    """Plays attempts somewhere else, from when it is made until it ends, which is once."""

    ended: asyncio.Event
    """Nothing more comes of it."""
    machine: str
    """Where it plays."""

    @property
    def ready(self) -> bool:
        """True if it takes attempts. Once it has ended it does not."""

    @property
    def load(self) -> int:
        """Attempts under way."""

    @property
    def exit(self) -> str:
        """The way in which one has ended."""

    async def begin(self) -> str:
        """Returns once it is ready, or else what keeps it from being so; then it has ended."""

    async def play(self, number: int, attempt: Attempt, late: asyncio.Event | None = None) -> Episode | None:
        """The attempt, unique in `number`, cut off as soon as `late` is set; None if the worker ended. Raises for a
        fault of ASTune's in it."""

    async def leave(self) -> None:
        """Have the workflow torn down and the worker end."""

    def kill(self) -> None:
        """End it at once."""


Worker = TypeVar("Worker", bound=PoolWorker)


def set_up_rollouts(config: AstuneConfig, engine: Engine) -> RolloutSetup:
    """Set up rollouts around an engine: episodes are played in this process, or by `astune.rollout.workers`, where the
    engine has them or in processes of this machine."""
    setup = rollout_setup(config, engine.policy, engine.chat_format)
    if not config.rollout.workers:
        return setup
    player = in_processes(config, engine, setup.notes) if engine.player is None else engine.player(config, setup.notes)
    return replace(setup, player=player)


def in_processes(config: AstuneConfig, engine: Engine, notes: Notes) -> EpisodeWorkers[EpisodeProcess]:
    start = Start(config, engine.chat_format, engine.policy.context_length, list(sys.path), list_levels())
    return EpisodeWorkers(config.rollout.workers, partial(EpisodeProcess, start, engine.policy, engine.rounds, notes))


class EpisodeWorkers(Generic[Worker]):
    """A `Player` of so many workers.

    An attempt goes to the worker with the fewest, whatever its group: groups come together here, where they are judged.
    `new_worker` is given the name of its place, "worker-0", which the one that replaces it has too.
    If the worker is lost, another plays the attempt again from its beginning, under the same name and seed, once.
    """

    def __init__(self, number: int, new_worker: Callable[[str], Worker]) -> None:
        self._number, self._new_worker = number, new_worker
        self._attempts = count()
        self._lost = 0
        """Workers lost since an episode ended."""
        self._failed: TrainingError | None = None
        self._workers: list[Worker] = []
        self._keeping: list[asyncio.Task[None]] = []
        self._replaced = asyncio.Event()

    def hold_calls(self) -> AbstractAsyncContextManager[None]:
        """Nothing to wait for: model calls of processes come back to this one."""
        return nullcontext()

    @property
    def workers(self) -> Sequence[Worker]:
        return tuple(self._workers)

    async def __aenter__(self) -> EpisodeWorkers[Worker]:
        try:
            self._workers.extend(self._new_worker(_name(place)) for place in range(self._number))
            for error in await all_or_none([worker.begin() for worker in self._workers]):
                if error:
                    raise SetupError(error)
        except BaseException:
            self._kill()
            raise
        self._keeping = [asyncio.create_task(self._keep(place)) for place in range(self._number)]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in self._keeping:
            task.cancel()
        try:
            await asyncio.gather(*(worker.leave() for worker in self._workers if worker.ready))
        finally:
            self._kill()

    async def play(self, attempt: Attempt, late: asyncio.Event | None = None) -> Episode:
        number = next(self._attempts)
        how = left = ""
        for lost in range(PLAYS):
            worker = await self._least_loaded(left)
            episode = await worker.play(number, attempt, late)
            if episode is not None:
                self._lost = 0
                return episode if not lost else replace(episode, metrics={**episode.metrics, PLAYED_AGAIN: float(lost)})
            how, left = worker.exit, worker.machine
        message = f"the worker that played it was lost, and so was the one that played it again: {how}"
        episode = make_unplayed(attempt, EpisodeError("workflow", "WorkerDied", message))
        return replace(episode, metrics={PLAYED_AGAIN: float(PLAYS - 1)})

    async def _least_loaded(self, left: str) -> Worker:
        """Choose one on the machine that was left only where there is no other: it may be the machine that was lost."""
        while self._failed is None:
            if ready := [worker for worker in self._workers if worker.ready]:
                return min(ready, key=lambda worker: (worker.machine == left, worker.load))
            self._replaced.clear()
            await self._replaced.wait()
        raise self._failed

    async def _keep(self, place: int) -> None:
        """Have another worker in that place whenever one is lost."""
        while True:
            worker = self._workers[place]
            await worker.ended.wait()
            if self._failed is not None:
                return
            self._lost += 1
            logger.warning(
                "a worker of astune.rollout.workers was lost: %s; its episodes are played again, and another takes its "
                "place",
                worker.exit,
            )
            if self._lost >= MOST_LOST * self._number:
                self._fail(
                    f"{self._lost} workers of astune.rollout.workers were lost one after another, and no episode ended "
                    f"between: the last by {worker.exit}. Does the workflow, or a library of it, crash or take all "
                    "memory? astune.rollout.workers=0 plays episodes in the process of the run"
                )
                return
            try:
                self._workers[place] = self._new_worker(_name(place))
                await self._workers[place].begin()
            except OSError as error:
                self._fail(f"a worker of astune.rollout.workers could not be started: {error}")
            self._replaced.set()

    def _fail(self, message: str) -> None:
        """Nothing more is played."""
        self._failed = TrainingError(message)
        self._replaced.set()
        self._kill()

    def _kill(self) -> None:
        for worker in self._workers:
            worker.kill()


def _name(place: int) -> str:
    return f"worker-{place}"

"""All workers of a run: attempts are dealt out, a worker that dies is replaced."""

from __future__ import annotations

import asyncio
import logging
import sys
from dataclasses import replace
from itertools import count
from types import TracebackType

from astune.config.schema import AstuneConfig
from astune.errors import SetupError, TrainingError
from astune.rollout.player import PLAYED_AGAIN, Attempt
from astune.rollout.setup import RolloutSetup
from astune.training.engine import Engine
from astune.training.rollout_setup import rollout_setup
from astune.training.rollout_workers.messages import Start
from astune.training.rollout_workers.process import EpisodeProcess, unplayed
from astune.types import Episode, EpisodeError
from astune.workflow.notes import Notes

logger = logging.getLogger(__name__)


PLAYS = 2
"""How often an attempt is begun whose worker dies."""
MOST_DEATHS = 5
"""Workers that may die one after another without an episode that ends."""


def played_by(config: AstuneConfig, engine: Engine) -> RolloutSetup:
    """What rollouts take, around an engine: episodes are played in this process, or by `astune.rollout.workers`."""
    setup = rollout_setup(config, engine.policy, engine.chat_format)
    return replace(setup, player=EpisodeWorkers(config, engine, setup.notes)) if config.rollout.workers else setup


class EpisodeWorkers:
    """A `Player` in `astune.rollout.workers` processes of this machine.

    An attempt goes to the worker with the fewest, whatever its group: groups come together here, where they are judged.
    If the worker dies, another plays the attempt again from its beginning, under the same name and seed, once.
    """

    def __init__(self, config: AstuneConfig, engine: Engine, notes: Notes) -> None:
        self._config, self._engine, self._notes = config, engine, notes
        self._numbers = count()
        self._deaths = 0
        self._failed: TrainingError | None = None
        self._processes: list[EpisodeProcess] = []
        self._replacing: set[asyncio.Task[None]] = set()

    @property
    def pids(self) -> list[int]:
        """The ids of the workers that are running."""
        return [process.pid for process in self._processes]

    async def __aenter__(self) -> EpisodeWorkers:
        try:
            for _ in range(self._config.rollout.workers):
                await self._begin()
            for process in list(self._processes):
                if error := await process.ready:
                    raise SetupError(error)
        except BaseException:
            self._kill()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await asyncio.gather(*(process.leave() for process in self._processes))
        finally:
            self._kill()

    async def play(self, attempt: Attempt) -> Episode:
        number = next(self._numbers)
        how = ""
        for lost in range(PLAYS):
            process = await self._least_loaded()
            episode = await process.play(number, attempt)
            if episode is not None:
                self._deaths = 0
                return episode if not lost else replace(episode, metrics={**episode.metrics, PLAYED_AGAIN: float(lost)})
            how = process.exit
        message = f"the process that played it ended with {how}, and so did the one that played it again"
        episode = unplayed(attempt, EpisodeError("workflow", "WorkerDied", message))
        return replace(episode, metrics={PLAYED_AGAIN: float(PLAYS - 1)})

    async def _least_loaded(self) -> EpisodeProcess:
        while self._failed is None and not self._processes:
            await asyncio.wait(self._replacing)
        if self._failed is not None:
            raise self._failed
        return min(self._processes, key=lambda process: process.load)

    async def _begin(self) -> None:
        level = logging.getLogger().getEffectiveLevel()
        policy = self._engine.policy
        start = Start(self._config, self._engine.chat_format, policy.context_length, list(sys.path), level)
        process = EpisodeProcess(start, policy, self._engine.rounds, self._notes, self._died)
        await process.begin()
        self._processes.append(process)

    def _died(self, process: EpisodeProcess) -> None:
        if process not in self._processes:  # it never began
            return
        self._processes.remove(process)
        self._deaths += 1
        logger.warning(
            "a process of astune.rollout.workers ended with %s; its episodes are played again, and another takes its "
            "place",
            f"{process.exit}: {error}" if (error := process.ready.result()) else process.exit,
        )
        if self._deaths >= MOST_DEATHS:
            self._failed = TrainingError(
                f"{self._deaths} processes of astune.rollout.workers died one after another, and no episode ended "
                f"between: the last with {process.exit}. Does the workflow, or a library of it, crash or take all "
                "memory? astune.rollout.workers=0 plays episodes in this process"
            )
            self._kill()
        else:
            task = asyncio.get_running_loop().create_task(self._replace())
            self._replacing.add(task)
            task.add_done_callback(self._replacing.discard)

    async def _replace(self) -> None:
        try:
            await self._begin()
        except OSError as error:
            self._failed = TrainingError(f"a process of astune.rollout.workers could not be started: {error}")

    def _kill(self) -> None:
        for task in self._replacing:
            task.cancel()
        for process in self._processes:
            process.kill()
        self._processes.clear()

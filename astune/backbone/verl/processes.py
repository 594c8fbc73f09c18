"""The processes of a run on Ray, and what happens when one of them dies: whoever waits for it is told the cause."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import ray

from astune.errors import AstuneError, TrainingError, name_error

logger = logging.getLogger(__name__)

EVERY = 2.0
"""Seconds between two looks whether all processes live."""
LONGEST_LOOK = 60.0
"""Seconds that are taken to find the dead among them, once something has failed: on a busy machine those that worked
with it may know before Ray does."""
BETWEEN = 0.1


@dataclass(frozen=True)
class VerlProcesses:
    """Actors by what the user knows them as: "training worker 0", "server 1". Without any of them nothing can come of
    the run."""

    actors: Mapping[str, Any]

    async def wait_for_loss(self) -> TrainingError:
        """Wait until one is dead; the error that says which, and why."""
        asked: dict[str, Any] = {}
        while (error := self._look(asked, set())) is None:
            await asyncio.sleep(EVERY)
        return error

    @contextmanager
    def failing_loudly(self) -> Iterator[None]:
        """Raises an error of the run in the place of what Ray raises: that of ASTune's which a process raised, else
        TrainingError. Where a process is dead that is the cause: the others only say that they cannot reach it."""
        try:
            yield
        except ray.exceptions.RayError as error:
            cause = error.cause if isinstance(error, ray.exceptions.RayTaskError) else error
            if isinstance(cause, AstuneError):
                raise cause from error
            logger.error("verl failed: %s", error)
            raise self._dead() or TrainingError(f"verl failed: {name_error(cause)}") from error

    def _dead(self) -> TrainingError | None:
        """None if all live, or if some do not say, as they wait for something else."""
        asked: dict[str, Any] = {}
        alive: set[str] = set()
        until = time.monotonic() + LONGEST_LOOK
        while alive != set(self.actors) and time.monotonic() < until:
            if (error := self._look(asked, alive)) is not None:
                return error
            time.sleep(BETWEEN)
        return None

    def _look(self, asked: dict[str, Any], alive: set[str]) -> TrainingError | None:
        """Ask those that are not `asked` yet, which they answer once they have done what they do, and read what has
        come. Whoever answered is added to `alive`; the error of the first that is dead is returned."""
        for name, actor in self.actors.items():
            if name not in asked:
                asked[name] = actor.__ray_ready__.remote()
        done, _ = ray.wait(list(asked.values()), num_returns=len(asked), timeout=0)
        for name in [name for name, answer in asked.items() if answer in done]:
            try:
                ray.get(asked.pop(name))
                alive.add(name)
            except ray.exceptions.ActorUnavailableError:
                continue  # whether it is dead Ray does not know yet: it is asked again
            except ray.exceptions.RayActorError as error:
                return TrainingError(f"{name} died: {' '.join(str(error).split())}")
        return None

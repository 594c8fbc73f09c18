"""The processes of a run on Ray, and what happens when one of them dies: whoever waits for it is told the cause."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import ray

from astune.errors import TrainingError, named

logger = logging.getLogger(__name__)

EVERY = 2.0
"""Seconds between two looks whether all processes live."""
LONGEST_LOOK = 5.0
"""Seconds that are taken to find the dead among them, once something has failed."""


@dataclass(frozen=True)
class VerlProcesses:
    """Actors by what the user knows them as: "training worker 0", "server 1". Without any of them nothing can come of
    the run."""

    actors: Mapping[str, Any]

    async def lost(self) -> TrainingError:
        """Wait until one is dead; the error that says which, and why."""
        asked: dict[str, Any] = {}
        while True:
            for name, actor in self.actors.items():
                if name not in asked:
                    asked[name] = actor.__ray_ready__.remote()  # answered once the actor has done what it does
            done, _ = ray.wait(list(asked.values()), num_returns=len(asked), timeout=0)
            for name in [name for name, answer in asked.items() if answer in done]:
                if (error := died(name, asked.pop(name))) is not None:
                    return error
            await asyncio.sleep(EVERY)

    @contextmanager
    def failing_loudly(self) -> Iterator[None]:
        """Raises TrainingError in the place of what Ray raises. Where a process is dead that is the cause: the others
        only say that they cannot reach it."""
        try:
            yield
        except ray.exceptions.RayError as error:
            cause = error.cause if isinstance(error, ray.exceptions.RayTaskError) else error
            logger.error("verl failed: %s", error)
            raise self._dead() or TrainingError(f"verl failed: {named(cause)}") from error

    def _dead(self) -> TrainingError | None:
        asked = {name: actor.__ray_ready__.remote() for name, actor in self.actors.items()}
        done, _ = ray.wait(list(asked.values()), num_returns=len(asked), timeout=LONGEST_LOOK)
        found = (died(name, answer) for name, answer in asked.items() if answer in done)
        return next((error for error in found if error is not None), None)


def died(name: str, answer: Any) -> TrainingError | None:
    """None if the actor that gave `answer` lives."""
    try:
        ray.get(answer)
    except ray.exceptions.RayActorError as error:
        told = " ".join(str(error).split())
        return TrainingError(f"{name} died: {told}")
    return None

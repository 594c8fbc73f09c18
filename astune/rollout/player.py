"""Where attempts are played, if not in the process that judges them.

A player gets little and gives little, so that it may play anywhere: an `Attempt` in, an `Episode` without a verdict
out. All that the attempts share (workflow, environments, limits) it makes from the configuration where it plays, and
model calls come back to the engine as token ids. Judges stay where the groups come together.
"""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol

from astune.types import Episode, Sampling, Task

PLAYED_AGAIN = "played_again"
"""The figure of an episode that was begun again, as the process in which it was played had died."""


@dataclass(frozen=True)
class Attempt:
    """One attempt at a task, yet to be played."""

    task: Task
    episode_id: str
    seed: int
    sampling: Sampling


class Player(Protocol):
    """Plays attempts while it is entered. Entering raises SetupError where no episode could begin."""

    async def __aenter__(self) -> object: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    async def play(self, attempt: Attempt, late: asyncio.Event | None = None) -> Episode:
        """The attempt as `play_episode` gives it, cut off as soon as `late` is set. Whatever keeps it from being played
        is the episode's error; raises TrainingError where that is true of all. Cancelling this cancels the workflow."""

    def shut(self) -> AbstractAsyncContextManager[None]:
        """Within it no model call is under way of those that do not come back to this process: entering waits until
        they have ended, and new ones wait until it is left. Attempts go on otherwise."""

"""The episode that the running code belongs to.

It is kept in a context variable, which holds in the episode's tasks, and in threads that run in a copy of their
context, as those of `asyncio.to_thread` do.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field


@dataclass(frozen=True)
class CurrentEpisode:
    """An episode that is being played. `blocked` is written by another thread: seconds for which lines of the episode's
    code kept the event loop from turning, by `file:line`."""

    episode_id: str
    blocked: dict[str, float] = field(default_factory=dict)


EPISODE: ContextVar[CurrentEpisode | None] = ContextVar("astune_episode", default=None)


@contextmanager
def in_episode(episode_id: str) -> Iterator[CurrentEpisode]:
    """Tasks and threads begun within the block belong to the episode."""
    this = CurrentEpisode(episode_id)
    before = EPISODE.set(this)
    try:
        yield this
    finally:
        EPISODE.reset(before)

"""Which episode the code that runs just now belongs to.

A context variable says it: it holds in the episode's tasks, and in threads that run in a copy of their context, as
those of `asyncio.to_thread` do.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field


@dataclass(frozen=True)
class UnderWay:
    """An episode under way. `blocked` is written by another thread: seconds for which lines of the episode's code kept
    the event loop from turning, by `file:line`."""

    episode_id: str
    blocked: dict[str, float] = field(default_factory=dict)


EPISODE: ContextVar[UnderWay | None] = ContextVar("astune_episode", default=None)


@contextmanager
def under_way(episode_id: str) -> Iterator[UnderWay]:
    """What is begun within the block belongs to the episode."""
    this = UnderWay(episode_id)
    before = EPISODE.set(this)
    try:
        yield this
    finally:
        EPISODE.reset(before)

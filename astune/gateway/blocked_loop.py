"""Tell a client that waits for itself so, where it would wait for ever.

An agent that blocks its episode's event loop while it calls a model over HTTP keeps the answer from being made. The
server hears the call in a thread of its own, so it can look at the line on which the loop's thread stands.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from types import FrameType
from typing import TypeVar

from astune.monitor.blocking import Line, line_of
from astune.support.http.service import HttpError

Result = TypeVar("Result")
EVERY = 0.5
"""Seconds between two looks at a loop that gives no sign of life."""
LOOKS = 4
"""Looks in a row that must find the same."""


async def unless_blocked(
    work: asyncio.Future[Result], loop: asyncio.AbstractEventLoop, thread: int, episode_id: str
) -> Result:
    """The answer of `work`, which is made on `loop`, the event loop of the episode, in that thread.

    Raises:
        HttpError: 400, a line of the same episode has waited in a library's code for all the time that the call has
            waited for the loop. Nothing could end that: what the line waits for is, or waits for, this call.
    """
    turned, before, found = threading.Event(), None, 0
    try:
        loop.call_soon_threadsafe(turned.set)
        while not turned.is_set() and not (await asyncio.wait({work}, timeout=EVERY))[0]:
            line = _waiting_line(sys._current_frames().get(thread), episode_id)
            same = line is not None and before is not None and line.callback is before.callback
            found, before = found + 1 if same else 0, line
            if found >= LOOKS and not turned.is_set():
                raise _describe(str(line))
        return await work
    finally:
        work.cancel()


def _waiting_line(frame: FrameType | None, episode_id: str) -> Line | None:
    """The episode's own line on which the thread stands, if it waits there in code that the line has called. Code that
    sleeps or computes by itself comes to an end."""
    line = line_of(frame)
    if frame is None or line is None or line.episode is None or line.episode.episode_id != episode_id:
        return None
    return None if frame.f_code.co_filename == line.file else line


def _describe(line: str) -> HttpError:
    return HttpError(
        400,
        "event_loop_blocked",
        f"a call that blocks in the event loop's own thread, at {line}: nothing could answer it. Await an async client "
        "there, or write the workflow as a plain `def`, which gets a thread",
    )

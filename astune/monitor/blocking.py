"""Notices code of the user's that keeps the event loop from turning: `time.sleep`, a synchronous HTTP call, a loop
without `await`. While it runs, no agent goes on and no time limit is kept.

    with LoopWatch(progress.warn):      # in the loop's thread
        await play_episodes()

A thread asks the loop for a sign of life. While none comes it looks, again and again, at which line the loop's thread
stands. Lines of the user's count, where two looks in a row find the same callback of the loop, and nothing that ASTune
does itself: the local backbone computes its model in that thread. What an episode's own lines took stands in its
metrics.
"""

from __future__ import annotations

import asyncio
import bdb
import linecache
import pdb
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from astune.support.current_episode import EPISODE, CurrentEpisode
from astune.support.user_code import by_user, part_of_astune

EVERY = 0.1
"""Seconds between two looks, and without a sign of life before the first."""
NOTICED = 1.0
"""Seconds that a line must have blocked, all in all, before it is told of; again each time they are ten times more."""
ADVICE = (
    "no episode goes on meanwhile, and no time limit is kept; use await asyncio.sleep, an async client, or "
    "await asyncio.to_thread(...)"
)
_NOT_COUNTED = {bdb.__file__, pdb.__file__, "<frozen importlib._bootstrap>"}


@dataclass(frozen=True)
class Line:
    """A line of the user's code on which the loop's thread stands, and the episode that it runs for, if one."""

    file: str
    number: int
    episode: CurrentEpisode | None
    callback: object = None
    """Of the event loop, within which the line runs."""

    @property
    def place(self) -> str:
        return f"{Path(self.file).name}:{self.number}"

    def __str__(self) -> str:
        code = linecache.getline(self.file, self.number).strip()
        owner = "" if self.episode is None else f"{self.episode.episode_id}: "
        return f"{owner}{self.file}:{self.number}: `{code}`"


class LoopWatch:
    """Tells of a line through `tell`, from a thread of its own, while the line still blocks. `seconds` are those of
    each line, in all."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self.seconds: dict[tuple[str, int], float] = {}
        self._told: dict[tuple[str, int], float] = {}
        self._entered = 0

    def __enter__(self) -> LoopWatch:
        """May be entered again, also before it was left: it watches until it is left as often."""
        self._entered += 1
        if self._entered > 1:
            return self
        self._loop, self._thread_id = asyncio.get_running_loop(), threading.get_ident()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True, name="loop watch")
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._entered -= 1
        if not self._entered:
            self._ended.set()
            self._thread.join()

    def _watch(self) -> None:
        while not self._ended.wait(EVERY):
            turned, before = threading.Event(), None
            try:
                self._loop.call_soon_threadsafe(turned.set)
            except RuntimeError:  # the loop is closed
                return
            while not turned.wait(EVERY) and not self._ended.is_set():
                line = line_of(sys._current_frames().get(self._thread_id))
                if line is not None and before is not None and line.callback is before.callback:
                    self._count(line)
                before = line

    def _count(self, line: Line) -> None:
        key = (line.file, line.number)
        seconds = self.seconds[key] = self.seconds.get(key, 0.0) + EVERY
        if line.episode is not None:
            line.episode.blocked[line.place] = line.episode.blocked.get(line.place, 0.0) + EVERY
        if seconds >= self._told.get(key, NOTICED):
            self._told[key] = 10 * seconds
            self._tell(f"blocked for {seconds:g} s by {line}: {ADVICE}")


def line_of(frame: FrameType | None) -> Line | None:
    """The user's line that a callback of the event loop stands on, `frame` being the innermost. None where ASTune or a
    debugger runs further in, where a module is being imported, which happens once, and where no line of the user's is
    involved."""
    found = None
    while frame is not None:
        file = frame.f_code.co_filename
        if file == asyncio.events.__file__ and frame.f_code.co_name == "_run":  # a callback begins
            callback = frame.f_locals["self"]
            if found is None:
                return None
            return Line(found.f_code.co_filename, found.f_lineno, callback._context.get(EPISODE), callback)
        if found is None and (file in _NOT_COUNTED or part_of_astune(Path(file))):
            return None
        if found is None and by_user(file):
            found = frame
        frame = frame.f_back
    return None

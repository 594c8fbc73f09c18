"""An actor of Ray's that plays episodes, on any node of the cluster.

Agents have a thread and an event loop of their own, so that the actor answers and tells what they say whatever they are
at. Their model calls go from here to the servers: of an episode the run gets the result, and nothing before.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import logging
import os
import queue
import threading
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace

from astune.config.schema import AstuneConfig
from astune.context_tracker.prompt.chat_format import ChatFormat
from astune.errors import AstuneError
from astune.monitor.blocking import LoopWatch
from astune.rollout.setup import Attempt, RolloutSetup
from astune.support.concurrency import run_and_leave
from astune.support.visible import make_logs_visible
from astune.training.ahead import Gate
from astune.training.rollout_setup import workflow_setup
from astune.training.rollout_workers.messages import EngineFailure, FromWorker
from astune.training.rollout_workers.output import SentOutput, set_levels
from astune.training.rollout_workers.worker import ForwardedNotes, play_and_pack
from astune.types import Policy

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class StartActor:
    """The parts that an actor plays with, and the place where the run was started: its folder, and its variables, which
    are set on a node that does not have them. `levels` are those of loggers by name."""

    config: AstuneConfig
    chat_format: ChatFormat
    policy: Policy
    levels: Mapping[str, int]
    folder: str
    variables: Mapping[str, str]


class EpisodeActor:
    """Plays attempts from `open` to `close`, as many at a time as it gets."""

    def __init__(self, start: StartActor) -> None:
        for name, value in start.variables.items():
            os.environ.setdefault(name, value)
        with contextlib.suppress(OSError):  # a node need not have it, if the agents do not
            os.chdir(start.folder)
        self._start = start
        self._said: queue.SimpleQueue[FromWorker | None] = queue.SimpleQueue()
        self._ready: concurrent.futures.Future[str] = concurrent.futures.Future()
        self._playing: dict[int, asyncio.Task[bytes | EngineFailure]] = {}
        self._late: dict[int, asyncio.Event] = defaultdict(asyncio.Event)
        """Set for attempts that are late; an attempt may be called late before it arrives."""
        self._stopped: set[int] = set()
        """Attempts that were cancelled, likewise."""
        self._held = self._released = 0
        """The greatest number that `hold` and `release` have heard."""

    async def open(self) -> str:
        """Set the workflow up. Returns the error that keeps it from being so, or ""."""
        threading.Thread(target=self._live, daemon=True, name="episodes").start()
        return await asyncio.wrap_future(self._ready)

    async def play(self, number: int, attempt: Attempt) -> bytes | EngineFailure | None:
        """The episode, packed; None if it was cancelled."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._play(number, attempt), self._loop))

    async def stop(self, number: int) -> None:
        """Cancel an attempt, if it has not ended."""
        self._loop.call_soon_threadsafe(self._stop, number)

    async def cut_off(self, number: int) -> None:
        """End an attempt that is late, with what it got to, if it has not ended."""
        self._loop.call_soon_threadsafe(lambda: self._late[number].set())

    async def take_messages(self) -> list[FromWorker]:
        """Wait for messages that were printed and logged since the last call, and give them in order. The list is empty
        once the workflow is torn down and everything was given."""
        said = [await asyncio.to_thread(self._said.get)]
        with contextlib.suppress(queue.Empty):
            while said[-1] is not None:
                said.append(self._said.get_nowait())
        if said[-1] is None and len(said) > 1:
            self._said.put(said.pop())
        return [message for message in said if message is not None]

    async def hold(self, number: int) -> None:
        """Let no model call begin before `release` of this number, and wait until those under way have ended. Numbers
        grow; `release` may be heard first."""
        if number > self._released:
            self._held = max(number, self._held)
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._gate.close(), self._loop))

    async def release(self, number: int) -> None:
        self._released = max(number, self._released)
        if self._released >= self._held:
            self._loop.call_soon_threadsafe(self._gate.open)

    async def close(self) -> None:
        """Tear the workflow down. `take_messages` tells when that is done."""
        self._loop.call_soon_threadsafe(self._over.set)

    def _live(self) -> None:
        make_logs_visible()
        set_levels(self._start.levels)
        output = SentOutput(self._said.put)
        try:
            run_and_leave(self._serve())
        except BaseException as error:
            logger.exception("the agents' event loop ended")
            if not self._ready.done():
                self._ready.set_exception(error)
        output.end()
        self._said.put(None)

    async def _serve(self) -> None:
        self._loop, self._over = asyncio.get_running_loop(), asyncio.Event()
        start, self._gate = self._start, Gate(self._start.policy)
        try:
            setup = workflow_setup(start.config, self._gate, start.chat_format)
            self._setup: RolloutSetup = replace(setup, notes=ForwardedNotes(self._said.put))
            async with self._setup.open():
                self._ready.set_result("")
                with LoopWatch(logger.warning):
                    await self._over.wait()
                    for task in self._playing.values():
                        task.cancel()
                    await asyncio.gather(*self._playing.values(), return_exceptions=True)
        except AstuneError as error:
            self._ready.set_result(str(error))

    async def _play(self, number: int, attempt: Attempt) -> bytes | EngineFailure | None:
        if number in self._stopped:
            return None
        task = self._playing[number] = asyncio.create_task(play_and_pack(attempt, self._setup, self._late[number]))
        try:
            await asyncio.wait({task})
            return None if task.cancelled() else task.result()
        finally:
            del self._playing[number], self._late[number]

    def _stop(self, number: int) -> None:
        self._stopped.add(number)
        if number in self._playing:
            self._playing[number].cancel()

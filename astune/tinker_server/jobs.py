"""Answers that a client fetches later, the order in which the requests of one model run, and a loop beside HTTP's."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeAlias, TypeVar

from astune.errors import ContextOverflow
from astune.tinker_server.requests import RequestError, not_found

logger = logging.getLogger(__name__)

JobResult: TypeAlias = "bytes | dict[str, Any]"
"""A protobuf message, or what becomes JSON."""

KEPT = 64
"""Answers that stay after they were fetched: a client asks again if the connection broke."""
GAP_SECONDS = 60.0
"""Seconds for which a request waits for one with a smaller number that never came."""

T = TypeVar("T")


class Jobs:
    """Work under way or done, by request id. A failure is an answer too, in words and with whose fault it was."""

    def __init__(self) -> None:
        self._tasks: dict[str, asyncio.Task[JobResult]] = {}
        self._fetched: deque[str] = deque()

    def start(self, request_id: str, work: Callable[[], Awaitable[JobResult]]) -> str:
        """Start `work`, unless a request of this id was started before: then this is the same request again."""
        if request_id not in self._tasks:
            self._tasks[request_id] = asyncio.create_task(_answer(request_id, work))
        return request_id

    async def fetch(self, request_id: str, seconds: float) -> JobResult | None:
        """The answer, or None if it takes longer than `seconds`. Raises `RequestError` for an unknown id."""
        task = self._tasks.get(request_id)
        if task is None:
            raise not_found(f"there is no request {request_id!r}; was the server started anew?")
        await asyncio.wait([task], timeout=seconds)
        if not task.done():
            return None
        if task.cancelled():
            raise not_found(f"request {request_id!r} was stopped with its session")
        self._fetched.append(request_id)
        if len(self._fetched) > KEPT:
            self._tasks.pop(self._fetched.popleft(), None)
        return task.result()

    def drop(self, prefix: str) -> None:
        """Stop and forget all whose ids begin so."""
        for request_id in [name for name in self._tasks if name.startswith(prefix)]:
            self._tasks.pop(request_id).cancel()


async def _answer(request_id: str, work: Callable[[], Awaitable[JobResult]]) -> JobResult:
    try:
        return await work()
    except (RequestError, ContextOverflow) as error:
        return {"error": str(error), "category": "user"}
    except Exception as error:
        logger.exception("request %s failed", request_id)
        return {"error": f"{type(error).__name__}: {error}", "category": "server"}


class RequestQueue:
    """Runs the requests of one model one at a time, in the order of their numbers, which begin at 1.

    The SDK sends the parts of one large batch side by side, the first one last. A number that does not come within
    `GAP_SECONDS` was given up by the client, and is passed over.
    """

    def __init__(self) -> None:
        self._next = 1
        self._busy = False
        self._waiting: dict[int, asyncio.Event] = {}

    async def run(self, number: int, work: Callable[[], Awaitable[T]]) -> T:
        if number < self._next or number in self._waiting:
            raise RequestError(f"request {number} of this model came too late: {self._next - 1} has run already")
        turn = self._waiting[number] = asyncio.Event()
        self._wake()
        try:
            while not turn.is_set():
                with suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(turn.wait(), GAP_SECONDS)
                if not turn.is_set() and not self._busy:
                    self._pass_over()
            return await work()
        finally:
            if turn.is_set():
                self._busy = False
                self._wake()
            else:
                del self._waiting[number]

    def _wake(self) -> None:
        if not self._busy and self._next in self._waiting:
            self._busy = True
            self._waiting.pop(self._next).set()
            self._next += 1

    def _pass_over(self) -> None:
        first = min(self._waiting)
        logger.warning("requests %s to %s never came; going on with %s", self._next, first - 1, first)
        self._next = first
        self._wake()


class LoopThread:
    """Runs coroutines beside the caller's loop, in a thread of its own: the steps of samplers keep their loop busy. A
    coroutine whose caller is cancelled is cancelled too."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))

    def close(self, seconds: float = 2.0) -> None:
        """Stop after the step under way, or leave it behind if it takes longer than `seconds`."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(seconds)

"""Compare formulas in processes of their own (`worker`), each pair once."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future
from fractions import Fraction
from pathlib import Path
from typing import Any

from astune.errors import JudgeError
from astune.workers.pool import RequestFailed, WorkerPool

WORKER_FILE = Path(__file__).with_name("worker.py")
MAX_KNOWN = 100_000
"""Results that are kept, some 100 bytes each."""


class AnswerAtFault(JudgeError):
    """The comparison took too long or failed, while the reference alone is quickly read."""


class MathPool:
    """`equal` from any number of episodes at once, see `WorkerPool`."""

    def __init__(self, workers: int, timeout: float) -> None:
        self._pool = WorkerPool([str(WORKER_FILE)], workers, timeout)
        self._known: dict[tuple[str, ...], Future[dict[str, Any]]] = {}
        self._lock = threading.Lock()

    @property
    def pids(self) -> list[int]:
        """Ids of the processes that are running."""
        return self._pool.pids

    async def equal(self, reference: str, answer: str, half: Fraction | None = None) -> bool | None:
        """None for an answer that is no mathematics. `half` is how far off the answer may be where the reference is
        rounded. Raises `AnswerAtFault` if the comparison took too long or failed but not that of the reference with
        itself, and `JudgeError` where nothing can be told of the answer.

        The attempts at one task often end with the same answer: it is compared once. Failures are not kept.
        """
        request = (reference, answer) if half is None else (reference, answer, str(half))
        try:
            reply = await self._reply(request)
        except RequestFailed as error:
            if await self.reads(reference):
                raise AnswerAtFault(str(error)) from error
            raise
        return None if reply["equal"] is None else bool(reply["equal"])

    async def reads(self, reference: str) -> bool:
        """True if `reference` is mathematics, and quickly found equal to itself."""
        try:
            return bool((await self._reply((reference, reference)))["equal"])
        except RequestFailed:
            return False

    async def _reply(self, request: tuple[str, ...]) -> dict[str, Any]:
        return await asyncio.shield(asyncio.wrap_future(self._future(request)))

    def _future(self, request: tuple[str, ...]) -> Future[dict[str, Any]]:
        with self._lock:
            future = self._known.get(request)
            if future is None or (future.done() and future.exception() is not None):
                if len(self._known) >= MAX_KNOWN:
                    self._known.clear()
                what = f"comparing {request[1]!r} with {request[0]!r}"
                future = self._known[request] = self._pool.submit(request, what)
        return future

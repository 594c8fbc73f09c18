"""Formulas are compared by processes of their own (`math_worker`), each pair once."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from astune.workers.pool import WorkerPool

WORKER_FILE = Path(__file__).with_name("math_worker.py")
MAX_KNOWN = 100_000
"""Results that are kept, some 100 bytes each."""


class MathPool:
    """`equal` from any number of episodes at once, see `WorkerPool`."""

    def __init__(self, workers: int, timeout: float) -> None:
        self._pool = WorkerPool([str(WORKER_FILE)], workers, timeout)
        self._known: dict[tuple[str, str], Future[dict[str, Any]]] = {}
        self._lock = threading.Lock()

    @property
    def pids(self) -> list[int]:
        """Ids of the processes that are running."""
        return self._pool.pids

    async def equal(self, reference: str, answer: str) -> bool | None:
        """None for an answer that is no mathematics. Raises `JudgeError` if the comparison took too long, failed, or
        `reference` is no mathematics.

        The attempts at one task often end with the same answer: it is compared once. Failures are not kept.
        """
        reply = await asyncio.shield(asyncio.wrap_future(self._future(reference, answer)))
        return None if reply["equal"] is None else bool(reply["equal"])

    def _future(self, reference: str, answer: str) -> Future[dict[str, Any]]:
        pair = (reference, answer)
        with self._lock:
            future = self._known.get(pair)
            if future is None or (future.done() and future.exception() is not None):
                if len(self._known) >= MAX_KNOWN:
                    self._known.clear()
                future = self._known[pair] = self._pool.submit(pair, f"comparing {answer!r} with {reference!r}")
        return future

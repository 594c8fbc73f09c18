"""Persistent processes that compare formulas (`math_worker`), and the hard limit on how long one may take."""

from __future__ import annotations

import asyncio
import contextlib
import json
import queue
import subprocess
import sys
import threading
import weakref
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any, cast

from astune.errors import JudgeError

WORKER_FILE = Path(__file__).with_name("math_worker.py")
START_SECONDS = 60.0
"""Most time for a process to load math-verify; it counts against no episode."""
MAX_KNOWN = 100_000
"""Results that are kept, some 100 bytes each."""


class MathPool:
    """`equal` from any number of episodes at once, in `workers` processes that start when they are needed.

    A comparison that takes longer than `timeout` seconds costs its process, which is replaced, and nothing else.
    The processes end with the pool, with the interpreter, and if this process is killed.
    """

    def __init__(self, workers: int, timeout: float) -> None:
        self._threads = ThreadPoolExecutor(workers, thread_name_prefix="math-judge")
        self._workers = [_Worker(timeout) for _ in range(workers)]
        self._idle: queue.SimpleQueue[_Worker] = queue.SimpleQueue()
        for worker in self._workers:
            self._idle.put(worker)
        self._known: dict[tuple[str, str], Future[bool]] = {}

    @property
    def pids(self) -> list[int]:
        """Ids of the processes that are running."""
        return [worker.pid for worker in self._workers if worker.pid is not None]

    async def equal(self, reference: str, answer: str) -> bool:
        """Raises `JudgeError` if the comparison took too long, failed, or `reference` is no mathematics.

        The attempts at one task often end with the same answer: it is compared once. Failures are not kept.
        """
        pair = (reference, answer)
        future = self._known.get(pair)
        if future is None or (future.done() and future.exception() is not None):
            if len(self._known) >= MAX_KNOWN:
                self._known.clear()
            future = self._known[pair] = self._threads.submit(self._equal, reference, answer)
        return await asyncio.shield(asyncio.wrap_future(future))

    def _equal(self, reference: str, answer: str) -> bool:
        worker = self._idle.get()  # never waits: there are as many workers as threads
        try:
            return worker.equal(reference, answer)
        finally:
            self._idle.put(worker)


class _Worker:
    """One process at a time, started at the first request and again after each failure."""

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._process: _Process | None = None

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    def equal(self, reference: str, answer: str) -> bool:
        if self._process is None:
            self._process = _Process()
        request = {"reference": reference, "answer": answer, "seconds": self._timeout + 1}
        reply = self._process.ask(request, self._timeout)
        if reply is None:
            why, self._process = self._process.end(), None
            raise JudgeError(f"comparing {answer!r} with {reference!r}: {why}")
        if "error" in reply:
            raise JudgeError(f"comparing {answer!r} with {reference!r}: {reply['error']}")
        return bool(reply["equal"])


class _Process:
    """A running `math_worker`. `weakref.finalize` ends it with this object or with the interpreter."""

    def __init__(self) -> None:
        # A session of its own: Ctrl-C in a terminal is for the run, which saves and still wants its verdicts.
        self._popen = subprocess.Popen(
            [sys.executable, str(WORKER_FILE)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            encoding="utf-8",
            start_new_session=True,
        )
        self._end = weakref.finalize(self, _end, self._popen)
        self._overtime: float | None = None
        if self._read(START_SECONDS) is None:
            raise JudgeError(f"the comparing process: {self.end()}; `{sys.executable} {WORKER_FILE}` shows why")

    @property
    def pid(self) -> int:
        return self._popen.pid

    def ask(self, request: dict[str, Any], seconds: float) -> dict[str, Any] | None:
        """The reply; None if the process died, of the time limit or by itself."""
        assert self._popen.stdin
        try:
            self._popen.stdin.write(json.dumps(request) + "\n")
            self._popen.stdin.flush()
        except OSError:
            return None
        return self._read(seconds)

    def end(self) -> str:
        """Ends the process and says why it had to."""
        self._end()
        if self._overtime is not None:
            return f"took longer than {self._overtime:g} seconds and was stopped"
        return f"died with exit code {self._popen.returncode}"

    def _read(self, seconds: float) -> dict[str, Any] | None:
        def stop() -> None:
            self._overtime = seconds
            self._popen.kill()

        assert self._popen.stdout
        watchdog = threading.Timer(seconds, stop)
        watchdog.daemon = True
        watchdog.start()
        try:
            line = self._popen.stdout.readline()
        finally:
            watchdog.cancel()
        return json.loads(line) if line else None


def _end(popen: subprocess.Popen[str]) -> None:
    popen.kill()
    popen.wait()
    for pipe in (popen.stdin, popen.stdout):
        with contextlib.suppress(OSError):  # a request that the process did not live to read
            cast("IO[str]", pipe).close()

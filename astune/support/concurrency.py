"""Work done side by side, of which nothing is left behind."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from collections.abc import Awaitable, Coroutine, Sequence
from typing import Any, TypeVar

from astune.errors import CtrlC
from astune.support.signals import on_ctrl_c

logger = logging.getLogger(__name__)

T = TypeVar("T")

LEAVE_SECONDS = 5.0
"""Time for tasks to end that are still running when `main` is done, and were cancelled."""
RUN_IS_OVER = "the run is over"
"""The message of their CancelledError."""


async def all_or_none(work: Sequence[Awaitable[T]]) -> list[T]:
    """All results in order. If one raises, or the caller is cancelled, the rest are cancelled and waited for: once, as
    what is cancelled again while it ends does not end as it should."""
    jobs = [asyncio.ensure_future(one) for one in work]
    try:
        if jobs:  # not gather: it passes a cancellation on, and does not wait for all that it cancelled
            done, _ = await asyncio.wait(jobs, return_when=asyncio.FIRST_EXCEPTION)
            for job in jobs:
                if job in done:
                    job.result()
        return [job.result() for job in jobs]
    except BaseException:
        for job in jobs:
            job.cancel()
        await asyncio.gather(*jobs, return_exceptions=True)
        raise


async def all_ended(work: Sequence[Awaitable[T]]) -> list[T]:
    """All results in order. If one raises, the rest go on, as they may be paid; then the first exception is raised."""
    results = await asyncio.gather(*work, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return [result for result in results if not isinstance(result, BaseException)]


def run_and_leave(main: Coroutine[Any, Any, T]) -> T:
    """Run `main` as `asyncio.run` does and return its result, with two differences for users' code in tasks beside it:
    a task that goes on though it is cancelled is left behind after `LEAVE_SECONDS`, and a `SystemExit` or
    `KeyboardInterrupt` that a task raises reaches whoever awaits it, and ends nothing else."""
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    # A backbone or a notebook may have set a handler of its own; that one then decides what Ctrl-C does.
    nobody_hears = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    with on_ctrl_c(_raise_ctrl_c) if nobody_hears else contextlib.nullcontext():
        try:
            return _completed(loop, loop.create_task(main))
        finally:
            _cancel_rest(loop)
            asyncio.set_event_loop(None)
            loop.close()


def _raise_ctrl_c() -> None:
    raise CtrlC


def _completed(loop: asyncio.AbstractEventLoop, job: asyncio.Task[T]) -> T:
    while True:
        try:
            return loop.run_until_complete(job)
        except CtrlC:
            raise
        except (SystemExit, KeyboardInterrupt):
            if job.done():
                raise


def _cancel_rest(loop: asyncio.AbstractEventLoop) -> None:
    rest = asyncio.all_tasks(loop)
    for task in rest:
        task.cancel(RUN_IS_OVER)
    if rest:
        with contextlib.suppress(SystemExit, KeyboardInterrupt):
            loop.run_until_complete(asyncio.wait(rest, timeout=LEAVE_SECONDS))
    if left := [task for task in rest if not task.done()]:
        logger.warning(
            "left behind, as they go on though they were cancelled: %s",
            ", ".join(f"{task!r:.200}" for task in left),
        )
        loop.set_exception_handler(lambda *_: None)  # or asyncio says the same once more when they are destroyed
    with contextlib.suppress(SystemExit, KeyboardInterrupt, asyncio.TimeoutError):
        loop.run_until_complete(asyncio.wait_for(loop.shutdown_asyncgens(), LEAVE_SECONDS))

"""Run somebody else's coroutine within a time limit."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from astune.errors import CtrlC, RolloutError
from astune.support.user_values import contain, text_of

logger = logging.getLogger(__name__)

CANCEL_GRACE = 5.0
"""Seconds a cancelled workflow gets to clean up. One that goes on is left behind; its model calls are refused."""


async def within(
    work: Coroutine[Any, Any, object],
    seconds: float,
    what: str,
    before_cancel: Callable[[], None] | None = None,
    until: asyncio.Event | None = None,
) -> tuple[bool, object]:
    """(True, result) of `work`, or (False, None) if it takes longer or `until` is set meanwhile, whatever it makes of
    being cancelled. Raises what it raises; what is no `Exception` comes as `RolloutError`.

    `before_cancel` is called first where it is cut short: what takes away all that it could go on with.
    """
    job = asyncio.ensure_future(_contain(work, what))
    others = set() if until is None else {asyncio.ensure_future(until.wait())}
    try:
        # Not wait_for: it waits on for code that does not let itself be cancelled.
        await asyncio.wait({job, *others}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    except asyncio.CancelledError:
        await _stop(job, what, before_cancel)
        raise
    finally:
        for other in others:
            other.cancel()
    if not job.done():
        await _stop(job, what, before_cancel)
        return False, None
    if job.cancelled():
        raise RolloutError(f"{what} was cancelled by its own code (asyncio.CancelledError)")
    error = job.exception()
    if error is not None and not isinstance(error, Exception | CtrlC):
        raise RolloutError(f"{what} raised {type(error).__name__}: {text_of(error)}") from error
    return True, job.result()


async def _contain(work: Coroutine[Any, Any, object], what: str) -> object:
    with contain(what, GeneratorExit):
        return await work


async def _stop(job: asyncio.Future[object], what: str, before_cancel: Callable[[], None] | None) -> None:
    if before_cancel is not None:
        before_cancel()
    job.cancel()
    job.add_done_callback(_forget)
    await asyncio.wait({job}, timeout=CANCEL_GRACE)
    if not job.done():
        logger.warning("%s goes on %g s after it was cancelled, and is left behind", what, CANCEL_GRACE)


def _forget(job: asyncio.Future[object]) -> None:
    """Take notice of how a cancelled job ended, so that asyncio does not report it as never looked at."""
    if not job.cancelled():
        job.exception()

"""Calls that block, beside the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from threading import Thread
from typing import TypeVar

Result = TypeVar("Result")


async def finished(call: Callable[[], Result]) -> Result:
    """What a blocking call of a learner returns, made in a thread of its own: those of `asyncio.to_thread` are few, and
    tools of agents may hold all of them. Who is told to stop meanwhile stops at the next thing it waits for after this:
    nothing is ever left half-way through, and a step that was learned is published, counted and saved."""
    made: Future[Result] = Future()

    def make() -> None:
        try:
            made.set_result(call())
        except BaseException as error:
            made.set_exception(error)

    Thread(target=make, name="learner").start()
    waited = asyncio.wrap_future(made)
    try:
        return await asyncio.shield(waited)
    except asyncio.CancelledError:
        await asyncio.wait([waited])
        result = waited.result()
        stopped = asyncio.current_task()
        assert stopped is not None
        stopped.cancel()
        return result

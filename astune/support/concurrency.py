"""Work done side by side, of which nothing is left behind."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
import signal
import sys
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from concurrent.futures import Future
from threading import Thread
from typing import Any, TypeVar

from astune.errors import CtrlC, RolloutError
from astune.support.signals import on_ctrl_c
from astune.support.user_values import text_of

logger = logging.getLogger(__name__)

T = TypeVar("T")

LEAVE_SECONDS = 5.0
"""Time for tasks to end that are still running when `main` is done, and were cancelled."""
RUN_IS_OVER = "the run is over"
"""The message of their CancelledError."""


def first_error(error: BaseException) -> BaseException:
    """The first error of those that came together: they are mostly one, in groups that anyio made around it."""
    if sys.version_info >= (3, 11):
        while isinstance(error, BaseExceptionGroup):  # noqa: F821
            error = error.exceptions[0]
    return error


def has_result(task: asyncio.Task[Any]) -> bool:
    """True if the task has ended, and neither raised nor was cancelled."""
    return task.done() and not task.cancelled() and task.exception() is None


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


async def finish(call: Callable[[], T]) -> T:
    """Make a blocking call of a learner in a thread of its own: those of `asyncio.to_thread` are few, and
    tools of agents may hold all of them. Who is told to stop meanwhile stops at the next thing it waits for after this:
    nothing is ever left half-way through, and a step that was learned is published, counted and saved."""
    made: Future[T] = Future()

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


def begin(call: Callable[[], T], name: str, failure: type[RolloutError] = RolloutError) -> asyncio.Future[T]:
    """The result of a call of the user's, which runs in a daemon thread called `name`, in a copy of the context. Unlike
    with `asyncio.to_thread`, a call that never ends takes no place in a shared pool, and the interpreter does not wait
    for it. What no future can hold, or would end more than whoever awaits it, comes as `failure`."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()
    context = contextvars.copy_context()  # the thread, too, knows which episode is under way

    def finish(error: Exception | None, results: list[T]) -> None:
        if future.done():
            return
        if error is None:
            future.set_result(results[0])
        else:
            future.set_exception(error)
            future.exception()  # so that asyncio does not complain of it where nobody waits any more

    def run() -> None:
        error: Exception | None = None
        results: list[T] = []
        try:
            results.append(context.run(call))
        except BaseException as raised:
            if isinstance(raised, Exception) and not isinstance(raised, StopIteration):
                error = raised
            else:
                error = failure(f"it raised {type(raised).__name__}: {text_of(raised)}".rstrip(": "))
                error.__cause__ = raised
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(finish, error, results)

    Thread(target=run, daemon=True, name=name).start()
    return future


@contextlib.contextmanager
def outside_loop() -> Iterator[None]:
    """Lets blocking code run an event loop of its own though it is called in one, as in a notebook, whose loop waits
    as it does for all that blocks. Unlike in a thread, Ctrl-C is heard."""
    outer = asyncio._get_running_loop()
    if outer is None:
        yield
        return
    asyncio._set_running_loop(None)
    try:
        yield
    finally:
        asyncio._set_running_loop(outer)
        asyncio.set_event_loop(outer)  # a loop that ends leaves none


def run_and_leave(main: Coroutine[Any, Any, T]) -> T:
    """Run `main` as `asyncio.run` does and return its result, with two differences for users' code in tasks beside it:
    a task that goes on though it is cancelled is left behind after `LEAVE_SECONDS`, and a `SystemExit` or
    `KeyboardInterrupt` that a task raises reaches whoever awaits it, and ends nothing else."""
    # A backbone or a notebook may have set a handler of its own; that one then decides what Ctrl-C does.
    nobody_hears = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    with outside_loop(), on_ctrl_c(_raise_ctrl_c) if nobody_hears else contextlib.nullcontext():
        loop = asyncio.new_event_loop()
        asyncio.set_event_loop(loop)
        try:
            return _complete(loop, loop.create_task(main))
        finally:
            _cancel_rest(loop)
            asyncio.set_event_loop(None)
            loop.close()


def _raise_ctrl_c() -> None:
    raise CtrlC


def _complete(loop: asyncio.AbstractEventLoop, job: asyncio.Task[T]) -> T:
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

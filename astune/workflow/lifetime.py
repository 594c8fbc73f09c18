"""Open what the episodes of a run share before the first (`Workflow.setup`), close it after the last (`teardown`)."""

from __future__ import annotations

import asyncio
import logging

from astune.errors import SetupError
from astune.plugins import culprit
from astune.support.concurrency import RUN_IS_OVER, first_error
from astune.workflow.workflow_base import FunctionWorkflow, Workflow, WorkflowFactory, call_user_code, location

logger = logging.getLogger(__name__)

SLOW = 10.0
"""Seconds after which a `setup` or a `teardown` that goes on is told of."""
TEARDOWN_SECONDS = 60.0
"""Most time that `teardown` gets; what goes on after it is left behind."""


class Lifetime:
    """The workflow's `setup` before the block, its `teardown` after it, however the block ends, in one task of their
    own. Entering raises SetupError where `setup` fails; `teardown` is not called then.

    In one task, as the cancel scopes of anyio, of which MCP clients are made, must be left where they were entered. Of
    their own, as what cancels the run must not cancel them, and a connection that breaks cancels the task that opened
    it, which must not be the run's.
    """

    def __init__(self, factory: WorkflowFactory) -> None:
        is_class = isinstance(factory, type) and issubclass(factory, Workflow)
        self._workflow: type[Workflow] = factory if is_class else FunctionWorkflow  # type: ignore[assignment]
        self._failed: BaseException | None = None

    async def __aenter__(self) -> None:
        """Cancelling this cancels `setup`."""
        self._ready, self._over = asyncio.Event(), asyncio.Event()
        self._task = asyncio.create_task(self._hold(), name=f"setup of {self._workflow.__qualname__}")
        try:
            if not await _set_within(self._ready, SLOW):
                logger.warning("%s is still running after %g s", location(self._workflow.setup), SLOW)
            await self._ready.wait()
        except asyncio.CancelledError:
            self._task.cancel()
            await asyncio.wait({self._task})
            raise
        if self._failed is not None:
            raise SetupError(
                f"{location(self._workflow.setup)} failed: {_write_error(self._failed)}; no episode was started"
            ) from self._failed

    async def __aexit__(self, *_: object) -> None:
        """An error of `teardown` is logged: the run has all that it needs by then."""
        self._over.set()
        soon = min(SLOW, TEARDOWN_SECONDS)
        await asyncio.wait({self._task}, timeout=soon)
        if not self._task.done():
            logger.warning(
                "%s is still running after %g s; it gets %g s",
                location(self._workflow.teardown),
                soon,
                TEARDOWN_SECONDS,
            )
            await asyncio.wait({self._task}, timeout=TEARDOWN_SECONDS - soon)
        if not self._task.done():
            self._task.cancel()
            logger.warning(
                "%s goes on after %g s, and is left behind", location(self._workflow.teardown), TEARDOWN_SECONDS
            )

    async def _hold(self) -> None:
        try:
            await call_user_code(self._workflow.setup)
        except BaseException as error:
            self._failed = error
            return
        finally:
            self._ready.set()
        try:
            await self._over.wait()
        except asyncio.CancelledError as cancelled:
            if RUN_IS_OVER not in cancelled.args:
                logger.warning(
                    "something that %s opened has broken and ended its task: what it gave to the episodes may work no "
                    "more",
                    location(self._workflow.setup),
                )
        try:
            await call_user_code(self._workflow.teardown)
        except BaseException as error:
            logger.warning("%s failed: %s", location(self._workflow.teardown), _write_error(error))


async def _set_within(event: asyncio.Event, seconds: float) -> bool:
    waiting = asyncio.ensure_future(event.wait())
    try:
        await asyncio.wait({waiting}, timeout=seconds)
    finally:
        waiting.cancel()
    return event.is_set()


def _write_error(error: BaseException) -> str:
    """The error in the user's own line."""
    return culprit(first_error(error))

"""Run `setup` and `teardown` of the user's workflow once in each process that plays episodes: the workflow runners, and
the explorer, whose reader of tasks plays evaluations.

Trinity starts these processes and ends them without a word, so `setup` comes with the first group that one plays, and
`teardown` when the mailbox says that the run is over.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from astune.backbone.trinity.shared.events import SetupFailed
from astune.backbone.trinity.shared.mailbox import find_mailbox, post
from astune.errors import SetupError
from astune.rollout.setup import RolloutSetup
from astune.workflow.lifetime import Lifetime
from astune.workflow.workflow_base import WorkflowFactory

_open: dict[WorkflowFactory, _Shared] = {}
"""What is open in this process."""


@asynccontextmanager
async def share_setup(setup: RolloutSetup) -> AsyncIterator[None]:
    """Have the workflow set up in this process, and its servers of tools started, while the block runs; the block that
    comes first does so. Raises SetupError, and tells the driver, if that fails or has failed here before."""
    shared = _open.setdefault(setup.workflow_factory, _Shared(setup))
    async with shared.in_use():
        yield


class _Shared:
    def __init__(self, setup: RolloutSetup) -> None:
        self._factory, self._lifetime = setup.workflow_factory, Lifetime(setup.workflow_factory)
        self._tools = setup.tools
        self._users = 0
        self._unused = asyncio.Event()
        self._started: asyncio.Task[None] | None = None
        self._ended: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def in_use(self) -> AsyncIterator[None]:
        self._users += 1
        self._unused.clear()
        try:
            if self._started is None:
                self._started = asyncio.create_task(self._start())
            await asyncio.shield(self._started)
            yield
        finally:
            self._users -= 1
            if not self._users:
                self._unused.set()

    async def _start(self) -> None:
        try:
            async with AsyncExitStack() as stack:
                await stack.enter_async_context(self._tools)
                await self._lifetime.start()
                stack.pop_all()
        except SetupError as error:
            post(SetupFailed(str(error)))
            raise
        await find_mailbox().count_open.remote()
        self._ended = asyncio.create_task(self._end_with_the_run())

    async def _end_with_the_run(self) -> None:
        mailbox = find_mailbox()
        await mailbox.over.remote()
        await self._unused.wait()
        del _open[self._factory]  # a group that comes after all gets a new one, which ends with it
        await self._lifetime.end()
        await self._tools.__aexit__()
        await mailbox.count_closed.remote()

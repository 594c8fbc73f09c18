"""Open what episodes share, as `setup` of the user's workflow, once in each process that plays them: the workflow
runners, and the explorer, whose reader of tasks plays evaluations.

Trinity starts these processes and ends them without a word, so `setup` comes with the first group that one plays, and
`teardown` when the mailbox says that the run is over.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from astune.backbone.trinity.shared.events import SetupFailed
from astune.backbone.trinity.shared.mailbox import find_mailbox, post
from astune.errors import SetupError
from astune.rollout.setup import RolloutSetup
from astune.workflow.workflow_base import WorkflowFactory

_open: dict[WorkflowFactory, _Shared] = {}
"""What is open in this process."""


@asynccontextmanager
async def share_setup(setup: RolloutSetup) -> AsyncIterator[None]:
    """Have in this process what episodes share while the block runs; the block that comes first opens it. Raises
    SetupError, and tells the driver, if that fails or has failed here before."""
    shared = _open.setdefault(setup.workflow_factory, _Shared(setup))
    shared.users += 1
    shared.unused.clear()
    try:
        if shared.started is None:
            shared.started = asyncio.create_task(shared.start())
        await asyncio.shield(shared.started)
        yield
    finally:
        shared.users -= 1
        if not shared.users:
            shared.unused.set()


class _Shared:
    def __init__(self, setup: RolloutSetup) -> None:
        self._factory, self._share = setup.workflow_factory, setup.share()
        self.users = 0
        self.unused = asyncio.Event()
        self.started: asyncio.Task[None] | None = None
        self._ended: asyncio.Task[None] | None = None

    async def start(self) -> None:
        try:
            await self._share.__aenter__()
        except SetupError as error:
            post(SetupFailed(str(error)))
            raise
        await find_mailbox().count_open.remote()
        self._ended = asyncio.create_task(self._end_with_the_run())

    async def _end_with_the_run(self) -> None:
        mailbox = find_mailbox()
        await mailbox.over.remote()
        await self.unused.wait()
        del _open[self._factory]  # a group that comes after all gets a new one, which ends with it
        await self._share.__aexit__(None, None, None)
        await mailbox.count_closed.remote()

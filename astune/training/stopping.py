"""The end of a run: reached, asked for with Ctrl-C, or forced by an error. The steps that are done are saved."""

from __future__ import annotations

import asyncio
import os
from contextlib import nullcontext
from typing import Literal

from astune.errors import CtrlC, RunFolderError, SetupError, StoreError, TrainingError
from astune.support.signals import on_ctrl_c
from astune.training.checkpoints import save, sync_logs
from astune.training.engine import await_unless_lost
from astune.training.loop import train
from astune.training.run import TrainingRun

Status = Literal["completed", "interrupted", "failed"]


async def train_to_the_end(run: TrainingRun) -> tuple[Status, Exception | None]:
    """Train between `setup` and `teardown` of the run's workflow. Returns how it ended, and the error if that is
    nothing that was said already. Raises SetupError where no episode could begin."""
    try:
        async with nullcontext() if run.setup is None else run.setup.open():
            return await _until_stopped(run)
    except SetupError:
        run.run_dir.discard()  # a run that never began leaves nothing behind
        raise


async def _until_stopped(run: TrainingRun) -> tuple[Status, Exception | None]:
    """Train to the end, to the first Ctrl-C (between two model steps), or to where training cannot go on. Whatever ends
    it, the steps that are done are saved; a second Ctrl-C ends the run at once, and a third one the process, whatever
    goes on in it."""
    loop = asyncio.get_running_loop()
    task, lost = asyncio.ensure_future(train(run)), run.lost()
    stopped = 0

    def stop() -> None:
        nonlocal stopped
        stopped += 1
        if stopped > 2:  # the workflow's own code caught what the second one raised, and goes on
            os._exit(130)
        if stopped == 2:
            raise CtrlC
        loop.call_soon_threadsafe(task.cancel)

    with on_ctrl_c(stop):
        status: Status = "completed"
        error: Exception | None = None
        try:
            await await_unless_lost(task, lost)
        except asyncio.CancelledError:
            status = "interrupted"
        except Exception as stopped_by:
            status, error = "failed", stopped_by
        if not isinstance(error, RunFolderError | StoreError):
            try:
                save(run)
                sync_logs(run)
            except (RunFolderError, StoreError) as unsaved:
                status, error = "failed", unsaved
            except TrainingError as unsaved:  # the engine is gone, and what was saved before is what there is
                status, error = "failed", error or unsaved
    if isinstance(error, TrainingError | RunFolderError | StoreError):
        run.progress.note(f"stopped: {error}")
        error = None
    return status, error

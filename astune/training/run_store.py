"""The database that a run writes to besides its folder, where `astune.monitor.store` names one."""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

from astune.config.schema import AstuneConfig, Config
from astune.errors import explain_missing
from astune.monitor.run_dir import RunDir

if TYPE_CHECKING:
    from astune.store.runs import RunStore


def open_run_store(config: AstuneConfig, stack: ExitStack) -> RunStore | None:
    """Open the database that the configuration names; None where it names none. Raises StoreError where it cannot be
    used, and MissingDependency."""
    if config.monitor.store is None:
        return None
    with explain_missing("astune.monitor.store", "'astune[online]'"):
        from astune.store.runs import RunStore
    store = RunStore(config.monitor.store)
    stack.callback(store.close)
    return store


def begin_run(store: RunStore | None, config: Config, run_dir: RunDir, new: bool) -> None:
    """Enter the run, or go on with the rows of one that is not new. The database's own address is not kept, as it may
    hold a password."""
    if store is None:
        return
    monitor = config.astune.monitor.model_copy(update={"store": None})
    astune = config.astune.model_copy(update={"monitor": monitor})
    kept = config.model_copy(update={"astune": astune}).model_dump(mode="json")
    store.begin(str(run_dir.path.absolute()), kept, now=time.time(), again=not new)

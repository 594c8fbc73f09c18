"""Python's garbage collector beside many objects that stay: turns, conversations, imported modules."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

OLDEST = 2
"""The collector's last generation: a collection of it looks at every object that is not frozen."""
FEWEST = 64
"""Collections after which everything is looked at again, at the soonest."""


@contextmanager
def short_pauses() -> Iterator[None]:
    """Within it the collector does not look again at what it has found in use: a pause is as long as what came since
    the last, and not as what there is. Everything is looked at when as much again has been kept as the last time, so
    that what is left of broken cycles is at most about half of what is in memory.

    >>> with short_pauses():
    ...     gc.get_freeze_count() > 0
    True
    """
    gc.collect()
    gc.freeze()
    since, due = 0, FEWEST

    def after(phase: str, info: Mapping[str, Any]) -> None:
        nonlocal since, due
        if phase == "start" and info["generation"] == OLDEST and since >= due:
            gc.unfreeze()  # into the generation that is about to be collected
            since, due = 0, due + since
        elif phase == "stop" and info["generation"] == OLDEST:
            since += 1
            gc.freeze()

    gc.callbacks.append(after)
    try:
        yield
    finally:
        gc.callbacks.remove(after)
        gc.unfreeze()

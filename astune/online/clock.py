"""The clock of a process that runs for long, and the time that a conversation's prompts are written at."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable
from datetime import datetime

from astune.config.schema import ModelConfig
from astune.context_tracker.prompt.chat_format import ChatFormat

logger = logging.getLogger(__name__)

STEP = 60.0
"""Seconds by which a machine's clock is corrected every now and then; more is a clock that was set."""


def _wall() -> float:
    return time.time()


def _count_seconds() -> float:
    """Seconds since any moment, with those in which the machine was suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if sys.platform == "linux" else time.monotonic()


class SteadyClock:
    """`clock()` is in seconds since 1970 and never goes back. It follows the machine's clock, but not where that is set
    by more than `STEP`: then it goes on as time passes, and says so in the log, until the machine's is right again or
    the process is started anew. For `wall` and `passed` see above."""

    def __init__(self, wall: Callable[[], float] = _wall, passed: Callable[[], float] = _count_seconds) -> None:
        self._wall, self._passed = wall, passed
        self._right = wall(), passed()
        """The machine's clock when it was last right, and at which moment."""
        self._last = self._right[0]
        self._was_set = False
        self._lock = threading.Lock()

    def __call__(self) -> float:
        with self._lock:
            wall, passed = self._wall(), self._passed()
            expected = self._right[0] + passed - self._right[1]
            was_set = abs(wall - expected) > STEP
            if not was_set:
                self._right = wall, passed
            elif not self._was_set:
                logger.error(
                    "the machine's clock was set by %+.0f seconds; this process goes on with the time as it was. Start "
                    "it again if the clock is right now",
                    wall - expected,
                )
            self._was_set = was_set
            self._last = max(self._last, expected if was_set else wall)
            return self._last


def format_at(chat_format: ChatFormat, model: ModelConfig, began: float) -> ChatFormat:
    """`chat_format` for a conversation that began at that time, in seconds since 1970."""
    return chat_format.at(model.clock or datetime.fromtimestamp(began).replace(microsecond=0))

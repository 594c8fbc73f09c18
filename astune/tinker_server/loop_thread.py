"""An event loop in a thread of its own, for work that keeps its loop busy: here, the steps of the samplers."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class LoopThread:
    """Runs coroutines beside the caller's loop. A coroutine whose caller is cancelled is cancelled too."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))

    def close(self, seconds: float = 2.0) -> None:
        """Stop after the step under way, or leave it behind if it takes longer than `seconds`."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(seconds)

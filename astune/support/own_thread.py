"""A thread for calls that block, which nothing else can take away."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Result = TypeVar("Result")


class OwnThread:
    """Makes one call after another. The threads of `asyncio.to_thread` are few, and tools of agents may hold all of
    them."""

    def __init__(self, name: str) -> None:
        self._executor = ThreadPoolExecutor(1, thread_name_prefix=name)

    async def finished(self, call: Callable[[], Result]) -> Result:
        """What the call returns. It is waited for even if nobody wants it any more: nothing is left half done."""
        made = asyncio.get_running_loop().run_in_executor(self._executor, call)
        try:
            return await asyncio.shield(made)
        except asyncio.CancelledError:
            await asyncio.wait([made])
            raise

    def close(self) -> None:
        """End the thread, once the call that it is at has returned."""
        self._executor.shutdown(wait=False)

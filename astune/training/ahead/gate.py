"""Weights change between two answers, never within one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from astune.types import Generation, Policy, Sampling


class Gate:
    """A `Policy` in front of the engine's, through which calls pass unless it is shut.

    Invariant: within `shut` no answer is under way, so that all tokens of an answer are of one policy version. An
    episode goes on under the new one with its next call.
    """

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._under_way = 0
        self._open, self._idle = asyncio.Event(), asyncio.Event()
        self._open.set()

    @property
    def context_length(self) -> int:
        return self._policy.context_length

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling) -> Generation:
        await self._open.wait()
        self._under_way += 1
        try:
            return await self._policy.generate(prompt_ids, sampling)
        finally:
            self._under_way -= 1
            if not self._under_way:
                self._idle.set()

    async def close(self) -> None:
        """Wait until the answers under way have ended; calls that come meanwhile wait until `open`."""
        self._open.clear()
        while self._under_way:
            self._idle.clear()
            await self._idle.wait()

    def open(self) -> None:
        self._open.set()

    @asynccontextmanager
    async def shut(self) -> AsyncIterator[None]:
        """Within it, it is closed."""
        try:
            await self.close()
            yield
        finally:
            self.open()

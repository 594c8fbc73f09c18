"""Work done side by side, of which nothing is left behind."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from typing import TypeVar

T = TypeVar("T")


async def all_or_none(work: Sequence[Awaitable[T]]) -> list[T]:
    """All results in order. If one raises, or the caller is cancelled, the rest are cancelled and waited for."""
    jobs = [asyncio.ensure_future(one) for one in work]
    try:
        return await asyncio.gather(*jobs)
    except BaseException:
        for job in jobs:
            job.cancel()
        await asyncio.gather(*jobs, return_exceptions=True)
        raise


async def all_ended(work: Sequence[Awaitable[T]]) -> list[T]:
    """All results in order. If one raises, the rest go on, as they may be paid; then the first exception is raised."""
    results = await asyncio.gather(*work, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return [result for result in results if not isinstance(result, BaseException)]

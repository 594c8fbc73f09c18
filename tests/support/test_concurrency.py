"""Work side by side: what is cancelled may take its time to end, and is cancelled once."""

from __future__ import annotations

import asyncio

import pytest

from astune.support.concurrency import all_or_none


async def leaves(turns: int, left: list[int]) -> None:
    """Waits to be cancelled, and then needs so many turns of the event loop."""
    try:
        await asyncio.Event().wait()
    finally:
        for _ in range(turns):
            await asyncio.sleep(0)
        left.append(turns)


async def nested(groups: list[list[int]], left: list[int]) -> None:
    await all_or_none([all_or_none([leaves(turns, left) for turns in group]) for group in groups])


async def test_whatever_is_cancelled_ends_in_its_own_time() -> None:
    left: list[int] = []
    work = asyncio.create_task(nested([[0, 9, 30], [60, 3]], left))
    await asyncio.sleep(0.01)
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work
    assert sorted(left) == [0, 3, 9, 30, 60]


async def test_the_first_error_cancels_the_rest_and_is_raised_when_they_have_ended() -> None:
    left: list[int] = []

    async def fails() -> None:
        await asyncio.sleep(0)
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        await all_or_none([leaves(20, left), fails(), leaves(5, left)])
    assert sorted(left) == [5, 20]


async def test_results_stand_in_the_order_of_the_work() -> None:
    async def gives(number: int) -> int:
        for _ in range(5 - number):
            await asyncio.sleep(0)
        return number

    assert await all_or_none([gives(number) for number in range(5)]) == [0, 1, 2, 3, 4]
    assert await all_or_none([]) == []

import asyncio

import pytest

from astune.clients.single_flight import SingleFlight


async def test_work_that_has_ended_is_done_anew_after_an_error_too():
    async def fail():
        raise OSError("gone")

    async def succeed():
        return 1

    flights = SingleFlight()
    results = await asyncio.gather(*(flights.join("key", fail) for _ in range(3)), return_exceptions=True)
    assert [str(result) for result in results] == ["gone"] * 3
    assert await asyncio.gather(*(flights.join("key", succeed) for _ in range(3))) == [
        (1, True),
        (1, False),
        (1, False),
    ]


async def test_the_end_of_given_up_work_leaves_what_was_begun_since_alone():
    async def slow():
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            await ending.wait()

    async def second():
        begun.append(1)
        working.set()
        await done.wait()
        return "shared"

    flights, begun = SingleFlight(), []
    started, ending, working, done = (asyncio.Event() for _ in range(4))
    first = asyncio.create_task(flights.join("key", slow))
    await started.wait()
    first.cancel()
    await asyncio.wait([first])
    others = [asyncio.create_task(flights.join("key", second))]
    ending.set()
    await working.wait()
    others.append(asyncio.create_task(flights.join("key", second)))
    await asyncio.sleep(0)
    done.set()
    assert await asyncio.gather(*others) == [("shared", True), ("shared", False)]
    assert begun == [1]
    with pytest.raises(asyncio.CancelledError):
        await first

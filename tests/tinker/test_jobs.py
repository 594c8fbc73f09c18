"""Answers that are fetched later, and requests of one model in their order."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from astune.tinker_server import jobs
from astune.tinker_server.jobs import JobResult, Jobs, RequestQueue
from astune.tinker_server.requests import RequestError


def recorder(log: list[str], name: int) -> Callable[[], Awaitable[int]]:
    async def work() -> int:
        log.append(f"begin {name}")
        await asyncio.sleep(0)
        log.append(f"end {name}")
        return name

    return work


@given(st.permutations([1, 2, 3, 4, 5]))
def test_requests_run_one_at_a_time_in_the_order_of_their_numbers(arrivals: list[int]) -> None:
    async def scenario() -> None:
        queue, log = RequestQueue(), []
        running = []
        for number in arrivals:
            running.append(asyncio.create_task(queue.run(number, recorder(log, number))))
            await asyncio.sleep(0)
        assert await asyncio.gather(*running) == arrivals
        assert log == [f"{what} {number}" for number in range(1, 6) for what in ("begin", "end")]

    asyncio.run(scenario())


@pytest.mark.fault("The OpenAI-compatible endpoint", "a request to the tinker server fails", "the next ones run")
async def test_a_request_that_fails_does_not_stop_the_next() -> None:
    queue = RequestQueue()

    async def failing() -> None:
        raise ValueError("no")

    first = asyncio.create_task(queue.run(1, failing))
    second = asyncio.create_task(queue.run(2, recorder([], 2)))
    with pytest.raises(ValueError, match="no"):
        await first
    assert await second == 2


async def test_a_number_that_never_comes_is_passed_over_and_then_is_late(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "GAP_SECONDS", 0.01)
    queue, log = RequestQueue(), []
    late = [asyncio.create_task(queue.run(number, recorder(log, number))) for number in (4, 3)]
    assert await asyncio.gather(*late) == [4, 3]
    assert log == ["begin 3", "end 3", "begin 4", "end 4"]
    with pytest.raises(RequestError, match="request 2 of this model came too late: 4 has run already"):
        await queue.run(2, recorder(log, 2))


async def test_a_request_that_is_stopped_while_it_waits_or_runs_leaves_the_turn_to_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(jobs, "GAP_SECONDS", 0.01)
    queue = RequestQueue()
    running = asyncio.create_task(queue.run(1, lambda: asyncio.sleep(60)))
    waiting = asyncio.create_task(queue.run(2, recorder([], 2)))
    third = asyncio.create_task(queue.run(3, recorder([], 3)))
    await asyncio.sleep(0)
    waiting.cancel()
    running.cancel()
    assert await third == 3


@pytest.mark.fault("The OpenAI-compatible endpoint", "a request is sent to the tinker server twice", "it runs once")
async def test_an_answer_can_be_fetched_again_and_a_request_sent_twice_runs_once() -> None:
    started = Jobs()
    runs = []

    async def work() -> JobResult:
        runs.append(1)
        return {"n": len(runs)}

    for _ in range(2):
        started.start("a-1", work)
        assert await started.fetch("a-1", 1.0) == {"n": 1}


async def test_failures_are_answers_that_say_whose_fault_it_was() -> None:
    started = Jobs()

    async def of_user() -> JobResult:
        raise RequestError("a wrong name")

    async def of_server() -> JobResult:
        raise ZeroDivisionError("oh")

    started.start("a-1", of_user)
    started.start("a-2", of_server)
    assert await started.fetch("a-1", 1.0) == {"error": "a wrong name", "category": "user"}
    assert await started.fetch("a-2", 1.0) == {"error": "ZeroDivisionError: oh", "category": "server"}


async def test_who_fetches_too_early_is_told_to_come_again_and_old_answers_go() -> None:
    started = Jobs()
    gate = asyncio.Event()

    async def work() -> JobResult:
        await gate.wait()
        return b"done"

    started.start("s1-1", work)
    assert await started.fetch("s1-1", 0.01) is None
    gate.set()
    assert await started.fetch("s1-1", 1.0) == b"done"
    for number in range(jobs.KEPT):
        started.start(f"s2-{number}", work)
        await started.fetch(f"s2-{number}", 1.0)
    with pytest.raises(RequestError, match="no request 's1-1'"):
        await started.fetch("s1-1", 1.0)
    started.drop("s2-")
    with pytest.raises(RequestError, match="no request 's2-5'"):
        await started.fetch("s2-5", 1.0)

"""What comes of messages is let go in the same order at the same step, whenever it comes."""

from __future__ import annotations

import asyncio
import random

from hypothesis import given
from hypothesis import strategies as st

from astune.rollout import rounds as module
from astune.rollout.rounds import AHEAD, Rounds, Ticket


async def let_go(steps: int, workers: int, timing: random.Random) -> list[list[int]]:
    """What is let go before each of some steps, where each of some workers makes of a round's message two things."""
    rounds, found, tasks = Rounds(), [], []
    with rounds.stepping():
        for step in range(steps):
            seen: list[int] = []
            while await rounds.settle(idle=False):
                await asyncio.sleep(0)
            found.append(seen)

            async def work(worker: int, ticket: Ticket, step: int = step) -> None:
                for _ in range(timing.randrange(4)):
                    await asyncio.sleep(0)
                keys = [10 * step + 2 * worker, 10 * step + 2 * worker + 1]
                rounds.close(ticket, [((key,), lambda key=key: found[-1].append(key)) for key in reversed(keys)])  # type: ignore[misc]

            rounds.advance()
            tasks += [asyncio.ensure_future(work(worker, rounds.open())) for worker in range(workers)]
            for _ in range(timing.randrange(3)):
                await asyncio.sleep(0)
        await asyncio.gather(*tasks)
    return found


@given(st.integers(1, 5), st.integers(1, 4), st.integers(0, 2**32))
def test_timing_changes_nothing(steps: int, workers: int, seed: int) -> None:
    one, other = (asyncio.run(let_go(steps, workers, random.Random(seed + n))) for n in (0, 1))
    assert one == other


async def test_an_idle_engine_waits_for_all() -> None:
    rounds, done = Rounds(), []
    with rounds.stepping():
        tickets = [rounds.open(), rounds.open()]
        rounds.advance()
        waiting = asyncio.ensure_future(rounds.settle(idle=True))
        for ticket in tickets:
            await asyncio.sleep(0)
            assert not done
            rounds.close(ticket, [(ticket, lambda: done.append(1))])
        assert await waiting and done == [1, 1]


async def test_a_busy_engine_goes_ahead() -> None:
    rounds, done = Rounds(), []
    with rounds.stepping():
        ticket = rounds.open()
        for _ in range(AHEAD):
            assert not await rounds.settle(idle=False)
            rounds.advance()
        rounds.close(ticket, [((1,), lambda: done.append(1))])
        assert await rounds.settle(idle=False) and done == [1]


async def test_without_an_engine_at_work_nothing_waits_for_a_step() -> None:
    rounds, done = Rounds(), []
    first, second = rounds.open(), rounds.open()
    rounds.close(first, [((2,), lambda: done.append(2))])
    assert done == []
    rounds.close(second, [((1,), lambda: done.append(1))])
    assert done == [1, 2]


async def test_agents_that_go_on_computing_hold_nobody_up_for_ever(monkeypatch, caplog) -> None:
    monkeypatch.setattr(module, "PATIENCE", 0.0)
    rounds, done = Rounds(), []
    with rounds.stepping():
        slow, other = rounds.open(), rounds.open()
        rounds.close(other)
        assert not await rounds.settle(idle=True)
        assert caplog.text.count("equal seeds may give other tokens") == 1
        later = rounds.open(waited_for=rounds.is_open(slow))  # to the same worker, which is behind
        assert not await rounds.settle(idle=True)
        assert caplog.text.count("equal seeds may give other tokens") == 1
        for ticket in (slow, later):
            rounds.close(ticket, [(ticket, lambda: done.append(1))])
        assert await rounds.settle(idle=True) and done == [1, 1]

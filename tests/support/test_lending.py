"""What is lent: to how many, whose it is, and that nothing is left of it."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

from astune.errors import EnvServiceError
from astune.support.lending import Lender
from tests.rows import each_row


class Things(Lender[int]):
    """Numbers, made one higher each time; every seventh cannot be made, every fifth breaks once it is used, every
    fourth is never as new again."""

    def __init__(self, isolation: str, warm: int, most: int, *, renewed: bool = True, fails: bool = True) -> None:
        super().__init__(isolation, warm, most)
        self.renewed, self.fails = renewed, fails
        self.number = self.under_way = self.most_under_way = 0
        self.there: set[int] = set()
        self.used: set[int] = set()

    async def make(self) -> int:
        self.number += 1
        number = self.number
        self.under_way += 1
        self.most_under_way = max(self.under_way, self.most_under_way)
        try:
            await asyncio.sleep(0)
        finally:
            self.under_way -= 1
        if self.fails and number % 7 == 0:
            raise EnvServiceError(f"no {number}")
        self.there.add(number)
        return number

    async def end(self, thing: int) -> None:
        await asyncio.sleep(0)
        self.there.remove(thing)

    def works(self, thing: int) -> bool:
        return not (self.fails and thing % 5 == 0 and thing in self.used)

    def can_be_renewed(self, thing: int) -> bool:
        return self.renewed or thing not in self.used

    async def renew(self, thing: int) -> None:
        await asyncio.sleep(0)
        if self.fails and thing % 4 == 0:
            raise EnvServiceError(f"{thing} cannot be renewed")
        self.used.discard(thing)


@each_row(
    ("isolation", "warm", "most"),
    [("episode", 0, 3), ("episode", 2, 3), ("episode", 4, 4), ("task", 0, 2), ("task", 2, 3), ("run", 2, 9)],
)
async def test_whatever_episodes_do_each_has_what_is_its_own_and_nothing_is_left(isolation, warm, most):
    for seed in range(40):
        rng = random.Random(seed)
        things = Things(isolation, warm, most, renewed=seed % 2 == 0)
        held: Counter[int] = Counter()
        of_task: dict[int, str] = {}

        async def episode(task: str, things=things, rng=rng, held=held, of_task=of_task) -> None:
            loan = await things.take(task)
            thing = await things.get(loan)
            try:
                assert thing in things.there
                if isolation == "episode":
                    assert held[thing] == 0 and thing not in things.used, "it is not as new"
                if isolation == "task":
                    assert held[thing] == 0 or of_task[thing] == task
                held[thing] += 1
                of_task[thing] = task
                assert len(+held) <= most or isolation == "run"
                things.used.add(thing)
                for _ in range(rng.randrange(4)):
                    await asyncio.sleep(0)
            finally:
                held[thing] -= 1
                things.give_back(loan)

        things.open()
        playing = [asyncio.ensure_future(episode(rng.choice("abc"))) for _ in range(12)]
        for each in rng.sample(playing, 3):
            for _ in range(rng.randrange(6)):
                await asyncio.sleep(0)
            each.cancel()
        for ended in await asyncio.gather(*playing, return_exceptions=True):
            assert ended is None or isinstance(ended, (EnvServiceError, asyncio.CancelledError)), ended
        await things.close()
        assert (things.there, things.under_way) == (set(), 0)


async def test_they_are_made_side_by_side():
    ahead, asked = Things("episode", 5, 5, fails=False), Things("episode", 0, 5, fails=False)
    ahead.open()
    await asyncio.gather(*(asked.take("a") for _ in range(5)))
    assert (ahead.most_under_way, asked.most_under_way) == (5, 5)
    for each in (ahead, asked):
        await each.close()


async def test_what_all_share_is_replaced_once_it_works_no_more():
    things = Things("run", 0, 1)
    loans = [await things.take("a") for _ in range(3)]
    things.fails = False
    assert {await things.get(loan) for loan in loans} == {1}
    things.works = lambda thing: thing > 1  # type: ignore[method-assign]
    assert await asyncio.gather(*(things.get(loan) for loan in loans)) == [2, 2, 2]
    await things.close()
    assert things.there == set()

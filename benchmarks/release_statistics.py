"""How often does a test between two versions cry wolf, and how soon does it see what is there? Simulated users.

    python benchmarks/release_statistics.py                 # 400 tests of each kind; two minutes on one core
    python benchmarks/release_statistics.py --tests 100
    python benchmarks/release_statistics.py --write         # the table of docs/online_versions.md anew

600 users rate 9 to 21 answers each with 0 or 1, over 40 days; somebody looks every evening. Users differ: the chance of
a 1 is normal around that of the version, with a standard deviation of 0.25, and cut at 0 and 1. "silent": two of three
never rate. "ramps": the challenger has 5 % of the users, from day 10 on 25 %, from day 20 on 50 %, and all users become
happier by 0.2 from the first day to the last. "late": a rating comes five days after its answer in the mean; it counts
to the stage and the version of the answer.

The sequence is `astune.online.release.statistics.compare`, over users and within stages, with alpha 5 %. Beside it
two tests over ratings, as if all were independent: the z-test at each look, and mSPRT with a normal mixture of 0.1.
Below, what a test of 0.6 against 0.7 finds, and after how many days in the mean where it does.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from astune.online.release.statistics import UnitTotals, compare, plan_units
from astune.support.terminal import Console
from benchmarks.bench_table import table_of

LOOKS, USERS, ALPHA, EFFECT = 40, 600, 0.05, 0.1
STAGES = ((0, 0.05), (10, 0.25), (20, 0.5))
METHODS = ("z-test", "mSPRT", "sequence")
PAGE = Path(__file__).resolve().parents[1] / "docs" / "online_versions.md"
BEGIN, END = "<!-- simulated -->\n", "<!-- end -->\n"


@dataclass(frozen=True)
class Scenario:
    name: str
    gain: float = 0.0
    taste: float = 0.25
    silent: float = 0.0
    ramps: bool = False
    late: float = 0.0


NOTHING = (
    Scenario("as they are"),
    Scenario("silent", silent=2 / 3),
    Scenario("ramps", ramps=True),
    Scenario("late", late=5.0),
    Scenario("all of it", silent=1 / 3, ramps=True, late=5.0),
)
SOMETHING = (
    Scenario("half of the users", gain=EFFECT),
    Scenario("silent", gain=EFFECT, silent=2 / 3),
    Scenario("ramps", gain=EFFECT, ramps=True),
    Scenario("late", gain=EFFECT, late=5.0),
)


def play(scenario: Scenario, seed: int) -> Iterator[UnitTotals]:
    """What is known at each look."""
    draw = np.random.default_rng(seed)
    rates = draw.integers(9, 22, USERS) * (draw.random(USERS) >= scenario.silent)
    user = np.repeat(np.arange(USERS), rates)
    when = draw.uniform(0, LOOKS, user.size)
    shares = STAGES if scenario.ramps else ((0, 0.5),)
    stage = sum((when >= begins).astype(int) for begins, _ in shares) - 1
    challenger = draw.random(USERS)[user] < np.array([share for _, share in shares])[stage]
    base = 0.6 + (0.2 * (when / LOOKS - 0.5) if scenario.ramps else 0.0) + scenario.gain * challenger
    value = draw.random(user.size) < np.clip(base + draw.normal(0, scenario.taste, USERS)[user], 0, 1)
    known = when + (draw.exponential(scenario.late, user.size) if scenario.late else 0.0)
    entry = (user * len(shares) + stage) * 2 + challenger
    size = USERS * len(shares) * 2
    numbers = np.arange(size)
    for look in range(1, LOOKS + 1):
        seen = known < look
        total, count = (np.bincount(entry[seen], weights, size) for weights in (value[seen], np.ones(seen.sum())))
        yield UnitTotals(numbers // 2 // len(shares), numbers // 2 % len(shares), numbers % 2 == 1, total, count)


def find(scenario: Scenario, seed: int) -> dict[str, int | None]:
    """The first look at which each method says that the versions differ; None if none does."""
    first: dict[str, int | None] = dict.fromkeys(METHODS)
    for look, seen in enumerate(play(scenario, seed), start=1):
        said = dict(zip(METHODS, (*_over_ratings(seen), _over_users(seen)), strict=True))
        for name, differs in said.items():
            if differs and first[name] is None:
                first[name] = look
    return first


def _over_users(seen: UnitTotals) -> bool:
    found = compare(seen, EFFECT, ALPHA)
    return found is not None and not found.low <= 0.0 <= found.high


def _over_ratings(seen: UnitTotals) -> tuple[bool, bool]:
    counts, totals = (
        np.array([column[~seen.challenger].sum(), column[seen.challenger].sum()]) for column in (seen.count, seen.total)
    )
    if counts.min() < 30:
        return False, False
    mean = totals.sum() / counts.sum()
    variance = max(1e-12, mean * (1 - mean) * (1 / counts).sum())
    off = totals[1] / counts[1] - totals[0] / counts[0]
    x = 0.1**2 / variance
    ratio = off**2 * x / (2 * variance * (1 + x)) - math.log1p(x) / 2
    return abs(off) > 1.96 * math.sqrt(variance), ratio > -math.log(ALPHA)


def count(scenario: Scenario, tests: int) -> tuple[dict[str, float], float]:
    """The share of the tests in which each method says that the versions differ, and the mean look of the sequence."""
    found = [find(scenario, seed) for seed in range(tests)]
    shares = {name: sum(each[name] is not None for each in found) / tests for name in METHODS}
    looks = [each["sequence"] for each in found if each["sequence"] is not None]
    return shares, float(np.mean(looks)) if looks else math.nan


def rows(tests: int) -> Iterator[Sequence[str]]:
    for scenario in (*NOTHING, *SOMETHING):
        shares, looks = count(scenario, tests)
        true = "0.6 and 0.7" if scenario.gain else "no difference"
        days = f"{looks:.0f}" if scenario.gain else ""
        # The tests over ratings find as much as they cry wolf.
        others = ("", "") if scenario.gain else (f"{shares[name]:.0%}" for name in METHODS[:2])
        yield (true, scenario.name, *others, f"{shares['sequence']:.1%}", days)


COLUMNS = ("truth", "users", "z-test", "mSPRT", "sequence", "days")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tests", type=int, default=400, help="of each kind")
    parser.add_argument("--write", action="store_true", help="the table of docs/online_versions.md")
    given = parser.parse_args()
    found = list(rows(given.tests))
    Console().print(table_of(f"a difference is said in this share of {given.tests} tests", COLUMNS, found, left=2))
    Console().print(f"the plan for 0.6 against 0.7, half and half: {plan_units(EFFECT, 0.08, 0.5)} users who rate")
    if given.write:
        lines = [COLUMNS, ["---"] * len(COLUMNS), *found]
        table = "".join(f"| {' | '.join(line)} |\n" for line in lines)
        before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
        PAGE.write_text(before + BEGIN + table + END + rest.partition(END)[2], encoding="utf-8")


if __name__ == "__main__":
    main()

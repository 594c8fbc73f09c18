"""Arithmetic word problems, generated from a seed: `python make_tasks.py` writes `data/` anew, byte for byte.

A *kind* is a short story with numbers in it and the chain of calculations that solves it. The numbers decide
which split a problem belongs to (a hash of kind and numbers), so problems of one split never appear in another,
not even under other names: what is measured on `heldout` was seen neither in training nor by the shipped model.

    >>> next(problems("train", seed=1)).query      # doctest: +SKIP
    'Maria has 35 apples. Omar gives Maria 48 more apples. How many apples does Maria have now?'
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Literal

Split = Literal["warmup", "train", "heldout"]
Numbers = tuple[int, ...]
Step = tuple[str, str, str]
"""Left operand, operation, right operand. An operand is the name of a number ('a' to 'd') or 'r': the last result."""

SHARES: dict[Split, range] = {"warmup": range(0, 9), "train": range(9, 17), "heldout": range(17, 20)}
"""Which twentieths of the hash belong to which split."""

# fmt: off
NAMES = (
    "Maria", "Omar", "Lena", "Tom", "Aisha", "Ben", "Chen", "Dora", "Emil", "Fatima", "Greta", "Hugo", "Ines",
    "Jack", "Kofi", "Lucy", "Mona", "Nils", "Olga", "Priya", "Ravi", "Sara", "Theo", "Uma",
)
ITEMS = (
    "apples", "pears", "books", "pens", "stickers", "marbles", "coins", "shells", "stamps", "cards",
    "cookies", "eggs", "roses", "cups", "candles", "beads", "balloons", "lemons", "buttons", "tickets",
)
# fmt: on


@dataclass(frozen=True)
class Kind:
    """One sort of problem: how its numbers are drawn, how it is solved, and the ways to tell it."""

    name: str
    plan: tuple[Step, ...]
    draw: Callable[[random.Random], Numbers]
    wordings: tuple[str, ...]


@dataclass(frozen=True)
class Problem:
    """A told problem: what the numbers 'a' to 'd' are, and the steps that lead to the answer."""

    kind: str
    numbers: Numbers
    query: str
    plan: tuple[Step, ...]
    answer: int

    def row(self, task_id: str) -> dict[str, str | int]:
        return {
            "task_id": task_id,
            "query": self.query,
            "answer": str(self.answer),
            "kind": self.kind,
            "steps": len(self.plan),
        }


def _two(rng: random.Random) -> Numbers:
    return rng.randint(2, 99), rng.randint(2, 99)


def _larger_first(rng: random.Random) -> Numbers:
    a = rng.randint(12, 99)
    return a, rng.randint(2, a - 2)


def _factors(rng: random.Random) -> Numbers:
    return rng.randint(2, 60), rng.randint(2, 30)


def _dividend(rng: random.Random) -> Numbers:
    b = rng.randint(2, 20)
    return b * rng.randint(2, 60), b


def _factors_and_more(rng: random.Random) -> Numbers:
    return rng.randint(2, 30), rng.randint(2, 20), rng.randint(2, 99)


def _budget(rng: random.Random) -> Numbers:
    b, c = rng.randint(2, 20), rng.randint(2, 20)
    return b * c + rng.randint(2, 99), b, c


def _pool(rng: random.Random) -> Numbers:
    c = rng.randint(2, 12)
    total = c * rng.randint(max(2, 8 // c + 1), max(9, 160 // c))
    a = rng.randint(2, total - 2)
    return a, total - a, c


def _trip(rng: random.Random) -> Numbers:
    a, b, c = rng.randint(2, 30), rng.randint(2, 30), rng.randint(2, 12)
    return a, b, c, rng.randint(2, min(99, (a + b) * c - 2))


KINDS: tuple[Kind, ...] = (
    Kind(
        "join",
        (("a", "+", "b"),),
        _two,
        (
            "{name} has {a} {item}. {other} gives {name} {b} more {item}. How many {item} does {name} have now?",
            "There are {a} {item} in the first box and {b} {item} in the second box. How many {item} are there in all?",
            "{name} found {a} {item} in the morning and {b} {item} in the evening. How many {item} did {name} find?",
            "{name} owns {a} {item}. {other} owns {b} {item}. How many {item} do they own together?",
            "A shop sold {a} {item} on Monday and {b} {item} on Tuesday. How many {item} were sold on both days?",
        ),
    ),
    Kind(
        "take_away",
        (("a", "-", "b"),),
        _larger_first,
        (
            "{name} has {a} {item} and loses {b} of them. How many {item} are left?",
            "There were {a} {item} on the table. {name} took {b} of them away. How many {item} remain?",
            "{name} had {a} {item} and gave {b} to {other}. How many {item} does {name} still have?",
            "Of {a} {item}, {b} are broken. How many {item} are not broken?",
            "{name} wants {a} {item} and already has {b}. How many {item} are missing?",
        ),
    ),
    Kind(
        "groups",
        (("a", "*", "b"),),
        _factors,
        (
            "{name} fills {a} bags with {b} {item} each. How many {item} are in the bags?",
            "There are {a} rows with {b} {item} in every row. How many {item} are there?",
            "One box holds {b} {item}. How many {item} do {a} boxes hold?",
            "{name} makes {b} {item} per hour. How many {item} does {name} make in {a} hours?",
            "Each of {a} children brings {b} {item}. How many {item} do the children bring?",
        ),
    ),
    Kind(
        "share",
        (("a", "/", "b"),),
        _dividend,
        (
            "{name} shares {a} {item} equally among {b} friends. How many {item} does each friend get?",
            "{a} {item} are packed into {b} equal boxes. How many {item} are in one box?",
            "{name} splits {a} {item} into {b} equal piles. How many {item} are in each pile?",
            "{name} needs {b} {item} for one cake. How many cakes can be made with {a} {item}?",
            "It takes {name} {b} days to use up {a} {item}, the same number per day. How many {item} are used per day?",
        ),
    ),
    Kind(
        "groups_and_more",
        (("a", "*", "b"), ("r", "+", "c")),
        _factors_and_more,
        (
            "{name} buys {a} packs of {b} {item} and then finds {c} more. How many {item} does {name} have?",
            "{name} has {c} {item} and {a} full boxes with {b} {item} in each box. How many {item} is that in total?",
            "A hall has {a} rows of {b} seats and {c} seats at the back. How many seats does the hall have?",
            "{name} earns {b} dollars an hour. {name} works {a} hours and gets a tip of {c} dollars. What is the pay?",
        ),
    ),
    Kind(
        "change",
        (("b", "*", "c"), ("a", "-", "r")),
        _budget,
        (
            "{name} has {a} dollars and buys {b} {item} for {c} dollars each. How many dollars are left?",
            "{name} has {a} {item} and gives {b} {item} to each of {c} friends. How many {item} does {name} keep?",
            "From {a} {item}, {name} fills {c} baskets with {b} {item} per basket. How many {item} are not in a"
            " basket?",
            "A road is {a} miles long. {name} walks {b} miles a day for {c} days. How many miles are still to go?",
        ),
    ),
    Kind(
        "pool_and_share",
        (("a", "+", "b"), ("r", "/", "c")),
        _pool,
        (
            "{name} and {other} put {a} and {b} {item} together and make {c} equal gifts. How many {item} per gift?",
            "A class of {a} girls and {b} boys forms {c} equal teams. How many children are in a team?",
            "{name} picks {a} red and {b} green {item} and sorts them into {c} equal jars. How many {item} per jar?",
            "With {a} old and {b} new {item}, {name} fills {c} shelves evenly. How many {item} stand on one shelf?",
        ),
    ),
    Kind(
        "trip",
        (("a", "+", "b"), ("r", "*", "c"), ("r", "-", "d")),
        _trip,
        (
            "Every day {name} bakes {a} {item} and {other} bakes {b}. After {c} days they eat {d}. How many remain?",
            "A ticket costs {a} dollars and a meal {b} dollars. {name} pays both for {c} guests, less a discount of {d}"
            " dollars. What is the bill?",
            "Each of {c} crates holds {a} red and {b} blue {item}. {name} removes {d}. How many {item} stay in the"
            " crates?",
        ),
    ),
)


def split_of(kind: str, numbers: Numbers) -> Split:
    """The one split that this kind with these numbers belongs to."""
    digest = hashlib.sha256(f"{kind}:{numbers}".encode()).digest()
    twentieth = int.from_bytes(digest[:8], "big") % 20
    return next(split for split, share in SHARES.items() if twentieth in share)


def solve(plan: tuple[Step, ...], numbers: Numbers) -> int:
    """The answer: each step of the plan carried out in turn."""
    values = dict(zip("abcd", numbers, strict=False))
    for left, sign, right in plan:
        x, y = values[left], values[right]
        values["r"] = {"+": x + y, "-": x - y, "*": x * y, "/": x // y}[sign]
    return values["r"]


def problems(split: Split, seed: int) -> Iterator[Problem]:
    """Endless problems of one split, kinds in turn, no text twice; equal seeds give equal problems."""
    rng = random.Random(f"{split}:{seed}")
    told: set[str] = set()
    for kind in cycle(KINDS):
        problem = _tell(kind, rng)
        while split_of(kind.name, problem.numbers) != split or problem.query in told:
            problem = _tell(kind, rng)
        told.add(problem.query)
        yield problem


def _tell(kind: Kind, rng: random.Random) -> Problem:
    numbers = kind.draw(rng)
    name, other = rng.sample(NAMES, 2)
    wording = rng.choice(kind.wordings)
    query = wording.format(name=name, other=other, item=rng.choice(ITEMS), **dict(zip("abcd", numbers, strict=False)))
    return Problem(kind.name, numbers, query, kind.plan, solve(kind.plan, numbers))


def write(path: Path, split: Split, count: int, seed: int) -> None:
    """The first `count` problems of a split, one JSON line each."""
    rows = [p.row(f"{split}-{i:04d}") for i, p in zip(range(count), problems(split, seed), strict=False)]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def main() -> None:
    data = Path(__file__).parent / "data"
    write(data / "train.jsonl", "train", count=2000, seed=0)
    write(data / "heldout.jsonl", "heldout", count=400, seed=0)
    print(f"wrote 2000 training and 400 held-out tasks to {data}")


if __name__ == "__main__":
    main()

"""How much of what a model proposes wrongly do the filters of `astune data` find, and what do they cost in good tasks?

    python benchmarks/data_filters.py                # a minute on one core
    python benchmarks/data_filters.py --seeds 3

A scripted generator (`tests/data/planted.py`) proposes 600 tasks, a tenth of them with each fault: word problems of six
stories with other people, things and numbers, beside ten seeds and sixteen held-out questions of eight other stories.
Precision is the share of what a filter drops that has its fault, recall the share of the faulty that it drops.

Below, copies of a held-out question with more and more of its words replaced: the share that passes as no leak. And
good tasks of the same stories as the held-out ones, as in a data set that was split: the share that counts as leaks.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Mapping, Sequence
from statistics import mean

from astune.data.made import Made
from astune.data.near import Leaks
from astune.data.screen import Lengths, TaskScreen
from astune.support.terminal import Console
from benchmarks.bench_table import table_of
from tests.data.planted import STORIES, PlantedTasks, change_words, draw_tasks  # type: ignore[import-not-found]

SHARE, COUNT = 0.1, 600
FAULTS = ("copy", "near copy", "leak", "language", "length", "empty")
CHANGED = (0.1, 0.2, 0.25, 0.3, 0.4, 0.5)


def measure(seed: int) -> Mapping[str, tuple[float, float]]:
    """Precision and recall of each filter; as "good kept" the share of good tasks that are kept."""
    world = PlantedTasks(seed, dict.fromkeys(FAULTS, SHARE))
    rng = random.Random(seed)
    screen = TaskScreen(world.seeds, world.held_out, Lengths.around([task.query for task in world.seeds]))
    found: list[tuple[str | None, str | None]] = []
    for proposal in (world.propose([], rng, "") for _ in range(COUNT)):
        made = Made(proposal["question"], proposal["answer"], {})
        dropped = screen.look(made, world.seeds[0].query) or screen.admit(made)
        found.append((world.planted[made.query], dropped.reason if dropped else None))
    figures = {}
    for fault in FAULTS:
        names = {fault, "copy"} if fault == "near copy" else {fault}  # the second of two equal near copies is a copy
        of = names | {"near copy"} if fault == "copy" else names
        planted_of_dropped = [planted for planted, reason in found if reason in names]
        reasons_of_planted = [reason for planted, reason in found if planted == fault]
        figures[fault] = (
            mean(planted in of for planted in planted_of_dropped),
            mean(reason in names for reason in reasons_of_planted),
        )
    kept = mean(reason is None for planted, reason in found if planted is None)
    return {**figures, "good kept": (kept, kept)}


def pass_rates(seed: int) -> list[float]:
    """The share of changed held-out questions that count as no leak, by the share of their words that was changed."""
    world, rng = PlantedTasks(seed), random.Random(seed)
    leaks = Leaks(world.held_out, world.seeds)
    return [
        mean(leaks.find(change_words(task.query, rng, share)) is None for task in world.held_out * 20)
        for share in CHANGED
    ]


def mistaken(seed: int) -> float:
    """The share of good tasks that count as leaks of twenty held-out ones of the same six stories."""
    rng = random.Random(seed)
    leaks = Leaks(draw_tasks(20, seed + 100, "held"), draw_tasks(10, seed))
    return mean(leaks.find(rng.choice(STORIES)(rng)[0]) is not None for _ in range(200))


def main(seeds: Sequence[int]) -> None:
    console, measured = Console(), [measure(seed) for seed in seeds]
    rows = [
        [fault, *(f"{mean(figures[fault][at] for figures in measured):.1%}" for at in (0, 1))] for fault in measured[0]
    ]
    console.print(table_of("filters on planted faults", ["filter", "precision", "recall"], rows))
    rates = [pass_rates(seed) for seed in seeds]
    rows = [[f"{share:.0%}", f"{mean(rate[at] for rate in rates):.1%}"] for at, share in enumerate(CHANGED)]
    console.print(table_of("held-out questions with words changed", ["words changed", "leaks that pass"], rows))
    rows = [[f"{mean(mistaken(seed) for seed in seeds):.1%}"]]
    console.print(table_of("good tasks like the held-out ones", ["that count as leaks"], rows, left=0))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=3, metavar="N", help="generators; default: 3")
    main(range(parser.parse_args().seeds))

"""How much of what a model proposes wrongly do the filters of `astune data` find, and what do they cost in good tasks?

    python benchmarks/data_filters.py                # a minute on one core
    python benchmarks/data_filters.py --seeds 3

A scripted generator (`tests/data/planted.py`) proposes 600 tasks, a tenth of them with each fault: word problems of six
stories with other people, things and numbers, beside ten seeds and sixteen held-out questions of eight other stories.
Precision is the share of what a filter drops that has its fault, recall the share of the faulty that it drops.

The second table has the checks: two solutions each, a rubric, and those of questions about documents, on what comes
to them. Below, copies of a held-out question with more and more of its words replaced: the share that passes as no
leak. And good tasks of the same stories as the held-out ones, as in a data set that was split: the share that counts
as leaks.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import mean
from tempfile import TemporaryDirectory
from typing import Any, TypeAlias

from astune.data.made import Made
from astune.data.near import Leaks
from astune.data.screen import Lengths, TaskScreen, form_of
from astune.support.terminal import Console
from astune.types import Task
from benchmarks.bench_table import table_of
from tests.data.planted import STORIES, PlantedTasks, change_numbers, change_words, draw_tasks  # type: ignore[import-not-found]
from tests.data.planted_documents import PlantedDocuments  # type: ignore[import-not-found]
from tests.data.runs import AGREE, ask, expand, rows_of, write_rubric  # type: ignore[import-not-found]

Rows: TypeAlias = Sequence[Mapping[str, Any]]

SHARE, COUNT = 0.1, 600
FAULTS = ("copy", "near copy", "leak", "language", "length", "format", "empty")
CHANGED = (0.0, 0.1, 0.2, 0.25, 0.3, 0.4, 0.5)
FOUND_AS = {
    "near copy": {"near copy", "copy"},  # the second of two equal near copies is a copy
    "wrong answer": {"wrong answer", "no agreement"},
    "unanswerable": {"evidence", "wrong answer"},
}
"""The reasons for which a fault may be dropped, where it is not its own name alone."""
ALSO = {"copy": {"near copy"}, "evidence": {"unanswerable"}, "wrong answer": {"unanswerable"}}
"""Faults that a filter may find beside that of its name."""
SHARES_CHECKED = {"wrong answer": 0.2, "quality": 0.15}
SHARES_ASKED = {"evidence": 0.15, "wrong answer": 0.1, "known": 0.1, "unanswerable": 0.1, "found": 0.4}

Found = Sequence[tuple[str | None, str | None]]
"""Of each proposal the fault that was planted in it, and the reason for which it was dropped."""


def figures_of(found: Found, faults: Iterable[str]) -> Mapping[str, tuple[float, float]]:
    """Precision and recall of each filter; as "good kept" the share of good tasks that are kept."""
    figures = {}
    for fault in faults:
        names = FOUND_AS.get(fault, {fault})
        right = {fault, *names, *(other for name in names for other in ALSO.get(name, ()))}
        precise = [planted in right for planted, reason in found if reason in names]
        recalled = [reason in names for planted, reason in found if planted == fault]
        figures[fault] = mean(precise or [1.0]), mean(recalled or [1.0])
    kept = mean(reason is None for planted, reason in found if planted is None)
    return {**figures, "good kept": (kept, kept)}


def measure(seed: int) -> Mapping[str, tuple[float, float]]:
    """The figures of the filters that come before any check."""
    world = PlantedTasks(seed, dict.fromkeys(FAULTS, SHARE))
    rng = random.Random(seed)
    lengths = Lengths.around([task.query for task in world.seeds])
    screen = TaskScreen(world.seeds, world.held_out, lengths, {form_of(task) for task in world.seeds})
    found: list[tuple[str | None, str | None]] = []
    for proposal in (world.propose([], rng, "") for _ in range(COUNT)):
        made = Made(proposal["question"], proposal["answer"], {})
        dropped = screen.look(made, world.seeds[0].query) or screen.admit(made)
        found.append((world.planted[made.query], dropped.reason if dropped else None))
    return figures_of(found, FAULTS)


def checked(kept: Rows, dropped: Rows, planted: Callable[[Mapping[str, Any]], str | None]) -> Found:
    """What came to the checks of a run: without what is dropped as a copy, a leak or one of too many."""
    earlier = {"copy", "near copy", "leak", "balance"}
    rows = [*((row, None) for row in kept), *((row, row["reason"]) for row in dropped)]
    return [(planted(row), reason) for row, reason in rows if reason not in earlier]


def measure_checks(seed: int, folder: Path) -> Mapping[str, tuple[float, float]]:
    """The figures of the checks of answers, of the rubric, and of those of questions about documents."""
    world, documents = PlantedTasks(seed, SHARES_CHECKED), PlantedDocuments(seed, SHARES_ASKED)
    expand(world, folder, *AGREE, f"astune.task_reader.augment.quality={write_rubric(folder)}", target=60)
    kept, dropped = rows_of(folder / "made.jsonl"), rows_of(folder / "made.dropped.jsonl")
    figures = figures_of(checked(kept, dropped, lambda row: world.planted[row["query"]]), SHARES_CHECKED)
    ask(documents, folder, target=60)
    kept, dropped = rows_of(folder / "asked.jsonl"), rows_of(folder / "asked.dropped.jsonl")
    asked = figures_of(checked(kept, dropped, documents.fault_of), SHARES_ASKED)
    return {**figures, **{f"{name}, of documents": pair for name, pair in asked.items()}}


def pass_rates(seed: int, *, same_numbers: bool) -> list[float]:
    """The share of changed held-out questions that count as no leak, by the share of their words that was changed."""
    world, rng = PlantedTasks(seed), random.Random(seed)
    leaks = Leaks(world.held_out, world.seeds)
    rates = []
    for share in CHANGED:
        texts = [change_words(task.query, rng, share) if share else task.query for task in world.held_out * 20]
        texts = texts if same_numbers else [change_numbers(text, rng) for text in texts]
        rates.append(mean(leaks.find(Task("", text)) is None for text in texts))
    return rates


def mistaken(seed: int) -> float:
    """The share of good tasks that count as leaks of twenty held-out ones of the same six stories."""
    rng = random.Random(seed)
    leaks = Leaks(draw_tasks(20, seed + 100, "held"), draw_tasks(10, seed))
    return mean(leaks.find(Task("", rng.choice(STORIES)(rng)[0])) is not None for _ in range(500))


def main(seeds: Sequence[int]) -> None:
    console, measured = Console(), [measure(seed) for seed in seeds]
    show(console, "filters on planted faults", measured)
    with TemporaryDirectory() as folder:
        places = [Path(folder, str(seed)) for seed in seeds]
        for place in places:
            place.mkdir()
        show(console, "checks", [measure_checks(seed, place) for seed, place in zip(seeds, places, strict=True)])
    rates = [[pass_rates(seed, same_numbers=same) for seed in seeds] for same in (True, False)]
    rows = [
        [f"{share:.0%}", *(f"{mean(rate[at] for rate in each):.1%}" for each in rates)]
        for at, share in enumerate(CHANGED)
    ]
    names = ["words changed", "leaks that pass", "with other numbers"]
    console.print(table_of("held-out questions with words changed", names, rows))
    rows = [[f"{mean(mistaken(seed) for seed in seeds):.1%}"]]
    console.print(table_of("good tasks like the held-out ones", ["that count as leaks"], rows, left=0))


def show(console: Console, title: str, measured: Sequence[Mapping[str, tuple[float, float]]]) -> None:
    rows = [
        [fault, *(f"{mean(figures[fault][at] for figures in measured):.1%}" for at in (0, 1))] for fault in measured[0]
    ]
    console.print(table_of(title, ["filter", "precision", "recall"], rows))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=3, metavar="N", help="generators; default: 3")
    main(range(parser.parse_args().seeds))

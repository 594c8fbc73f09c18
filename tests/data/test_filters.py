"""The filters on planted faults: none that is planted passes where that must not be, and few good tasks are lost."""

from __future__ import annotations

import random

from astune.data.made import Made
from astune.data.screen import Lengths, Screen
from tests.data.planted import PlantedTasks

SHARE, COUNT = 0.1, 600
FAULTS = ("copy", "near copy", "leak", "language", "length", "empty")


def measure(seed: int) -> dict[str, tuple[float, float]]:
    """Precision and recall of each filter on what a generator with known shares of faults proposes."""
    world = PlantedTasks(seed, dict.fromkeys(FAULTS, SHARE))
    rng = random.Random(seed)
    proposals = [world.propose([], rng, "") for _ in range(COUNT)]
    screen = Screen(world.seeds, world.held_out, Lengths.around([task.query for task in world.seeds]))
    found: list[tuple[str | None, str | None]] = []
    for each in proposals:
        made = Made(each["question"], each["answer"], {})
        dropped = screen.look(made, world.seeds[0].query) or screen.admit(made)
        found.append((world.planted[each["question"]], dropped.reason if dropped else None))
    figures = {}
    for fault in FAULTS:
        names = {fault, "copy"} if fault == "near copy" else {fault}  # the second of two equal near copies is a copy
        caught = [planted for planted, reason in found if reason in names]
        planted = [reason for planted, reason in found if planted == fault]
        figures[fault] = (
            sum(each in names | {"near copy"} for each in caught) / len(caught),
            sum(reason in names for reason in planted) / len(planted),
        )
    return figures


if __name__ == "__main__":
    for seed in range(3):
        print(measure(seed))

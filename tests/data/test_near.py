"""What is close to tasks that are there, or held out."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from statistics import mean

from astune.data.near import Copies, Leaks
from astune.types import Task
from tests.data.planted import STORIES, PlantedTasks, change_numbers, change_words, draw_tasks, hide
from tests.rows import each_row

QUESTION = "At the harbour Ada buys 1,200 maps for 34 coins each. How many coins does Ada pay?"
Way = Callable[[str, random.Random], str]


def convert_units(text: str, rng: random.Random) -> str:
    larger = re.sub(r"\d+", lambda found: f"{int(found[0]) * 1000:,}", text)
    return larger.replace("litres", "millilitres").replace("hour", "thousand hours")


@each_row(
    "text",
    [
        QUESTION.upper().replace(" ", "  "),
        QUESTION.translate({ord(digit): ord(digit) + 0xFEE0 for digit in "0123456789"}),
        QUESTION.replace("a", "a\u200d").replace("o", "\u00ado"),
        QUESTION.replace("a", "\u0430").replace("o", "\u043e").replace("e", "\u0435"),
        QUESTION.replace("1,200", "1200"),
    ],
)
def test_letters_that_only_look_otherwise_hide_nothing(text: str) -> None:
    there, made = Task("1", QUESTION, answer="40800"), Task("2", text, answer="7")
    copies = Copies()
    copies.add(there)
    assert copies.find_same(made) is there
    assert Leaks([there], draw_tasks(10, 0)).find(made) is not None


WAYS: dict[str, Way] = {
    "hidden": hide,
    "other numbers": change_numbers,
    "other units": convert_units,
    "a fifth in other words": lambda text, rng: change_words(text, rng, 0.2),
    "other numbers and words": lambda text, rng: change_words(change_numbers(text, rng), rng, 0.1),
}


@each_row("way", WAYS.values(), ids=list(WAYS))
def test_no_held_out_question_passes_changed_in_numbers_units_or_some_words(way: Way) -> None:
    world, rng = PlantedTasks(seed=3), random.Random(3)
    leaks = Leaks(world.held_out, world.seeds)
    changed = [Task("", way(task.query, rng), answer="77777") for task in world.held_out * 3]
    assert [task.query for task in changed if leaks.find(task) is None] == []


def test_a_good_task_like_the_held_out_ones_is_hardly_ever_taken_for_a_leak() -> None:
    rng, taken = random.Random(0), []
    for seed in range(3):
        leaks = Leaks(draw_tasks(20, seed + 100, "held"), draw_tasks(10, seed))
        proposals = [rng.choice(STORIES)(rng) for _ in range(200)]
        taken += [leaks.find(Task("", text, answer=str(answer))) is not None for text, answer in proposals]
    assert mean(taken) < 0.01

"""Authors that are off everyone's: held, and seldom one who is not."""

from collections.abc import Iterator

import numpy as np
import pytest
import sqlalchemy as sa

from astune.config.online import FeedbackConfig
from astune.online.store.feedback.outliers import ScoreStats, deviations
from astune.online.store.feedback.states import FeedbackPart, accept, load_held, settle
from astune.store.database import Database
from tests.rows import each_row
from tests.store.databases import database as database
from tests.store.databases import url as url
from tests.store.feedback_cases import record, rows, say

CORRECTION = FeedbackPart("correction", "correction", correction="no")
RULES = FeedbackConfig(hold_outliers=4, per_conversation=1000)


def values(said: np.ndarray) -> ScoreStats:
    return ScoreStats(len(said), float(said.mean()), float(said.var()))


def test_the_formula() -> None:
    """Computed step by step."""
    means = [0.5, 0.6, 0.7, 0.7, 0.8, 0.0]
    authors = {number: ScoreStats(20, mean, mean * (1 - mean)) for number, mean in enumerate(means)}
    variance = sum(mean * (1 - mean) for mean in means) / 6
    centre = 0.65
    off = 1.4826 * np.median([abs(mean - centre) for mean in means])
    between = max(0, off**2 - variance / 20)
    below = np.sqrt(between + variance / 20 + np.pi / 2 * (between + variance / 20) / 6)
    assert deviations(authors, 1.0)[5] == pytest.approx(0.65 / below)


@each_row(("people", "at_most"), [(6, 0.015), (20, 0.004), (100, 0.002)])
@each_row("spread", [0.0, 0.1])
def test_false_alarms_are_as_rare_as_the_page_says(people: int, at_most: float, spread: float) -> None:
    rng = np.random.default_rng(7)
    alarms = asked = 0
    for _ in range(2400 // people):
        tastes = np.clip(0.7 + spread * rng.standard_normal(people), 0.02, 0.98)
        crowd = {n: values(rng.random(rng.integers(10, 200)) < taste) for n, taste in enumerate(tastes)}
        found = deviations(crowd, 1.0)
        alarms += sum(off > 4 for off in found.values())
        asked += len(found)
    assert alarms / asked <= at_most


def test_few_people_and_few_values_say_nothing() -> None:
    crowd = {number: ScoreStats(10, 0.7, 0.2) for number in range(5)}
    assert deviations(crowd, 1.0) == {}
    assert deviations({**crowd, 5: ScoreStats(9, 0.0, 0.0)}, 1.0) == {}


@pytest.fixture
def connection(database: Database) -> Iterator[sa.Connection]:
    with database.writing() as connection:
        yield connection


@pytest.mark.fault(
    "Online training",
    "An author's rewards are far off everyone's",
    "They are held until somebody accepts or refuses them",
)
@pytest.mark.parametrize("trolls", [(0.0,), (CORRECTION,), (1.0, CORRECTION)], ids=["low", "corrects", "likes too"])
def test_who_is_off_is_held_until_somebody_accepts_it(
    connection: sa.Connection, trolls: tuple[FeedbackPart | float, ...]
) -> None:
    ids = [f"m{number}" for number in range(10)]
    record(connection, "c", ids, exchanges=ids)
    for number, author in enumerate(("ana", "ben", "cem", "dan", "eva", "fay", "troll")):
        for place, one in enumerate(ids):
            said = trolls if author == "troll" else (float((place + number) % 10 < 8),)
            say(connection, *said, about=[one], author=author, rules=RULES)
    settle(connection, FeedbackConfig(), 1)
    assert load_held(connection) == []
    settle(connection, RULES, 1)
    assert {row.author for row in load_held(connection)} == {"troll"}
    accept(connection, load_held(connection), RULES, 2)
    settle(connection, RULES, 3)
    assert {row.state for row in rows(connection)} == {"counts"}

"""The tables of docs/online.md that say what becomes of feedback are what the code does."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
import sqlalchemy as sa

from astune.config.online import FeedbackConfig
from astune.online.store.feedback.judgements import judgements
from astune.online.store.feedback.rules import STATES
from astune.online.store.feedback.states import FeedbackPart, mark, settle
from astune.store.database import open_database
from tests.store.feedback_cases import record, rows, say, train

PAGE = (Path(__file__).parents[2] / "docs" / "online.md").read_text(encoding="utf-8")
RULES = FeedbackConfig(wait_seconds=100, per_user_per_hour=3, unnamed_per_hour=3, per_conversation=4)
CORRECTION = FeedbackPart("correction", "correction", correction="so")


@pytest.fixture
def connection(tmp_path: Path) -> Iterator[sa.Connection]:
    with closing(open_database(f"sqlite:///{tmp_path}/store.db")) as database, database.writing() as connection:
        record(connection, "c", ["m", "n"], exchanges=["m", "n"], client="app", user="ana")
        yield connection


def tell(connection: sa.Connection, *said: FeedbackPart | float, **more: object) -> str:
    return say(connection, *said, **{"client": "app", "rules": RULES, **more}).state  # type: ignore[arg-type]


def again(connection: sa.Connection) -> str:
    tell(connection, 1.0)
    return tell(connection, 1.0, at=1)


def later(connection: sa.Connection) -> str:
    tell(connection, 1.0)
    state = tell(connection, 0.0, at=1)
    assert worth(connection) == 0.0
    return state


def earlier(connection: sa.Connection) -> str:
    tell(connection, 1.0, at=1)
    state = tell(connection, 0.0)
    assert worth(connection) == 1.0
    return state


def other_kind(connection: sa.Connection) -> str:
    tell(connection, FeedbackPart("thumb", value=1.0))
    state = tell(connection, FeedbackPart("number", "help", 0.25), FeedbackPart("number", "speed", 0.25), at=1)
    assert worth(connection) == 0.5
    return state


def other_author(connection: sa.Connection) -> str:
    record(connection, "d", ["o"], client="app")
    tell(connection, 1.0, about=["o"])
    state = tell(connection, 0.0, about=["o"], author="ben")
    assert worth(connection) == 0.5
    return state


def two_conversations(connection: sa.Connection) -> str:
    record(connection, "d", ["o"], client="app", user="ana")
    state = tell(connection, 1.0, about=["m", "o"])
    assert judgements(connection, RULES)[0].msg_ids == ("m", "o")
    return state


def two_users(connection: sa.Connection) -> str:
    record(connection, "d", ["o"], client="app", user="ben")
    return tell(connection, 1.0, about=["m", "o"])


def early(connection: sa.Connection) -> str:
    state = tell(connection, 1.0, about=["later"])
    record(connection, "d", ["later"], client="app")
    settle(connection, RULES, 1)
    assert judgements(connection, RULES)[0].msg_ids == ("later",)
    return state


def never(connection: sa.Connection) -> str:
    tell(connection, 1.0, about=["never"])
    state = settled(connection, 100)
    record(connection, "d", ["never"], client="app")
    assert tell(connection, 1.0, about=["never"], at=101) == "counts", "it may be sent again"
    return state


def partly(connection: sa.Connection) -> str:
    assert tell(connection, 1.0, about=["m", "never"]) == "waits"
    state = settled(connection, 100)
    assert judgements(connection, RULES)[0].msg_ids == ("m",)
    return state


def trained_before(connection: sa.Connection) -> str:
    train(connection, ["m"])
    return tell(connection, 1.0)


def correction_of_trained(connection: sa.Connection) -> str:
    train(connection, ["m"])
    return tell(connection, CORRECTION)


def trained_meanwhile(connection: sa.Connection) -> str:
    tell(connection, 1.0)
    (used,) = judgements(connection, RULES)
    tell(connection, CORRECTION, author="app", at=1)
    tell(connection, 0.0, author="app", at=1)
    train(connection, used.msg_ids)
    mark(connection, used.feedback_ids, "trained", "v1", 2)
    settle(connection, RULES, 3)
    assert [judgement.corrections for judgement in judgements(connection, RULES)] == [("so",)]
    return rows(connection)[-1].state


def emptied_correction(connection: sa.Connection) -> str:
    state = tell(connection, FeedbackPart("correction", "correction", correction=None))
    assert tell(connection, FeedbackPart("correction", "correction", correction=None), at=1) == state
    assert tell(connection, 1.0, FeedbackPart("correction", "correction", correction=None), at=2) == "counts"
    assert judgements(connection, RULES)[0].corrections == ()
    return state


def too_many_of_a_user(connection: sa.Connection, author: str = "ana") -> str:
    names = ["a", "b", "d", "e"]
    for name in names:
        record(connection, name, [name], client="app")
    return [tell(connection, 1.0, about=[name], author=author) for name in names][-1]


def too_many_of_nobody(connection: sa.Connection) -> str:
    return too_many_of_a_user(connection, author="app")


def too_many_of_a_conversation(connection: sa.Connection) -> str:
    record(connection, "d", ["o"], client="app")
    return [tell(connection, 1.0, about=["o"], author=author) for author in "abdef"][-1]


def off(connection: sa.Connection) -> str:
    rules = FeedbackConfig(hold_outliers=4, per_conversation=1000)
    names = [f"a{number}" for number in range(10)]
    record(connection, "d", names, exchanges=names, client="app")
    for author in ("a", "b", "d", "e", "f", "troll"):
        for name in names:
            tell(connection, float(author != "troll"), about=[name], author=author, rules=rules)
    settle(connection, rules, 1)
    (author,) = {row.author for row in rows(connection) if row.state == "held"}
    assert author == "troll"
    return "held"


def without_weight(connection: sa.Connection) -> str:
    tell(connection, FeedbackPart("number", "help", 1.0))
    return settled(connection, 1)


def judge_first(connection: sa.Connection) -> str:
    tell(connection, 1.0, author="judge:math")
    tell(connection, 0.0, at=1)
    assert worth(connection) == 0.0
    return rows(connection)[0].state


def judge_last(connection: sa.Connection) -> str:
    tell(connection, 0.0)
    return tell(connection, 1.0, author="judge:math", at=1)


def worth(connection: sa.Connection) -> float | None:
    (judgement,) = judgements(connection, RULES)
    return judgement.reward


def settled(connection: sa.Connection, now: float) -> str:
    settle(connection, RULES, now)
    (row,) = rows(connection)
    return row.state


CASES: dict[str, Callable[[sa.Connection], str]] = {
    "the very same, sent again": again,
    "another word of the same author on the same answers": later,
    "the same, and the later word is there already": earlier,
    "a thumb, then named rewards, of the same author": other_kind,
    "words of several authors": other_author,
    "about answers of two conversations of a user": two_conversations,
    "about answers to two users": two_users,
    "about another client's answers": lambda connection: tell(connection, 1.0, client="other"),
    "of a user about an answer to another user": lambda connection: tell(connection, 1.0, author="ben"),
    "before its answer is in the store": early,
    "its answer does not come within `wait_seconds`": never,
    "only some of its answers come": partly,
    "a score of an answer that is trained already": trained_before,
    "a score that came while its answer was trained": trained_meanwhile,
    "a correction of an answer that is trained already": correction_of_trained,
    "a correction of which `astune.online.redact` leaves nothing": emptied_correction,
    "more than `per_user_per_hour`": too_many_of_a_user,
    "more than `unnamed_per_hour`": too_many_of_nobody,
    "more than `per_conversation`": too_many_of_a_conversation,
    "of an author far off everyone's": off,
    "a named reward that has no weight any more": without_weight,
    "of a judge, and a person speaks later": judge_first,
    "of a judge, where a person has spoken": judge_last,
}


def table(first: str) -> list[list[str]]:
    """The rows of the page's table that begins with that heading."""
    text = PAGE[PAGE.index(f"| {first} |") :]
    lines = text[: text.index("\n\n")].splitlines()[2:]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]


def test_the_page_has_every_state_with_its_meaning() -> None:
    assert dict(table("state")) == {f"`{state}`": meaning for state, meaning in STATES.items()}  # type: ignore[arg-type]


def test_the_page_has_every_case() -> None:
    assert [row[0] for row in table("what comes")] == list(CASES)


@pytest.mark.fault(
    "Online training",
    "Feedback comes before its answer is in the store",
    "It waits, and counts as soon as the answer is there",
)
@pytest.mark.fault(
    "Online training",
    "Feedback names an answer that never comes",
    "It expires after `wait_seconds`, is counted, and may be sent again",
)
@pytest.mark.fault(
    "Online training",
    "Feedback comes after its answer was trained",
    "It is kept as late, and the answer is not trained again",
)
@pytest.mark.parametrize("row", table("what comes"), ids=lambda row: row[0])
def test_what_comes_becomes_what_the_page_says(connection: sa.Connection, row: list[str]) -> None:
    assert CASES[row[0]](connection) == row[1].strip("`")

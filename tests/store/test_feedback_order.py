"""Whatever order feedback, answers and commits are written in, and by however many, the same counts."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import fsum
from statistics import fmean

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from astune.config.online import FeedbackConfig
from astune.online.store.feedback.judgements import judgements
from astune.online.store.feedback.states import FeedbackPart, mark, settle
from astune.store.database import Database
from tests.store.databases import empty
from tests.store.databases import one_database as one_database
from tests.store.feedback_cases import record, rows, say, states, train

RULES = FeedbackConfig(
    wait_seconds=1e9,
    per_user_per_hour=10_000,
    unnamed_per_hour=10_000,
    per_conversation=10_000,
    rewards={"help": 1.0, "speed": 1.0},
)
ANSWERS = {"a": ("a",), "b": ("a", "b"), "d": ("d",)}
"""Each answer and what feedback on it judges: `b` follows `a` in one exchange."""
Reward = dict[tuple[str, ...], float | None]


@dataclass(frozen=True)
class Statement:
    author: str
    about: frozenset[str]
    values: tuple[tuple[str, float], ...]

    def judged(self) -> tuple[str, ...]:
        return tuple(sorted({answer for named in self.about for answer in ANSWERS[named]}))

    def tell(self, connection: sa.Connection, at: float) -> str:
        said = (FeedbackPart("number", name, value) for name, value in self.values)
        return say(connection, *said, about=sorted(self.about), author=self.author, at=at, rules=RULES).state


VALUES = st.sampled_from(
    [(("reward", 0.0),), (("reward", 1.0),), (("help", 0.25),), (("help", 0.5), ("speed", 0.25)), (("speed", 0.5),)]
)
ABOUT = st.sampled_from([frozenset("a"), frozenset("b"), frozenset("ab"), frozenset("d")])
STATEMENTS = st.builds(Statement, st.sampled_from(["ana", "ben"]), ABOUT, VALUES)


@dataclass
class Model:
    """What counts, from all that was said: what is known of it, by author, answers and name, is (time, value)."""

    said: list[tuple[Statement, float]] = field(default_factory=list)

    def rewards(self, known: set[str]) -> Reward:
        words: dict[tuple[tuple[str, ...], str], dict[str, tuple[float, float]]] = {}
        for statement, at in sorted(self.said, key=lambda one: one[1]):
            if statement.about <= known:
                word = words.setdefault((statement.judged(), statement.author), {})
                if statement.values[0][0] == "reward":
                    word.clear()
                else:
                    word.pop("reward", None)
                word.update({name: (at, value) for name, value in statement.values})
        totals: dict[tuple[str, ...], list[float]] = {}
        for (judged, _), word in words.items():
            totals.setdefault(judged, []).append(fsum(value for _, value in word.values()))
        return {judged: fmean(values) for judged, values in totals.items()}


def rewards(connection: sa.Connection) -> Reward:
    return {judgement.msg_ids: judgement.reward for judgement in judgements(connection, RULES)}


def record_known(connection: sa.Connection, known: Sequence[str]) -> None:
    for conversation, chain in (("one", ("a", "b")), ("two", ("d",))):
        record(connection, conversation, [answer for answer in chain if answer in known])


def together(jobs: Sequence[Callable[[], None]]) -> None:
    """Each in a thread of its own, at the same time."""
    failures: list[BaseException] = []
    barrier = threading.Barrier(len(jobs))

    def run(job: Callable[[], None]) -> None:
        barrier.wait()
        try:
            job()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(job,)) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    said=st.lists(st.tuples(STATEMENTS, st.integers(0, 30)), max_size=12, unique_by=lambda one: one[1]),
    known=st.sampled_from([(), ("a",), ("a", "b"), ("a", "b", "d")]),
    workers=st.integers(2, 3),
)
@pytest.mark.fault(
    "Online training",
    "Many processes take feedback on the same answers at once",
    "What counts is told by when it was received, not by who wrote first",
)
def test_many_processes_that_write_at_once_come_to_what_the_model_says(
    one_database: Database, said: list[tuple[Statement, int]], known: tuple[str, ...], workers: int
) -> None:
    empty(one_database)

    def tell_some(worker: int) -> None:
        for statement, at in said[worker::workers]:
            with one_database.writing() as connection:
                statement.tell(connection, at)

    def answer() -> None:
        with one_database.writing() as connection:
            record_known(connection, known)

    together([answer, *(lambda worker=worker: tell_some(worker) for worker in range(workers))])  # type: ignore[misc]
    with one_database.writing() as connection:
        settle(connection, RULES, 31)
        model = Model([(statement, float(at)) for statement, at in said])
        assert rewards(connection) == pytest.approx(model.rewards(set(known)))
        waiting = {statement for statement, _ in said if not statement.about <= set(known)}
        parts = {(s.author, s.about, name, value) for s in waiting for name, value in s.values}
        assert states(connection).count("waits") == len(parts)


def test_a_limit_holds_exactly_what_is_more_also_of_many_at_once(one_database: Database) -> None:
    empty(one_database)
    rules = FeedbackConfig(per_user_per_hour=5)
    names = [f"m{number}" for number in range(12)]
    with one_database.writing() as connection:
        record(connection, "c", names, exchanges=names)

    def tell_some(worker: int) -> None:
        for number in range(worker, 12, 3):
            with one_database.writing() as connection:
                say(connection, 1.0, about=[names[number]], at=float(number), rules=rules)

    together([lambda worker=worker: tell_some(worker) for worker in range(3)])  # type: ignore[misc]
    with one_database.reading() as connection:
        counted = states(connection)
    assert (counted.count("counts"), counted.count("held")) == (5, 7)


def test_the_same_from_all_sides_at_once_counts_once(one_database: Database) -> None:
    empty(one_database)
    with one_database.writing() as connection:
        record_known(connection, ["a"])

    def tell_it() -> None:
        with one_database.writing() as connection:
            say(connection, 1.0, about=["a"], at=1.0)

    together([tell_it] * 6)
    with one_database.reading() as connection:
        assert states(connection) == ["counts"]


class Feedback(RuleBasedStateMachine):
    """Feedback, answers and commits in any order, beside a model of what each answer was worth when it was trained."""

    database: Database
    compared: set[tuple[str, ...]]
    """The answers whose rewards were compared, in all sequences."""

    @initialize()
    def begin(self) -> None:
        empty(self.database)
        self.model = Model()
        self.known: set[str] = set()
        self.trained: set[str] = set()
        self.clock = 0.0

    @rule(statement=STATEMENTS)
    def tell(self, statement: Statement) -> None:
        self.clock += 1
        with self.database.writing() as connection:
            state = statement.tell(connection, self.clock)
        if not statement.about <= self.known:
            assert state == "waits"
        elif statement.about <= self.trained:
            assert state in ("late", "trained")
        else:
            assert state == "counts"
            self.model.said.append((statement, self.clock))
        if state == "waits":
            self.model.said.append((statement, self.clock))

    @rule(answer=st.sampled_from(sorted(ANSWERS)))
    def answer(self, answer: str) -> None:
        before = {"b": "a"}.get(answer)
        if answer in self.known or (before is not None and before not in self.known):
            return
        with self.database.writing() as connection:
            if before is None:
                record(connection, "one" if answer == "a" else "two", [answer])
            else:
                record(connection, "one", [answer], exchanges=["a"], follows=before)
        self.known.add(answer)

    @rule()
    def commit(self) -> None:
        self.clock += 1
        with self.database.writing() as connection:
            settle(connection, RULES, self.clock)
            for judgement in judgements(connection, RULES):
                assert not set(judgement.msg_ids) <= self.trained, "trained twice"
                train(connection, judgement.msg_ids)
                mark(connection, judgement.feedback_ids, "trained", "v1", self.clock)
            settle(connection, RULES, self.clock)
            assert judgements(connection, RULES) == []
            self.trained |= {row for one in rows(connection) if one.state == "trained" for row in one.ids}
        self.trained = {answer for named in self.trained for answer in ANSWERS[named]}
        self.model.said = [one for one in self.model.said if not one[0].about <= self.known]

    @invariant()
    def what_counts_is_what_the_model_says(self) -> None:
        with self.database.writing() as connection:
            settle(connection, RULES, self.clock)
            expected = self.model.rewards(self.known)
            assert rewards(connection) == pytest.approx(expected)
        self.compared.update(expected)


def test_any_sequence_of_feedback_answers_and_commits(one_database: Database) -> None:
    machine = type("OnThis", (Feedback,), {"database": one_database, "compared": set()})
    run_state_machine_as_test(machine, settings=settings(max_examples=20, stateful_step_count=14, deadline=None))
    at_least_one = machine()  # chance may draw none that comes to feedback that counts
    at_least_one.begin()
    at_least_one.answer("a")
    at_least_one.tell(Statement("ana", frozenset("a"), (("reward", 1.0),)))
    at_least_one.what_counts_is_what_the_model_says()
    assert ("a",) in machine.compared

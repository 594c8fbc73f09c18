"""In whatever order it happens: people rate, trainers are killed anywhere in a commit, stand still for too long or
leave, and others take over. Every version is whole, and every answer is trained once."""

from __future__ import annotations

import shutil
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from astune.online.store import commits, leases, versions
from astune.online.training.checkpoint import check
from astune.online.training.commit import LEASE, LEASE_SECONDS, PHASES
from astune.online.training.trainer import Trainer
from astune.store import tables
from astune.store.database import Database
from tests.online.training.world import World
from tests.store.databases import empty
from tests.store.databases import one_database as one_database
from tests.training.killed import Killed

WHO = st.integers(0, 1)
PLACES = st.lists(st.integers(0, 40), min_size=1, max_size=3)


class Training(RuleBasedStateMachine):
    """Two trainers over one store and one folder, each of which is started anew when it was killed."""

    database: Database
    folder: Path
    died_at: set[str]
    """The phases in which somebody was killed, in all sequences."""

    @initialize()
    def begin(self) -> None:
        empty(self.database)
        shutil.rmtree(self.folder, ignore_errors=True)
        self.world = World(self.database, self.folder)
        self.at: dict[str, Callable[[], None]] = {}
        self.trainers = [self.new_trainer(), self.new_trainer()]
        self.rated: list[str] = []
        self.said: list[str] = []

    def new_trainer(self) -> Trainer:
        return self.world.trainer(lambda phase: self.at.get(phase, lambda: None)())

    @rule()
    def rate(self) -> None:
        """No two rewards are equal, so that there is always something to learn."""
        reward = len(self.rated) * 0.377 % 1
        self.rated += self.world.rate(reward, version=len(self.world.rows(tables.versions)))

    @rule(answers=st.integers(1, 4), about=PLACES, reward=st.sampled_from([0.0, 0.5, 1.0]), within=st.booleans())
    def talk(self, answers: int, about: list[int], reward: float, within: bool) -> None:
        """A conversation, and feedback on any answers of conversations, judged together with others and before."""
        conversation, before = f"c{self.world.now:g}", None
        for _ in range(answers):
            msg_id = f"m{self.world.now:g}"
            exchange = self.said[-1] if before is not None and within else msg_id
            before = self.world.answer(msg_id, conversation=conversation, follows=before, exchange=exchange)
            self.said.append(msg_id)
        named = sorted({self.said[place % len(self.said)] for place in about})
        self.world.say(reward, about=named, author=f"u{about[0] % 4}")

    @rule(who=WHO)
    def make_a_commit(self, who: int) -> None:
        self.world.ask()
        self.world.tick(self.trainers[who])

    @rule(who=WHO, phase=st.sampled_from(PHASES), is_heard=st.booleans())
    def kill(self, who: int, phase: str, is_heard: bool) -> None:
        """It dies, unless it does not come so far. Where it `is_heard`, it says so; else its lease must run out."""

        def die() -> None:
            self.died_at.add(phase)
            raise Killed

        self.rate()
        self.rate()
        self.world.ask()
        self.at = {phase: die}
        try:
            self.world.tick(self.trainers[who])
        except Killed:
            if is_heard:
                self.trainers[who].leave()
                assert self.holder() is None
                with self.database.reading() as connection:
                    assert commits.with_state(connection, "training") == []
            self.trainers[who] = self.new_trainer()
        finally:
            self.at = {}

    @rule(who=WHO, phase=st.sampled_from(PHASES[:-2]))
    def stand_still(self, who: int, phase: str) -> None:
        """For so long that it is taken for dead, and another one does its work."""

        def stand() -> None:
            self.at = {}
            self.world.now += LEASE_SECONDS + 1
            other = threading.Thread(target=lambda: self.world.tick(self.trainers[1 - who]))
            other.start()
            other.join()

        self.world.ask()
        self.at = {phase: stand}
        self.world.tick(self.trainers[who])
        self.at = {}

    @rule(who=WHO)
    def leave(self, who: int) -> None:
        self.trainers[who].leave()

    @rule(who=WHO)
    def be_heard(self, who: int) -> None:
        """Whoever has the lease keeps it as long as it is heard of in time."""
        self.world.now += LEASE_SECONDS + 1
        self.world.tick(self.trainers[who])
        holder = self.holder()
        for _ in range(2):
            self.world.now += LEASE_SECONDS - 2
            self.trainers[who].renew()
            assert self.world.tick(self.trainers[1 - who]) is None and self.holder() == holder
        self.world.now += LEASE_SECONDS + 1
        self.trainers[who].renew()
        assert self.holder() is None, "too late: it had run out"

    def holder(self) -> str | None:
        with self.database.reading() as connection:
            return leases.find_holder(connection, LEASE, self.world.now)

    @invariant()
    def every_version_is_whole_and_no_turn_is_trained_twice(self) -> None:
        with self.database.reading() as connection:
            made = versions.every(connection)
        assert [(each.number, each.parent) for each in made] == [(n + 1, n) for n in range(len(made))]
        for version in made[-2:]:
            check(self.folder / "versions" / str(version.folder), version.sha256)
        learned = self.world.rows(tables.samples)
        assert set(Counter(row["turn_id"] for row in learned).values()) <= {1}
        assert {row["commit_id"] for row in learned} == {each.commit_id for each in made}, "a commit is all or nothing"

    def teardown(self) -> None:
        """In the end all that was rated is trained, and no folder is left but those of the last two versions."""
        self.world.now += LEASE_SECONDS + 1
        self.rate()
        self.rate()
        for _ in range(2):  # where all trainers died in a commit, it is given up, and another one takes what it had
            last = self.new_trainer()
            self.world.ask()
            while self.world.tick(last) is not None:
                pass
        last.leave()
        self.every_version_is_whole_and_no_turn_is_trained_twice()
        trained = Counter(row["msg_id"] for row in self.world.rows(tables.episode_messages))
        assert {msg_id: trained[msg_id] for msg_id in self.rated} == dict.fromkeys(self.rated, 1)
        with self.database.reading() as connection:
            kept = {str(version.folder) for version in versions.every(connection)[-2:]}
        assert {path.name for path in (self.folder / "versions").iterdir()} == kept


@pytest.mark.fault(
    "Online training",
    "the trainer is killed (kill -9) in any phase of a commit",
    "the version is there whole, or nothing is changed and the next trainer makes the same one",
)
def test_any_sequence_of_ratings_commits_kills_and_trainers(one_database: Database, tmp_path: Path) -> None:
    values = {"database": one_database, "folder": tmp_path / "service", "died_at": set()}
    machine = type("OnThis", (Training,), values)
    run_state_machine_as_test(machine, settings=settings(max_examples=8, stateful_step_count=12, deadline=None))
    in_every_phase = machine()
    in_every_phase.begin()
    for number, phase in enumerate(PHASES):
        in_every_phase.kill(0, phase, is_heard=number % 2 == 0)
        in_every_phase.every_version_is_whole_and_no_turn_is_trained_twice()
        in_every_phase.world.now += LEASE_SECONDS + 1
        in_every_phase.make_a_commit(0)  # what begins too often is given up
    in_every_phase.teardown()
    assert machine.died_at == set(PHASES)

"""A service that was talked to: recorded answers, what users said of them, and a trainer with a clock of its own."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from astune.config.schema import AstuneConfig, Config
from astune.online.store import commits
from astune.online.store.commits import CommitRow, Wanted
from astune.online.store.feedback.states import FeedbackOutcome, FeedbackPart, NewFeedback, add
from astune.online.store.requests import RecordedRequest, RecordedTurn, TurnPlace, record
from astune.online.training.trainer import Trainer
from astune.store.database import Database
from astune.testing.engine import script_engine
from astune.training.engine import LoadEngine
from astune.types import Turn
from tests.store.databases import sqlite

database = sqlite
"""The fixture of a test that takes one kind of database for all."""
COUNTING = script_engine(lambda prompt: "4")
"""An engine whose only weight is a number."""


def config_of(*, astune: dict[str, Any] | None = None, **commit: Any) -> Config:
    """A configuration in which any number of episodes makes a version, nothing waits, and no conversation keeps one."""
    rules = {"min_episodes": 1, "group_wait_seconds": 0.0, "every_seconds": None} | commit
    values: dict[str, Any] = {
        "online": {"commit": rules, "serve": {"pin_seconds": 0.5}},
        "monitor": {"check_invariants": True, "trackers": []},
        "trainer": {"learning_rate": 0.01},
        "model": {"device": "cpu"},
    }
    return Config(astune=AstuneConfig.model_validate(values | (astune or {})))


class World:
    """`now` is the time; everything that happens takes a second."""

    def __init__(
        self, database: Database, folder: Path, config: Config | None = None, load_engine: LoadEngine = COUNTING
    ) -> None:
        self.database, self.folder, self.config = database, folder, config or config_of()
        self.load_engine, self.now = load_engine, 1000.0

    def clock(self) -> float:
        return self.now

    def answer(
        self,
        msg_id: str,
        *,
        conversation: str | None = None,
        follows: str | None = None,
        exchange: str | None = None,
        prompt: Sequence[int] = (1, 2, 3),
        output: Sequence[int] = (4, 5),
        logprobs: Sequence[float] | None = None,
        version: int = 0,
        temperature: float = 1.0,
        excluded: str | None = None,
        question: str = "what?",
        user: str | None = None,
        task_id: str | None = None,
        run_id: str | None = None,
        messages: Sequence[Mapping[str, Any]] | None = None,
        said: str = "4",
        tools: tuple[Mapping[str, Any], ...] = (),
    ) -> str:
        """Record an answer, in a conversation of its own unless it is told which."""
        self.now += 1
        logprobs = [math.log(0.5)] * len(output) if logprobs is None else logprobs
        turn = Turn(
            "agent",
            prompt,
            output,
            logprobs,
            version,
            "stop",
            temperature=temperature,
            excluded=excluded,
            messages=tuple(messages or ({"role": "user", "content": question},)),
            tools=tools,
            response={"role": "assistant", "content": said},
        )
        request = RecordedRequest(
            msg_id=msg_id,
            conversation_id=conversation or f"c-{msg_id}",
            client="",
            user=user,
            task_id=task_id,
            run_id=run_id,
            exchange=exchange or msg_id,
            follows=None if follows is None else TurnPlace(follows, 0),
            seen=0,
            agent="agent",
            model="m",
            asked=self.now,
            answered=self.now,
            turns=(RecordedTurn(turn, msg_id),),
        )
        with self.database.writing() as connection:
            record(connection, request)
        return msg_id

    def say(
        self, *said: FeedbackPart | float, about: Sequence[str] = (), author: str = "ana", **more: Any
    ) -> FeedbackOutcome:
        """Feedback; a number is a reward."""
        self.now += 1
        told = tuple(one if isinstance(one, FeedbackPart) else FeedbackPart("number", value=one) for one in said)
        new = NewFeedback(self.now, author, "", told, tuple(about), **more)
        with self.database.writing() as connection:
            return add(connection, new, self.config.astune.online.feedback)

    def rate(self, reward: float, count: int = 1, **answer: Any) -> list[str]:
        """So many answers, each rated by a user of its own."""
        found = []
        for _ in range(count):
            msg_id = self.answer(f"m{self.now:g}", **answer)
            self.say(reward, about=[msg_id], author=f"user of {msg_id}")
            found.append(msg_id)
        return found

    def trainer(self, phase: Callable[[str], None] = lambda _: None) -> Trainer:
        return Trainer(self.config, self.load_engine, self.database, self.folder, clock=self.clock, phase=phase)

    def ask(self, wanted: Wanted | None = None) -> int:
        self.now += 1
        with self.database.writing() as connection:
            return commits.ask(connection, "hand", self.now, wanted)

    def tick(self, trainer: Trainer) -> CommitRow | None:
        return asyncio.run(trainer.tick())

    def commit(self, trainer: Trainer | None = None, wanted: Wanted | None = None) -> CommitRow:
        """Ask for a commit and have it made."""
        self.ask(wanted)
        own = trainer or self.trainer()
        row = self.tick(own)
        if trainer is None:
            own.leave()
        assert row is not None
        return row

    def rows(self, table: sa.Table) -> list[dict[str, Any]]:
        with self.database.reading() as connection:
            return [dict(row._mapping) for row in connection.execute(table.select())]

"""Clients of the online service that keep a ledger of what it acknowledged, and what of it the store must have."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa

from astune.online.store import audit
from astune.store import tables
from astune.store.database import open_database
from tests.attack.exchange import exchange

CALLS = 3
"""Of each conversation, which goes on from its own answers."""
AGAIN_SECONDS = 0.2
"""Before a client tries again to reach a service that is not there."""


@dataclass
class Ledger:
    """What clients were told. Only what was acknowledged is owed."""

    answered: dict[str, str] = field(default_factory=dict)
    """The text of each answer, by its id."""
    rated: dict[str, float] = field(default_factory=dict)
    seconds: list[float] = field(default_factory=list)
    """Of each answered call."""
    failed: Counter[str] = field(default_factory=Counter)
    """Requests that were not acknowledged, by what came instead."""
    twice: int = 0
    """Answers whose id another answer has."""


@dataclass
class Clients:
    """Sessions side by side until `stop`. `pause` is the mean time in seconds between two calls of a session, `users`
    the number of those that a session stands for: they come again. None: each conversation has one of its own."""

    host: str
    port: int
    pause: float = 0.0
    users: int | None = None
    ledger: Ledger = field(default_factory=Ledger)
    stop: asyncio.Event = field(default_factory=asyncio.Event)

    async def session(self, number: int, seed: int) -> None:
        """One conversation after another."""
        draw = random.Random(f"{seed}/{number}")
        await asyncio.sleep(draw.uniform(0, self.pause))
        talk = 0
        while not self.stop.is_set():
            talk += 1
            who = talk if self.users is None else talk % self.users
            await self._conversation(f"c{seed}-{number}-{talk}", f"user {seed}-{number}-{who}", draw)

    async def _conversation(self, name: str, user: str, draw: random.Random) -> None:
        messages: list[dict[str, str]] = []
        for call in range(CALLS):
            messages.append({"role": "user", "content": f"What is {draw.randint(2, 99)} plus {call}?"})
            answer = await self._ask(name, user, messages)
            if answer is None or self.stop.is_set():
                return
            messages.append({"role": "assistant", "content": answer[1]})
            if draw.random() < 0.7:
                await self._rate(answer[0], user, draw.random() < 0.5)
            await asyncio.sleep(draw.uniform(0, 2 * self.pause))

    async def _ask(self, name: str, user: str, messages: list[dict[str, str]]) -> tuple[str, str] | None:
        body = {"model": "policy", "messages": messages, "user": user}
        began = time.monotonic()
        said = await self._post("/v1/chat/completions", body, f"X-ASTune-Conversation: {name}\r\n")
        if said is None:
            return None
        self.ledger.seconds.append(time.monotonic() - began)
        text = said["choices"][0]["message"]["content"] or ""
        self.ledger.twice += said["id"] in self.ledger.answered
        self.ledger.answered[said["id"]] = text
        return said["id"], text

    async def _rate(self, msg_id: str, user: str, good: bool) -> None:
        body = {"msg_ids": [msg_id], "thumb": "up" if good else "down", "user": user}
        said = await self._post("/feedback", body)
        if said is not None and said["status"] == "success":
            self.ledger.rated[msg_id] = float(good)

    async def _post(self, path: str, body: dict[str, Any], headers: str = "") -> Any:
        """The reply; None if there was no good one."""
        sent = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: {self.host}:{self.port}\r\nContent-Type: application/json\r\n{headers}"
        try:
            status, answer = await asyncio.wait_for(
                exchange(self.host, self.port, f"{head}Content-Length: {len(sent)}\r\n\r\n".encode() + sent), 120
            )
        except (OSError, EOFError, asyncio.TimeoutError) as error:
            self.ledger.failed[type(error).__name__] += 1
            await asyncio.sleep(AGAIN_SECONDS)
            return None
        if status != 200:
            self.ledger.failed[f"{path} {status}: {answer[:120].decode(errors='replace')}"] += 1
            await asyncio.sleep(AGAIN_SECONDS)
            return None
        return json.loads(answer)


@dataclass(frozen=True)
class Kept:
    """What the store has of what was acknowledged, and what came of it."""

    lost_answers: int
    other_texts: int
    """Answers whose text in the store is not the one that was sent."""
    lost_rewards: int
    trained: int
    """Turns that stand in an update."""
    trained_twice: int
    untrained: Counter[str]
    """Rated answers that no update has, by why."""
    unexplained: int
    """Those of which neither their state nor the last commit's line in the audit says why."""
    versions: int
    commits: Counter[str]
    """By state."""


def look(store: str, ledger: Ledger) -> Kept:
    database = open_database(store)
    try:
        with database.reading() as connection:
            return _look(connection, ledger)
    finally:
        database.close()


def is_settled(store: str) -> bool:
    """Whether versions were made and no commit is under way or asked for."""
    database = open_database(store)
    try:
        with database.reading() as connection:
            states = set(connection.scalars(sa.select(tables.commits.c.state)))
            return "made" in states and not states & {"asked", "training"}
    finally:
        database.close()


def _look(connection: sa.Connection, ledger: Ledger) -> Kept:
    turns, samples, feedback = tables.turns.c, tables.samples.c, tables.feedback.c
    texts = dict(map(tuple, connection.execute(sa.select(turns.msg_id, turns.response))))
    known = set(connection.scalars(sa.select(tables.requests.c.msg_id)))
    rewards: dict[str, set[float | None]] = {}
    about = sa.select(tables.feedback_messages.c.msg_id, feedback.value).join(tables.feedback)
    for msg_id, value in connection.execute(about):
        rewards.setdefault(msg_id, set()).add(value)
    made = sa.select(samples.turn_id, sa.func.count(sa.distinct(samples.commit_id))).where(samples.weight != 0)
    counted = dict(map(tuple, connection.execute(made.group_by(samples.turn_id))))
    judged = sa.select(tables.episode_messages.c.msg_id, tables.episodes.c.state, tables.episodes.c.reason)
    rows = connection.execute(judged.join(tables.episodes))
    of_answer = {msg_id: f"{state}: {reason}" if reason else state for msg_id, state, reason in rows}
    untrained, unexplained = _untrained(connection, ledger, of_answer)
    states = Counter(connection.scalars(sa.select(tables.commits.c.state)))
    return Kept(
        lost_answers=len(ledger.answered.keys() - (known & texts.keys())),
        other_texts=sum((texts[m].get("content") or "") != t for m, t in ledger.answered.items() if m in texts),
        lost_rewards=sum(value not in rewards.get(msg_id, ()) for msg_id, value in ledger.rated.items()),
        trained=len(counted),
        trained_twice=sum(count > 1 for count in counted.values()),
        untrained=untrained,
        unexplained=unexplained,
        versions=states["made"],
        commits=states,
    )


def _untrained(connection: sa.Connection, ledger: Ledger, of_answer: Mapping[str, str]) -> tuple[Counter[str], int]:
    """Why rated answers are in no update, and of how many nothing says why. Each was an exchange, hence an episode, of
    its own; what counts and waits is told as a number, by the commit that looked at it last."""
    feedback = tables.feedback.c
    about = sa.select(tables.feedback_messages.c.msg_id, feedback.state, feedback.reason).join(tables.feedback)
    said = {msg_id: (state, reason) for msg_id, state, reason in connection.execute(about)}
    ended = [line for line in audit.lines(connection) if "waits" in line.details]
    told = Counter(ended[-1].details["waits"] if ended else {})
    why: Counter[str] = Counter()
    unexplained = 0
    for msg_id in ledger.rated:
        state, reason = said.get(msg_id, ("not in the store", None))
        if of_answer.get(msg_id, state) != "trained":
            why[of_answer.get(msg_id, state)] += 1
            unexplained += msg_id not in of_answer and state != "counts" and not reason
    return why, unexplained + abs(why["counts"] - told.total())

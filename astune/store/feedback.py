"""What people and judges say of answers: written with what becomes of it.

    outcome = add(connection, NewFeedback(received=now, author="ana", client="", msg_ids=("chatcmpl-1",),
                                          said=(Said("thumb", value=1.0),)), rules)
    settle(connection, rules, now)                     # before a commit: answers became known, time went by
    judged = judgements(connection, rules)             # astune.store.judgements
    mark(connection, ids, "trained", "v7", now)        # in the transaction that makes the version

Invariant: which feedback counts depends on what was said and when it was received, not on the order in which processes
wrote it. Every change of a state has a line in `audit`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import sqlalchemy as sa

from astune.config.online import FeedbackConfig
from astune.store.answers import chunks, conversations_of, is_trained, judged_answers, known_answers, trained_answers
from astune.store.audit import Role
from astune.store.feedback_rows import JUDGE, Row, insert, load, note, write_state
from astune.store.feedback_rules import Facts, decided, winners
from astune.store.outliers import hold_outliers
from astune.store.tables import feedback, feedback_messages, requests

Kind = Literal["number", "thumb", "rating", "correction", "preference"]
HOUR = 3600.0
UNNAMED = "reward"
"""The name of a reward that has none."""
_ORDER = ("refused", "held", "counts", "waits", "trained", "late", "replaced", "left_out", "expired")
"""Of several parts of a body, the state that it is said to be in comes first."""


@dataclass(frozen=True)
class Said:
    """One thing that a body says. `value` is None for corrections and preferences."""

    kind: Kind
    name: str = UNNAMED
    value: float | None = None
    correction: str | None = None


@dataclass(frozen=True)
class NewFeedback:
    """A body, read. A preference is about `better` and `worse`, all else about `msg_ids`."""

    received: float
    author: str
    client: str
    said: tuple[Said, ...]
    msg_ids: tuple[str, ...] = ()
    better: str | None = None
    worse: str | None = None
    comment: str | None = None
    task_id: str | None = None
    run_id: str | None = None

    def messages(self, kind: Kind) -> tuple[tuple[str, str], ...]:
        """(msg_id, place) of what is said in that kind."""
        if kind == "preference":
            return ((str(self.better), "better"), (str(self.worse), "worse"))
        return tuple((msg_id, "about") for msg_id in dict.fromkeys(self.msg_ids))


@dataclass(frozen=True)
class Outcome:
    """What became of a body. `state` is one of STATES (`astune.store.feedback_rules`)."""

    state: str
    reason: str
    duplicate: bool
    """Whether the very same was there before."""


def add(connection: sa.Connection, new: NewFeedback, rules: FeedbackConfig, role: Role = "serve") -> Outcome:
    """Writes it and says what became of it."""
    lock(connection)
    rows = _rows(new)
    there = {
        row.fingerprint: row for row in load(connection, feedback.c.fingerprint.in_([r.fingerprint for r in rows]))
    }
    undecided: list[Row] = []
    ids: list[int] = []
    for row in rows:
        same = there.get(row.fingerprint)
        if same is None:
            same = insert(connection, row)
            undecided.append(same)
        elif _renewed(connection, same, row.received, role):
            undecided.append(replace(same, received=row.received))
        ids.append(same.id)
    _decide(connection, undecided, rules, new.received, role)
    after = load(connection, feedback.c.id.in_(ids))
    first = min(after, key=lambda row: _ORDER.index(row.state))
    return Outcome(first.state, first.reason or "", len(there) == len(rows))


def settle(connection: sa.Connection, rules: FeedbackConfig, now: float, role: Role = "train") -> None:
    """Looks again at what waits, and at what counts but whose answers were trained from other feedback meanwhile."""
    lock(connection)
    its_answers = (
        sa.select(requests.c.msg_id)
        .join(feedback_messages, feedback_messages.c.msg_id == requests.c.msg_id)
        .where(feedback_messages.c.feedback_id == feedback.c.id)
        .correlate(feedback)
    )
    known, untrained = its_answers.exists(), its_answers.where(~is_trained(requests.c.msg_id)).exists()
    due = feedback.c.received <= now - rules.wait_seconds
    _decide(connection, load(connection, feedback.c.state == "waits", known | due), rules, now, role)
    used_up = load(connection, feedback.c.state == "counts", feedback.c.kind != "correction", known, ~untrained)
    for row in used_up:
        write_state(connection, row, "late", "its answers were trained before it was used", now, role)
    hold_outliers(connection, rules, now)


def mark(
    connection: sa.Connection,
    feedback_ids: Iterable[int],
    state: Literal["trained", "left_out"],
    reason: str,
    now: float,
    role: Role = "train",
) -> None:
    """Says that a commit has used that feedback, or why it never can. Belongs into the transaction of the commit, which
    also inserts its episodes."""
    lock(connection)
    for some in chunks(feedback_ids):
        for row in load(connection, feedback.c.id.in_(some)):
            write_state(connection, row, state, reason, now, role)


def decide_again(connection: sa.Connection, rows: Sequence[Row], rules: FeedbackConfig, now: float, role: Role) -> None:
    """For what a person has accepted: all rules but the limits."""
    _decide(connection, [replace(row, state="accepted") for row in rows], rules, now, role)


def rated(connection: sa.Connection) -> tuple[int, int]:
    """How much feedback counts, and the number of the newest: cheap to ask, and another one once something is rated."""
    found = sa.select(sa.func.count(), sa.func.coalesce(sa.func.max(feedback.c.id), 0))
    count, newest = connection.execute(found.where(feedback.c.state == "counts")).one()
    return int(count), int(newest)


def lock(connection: sa.Connection) -> None:
    """One transaction at a time decides on feedback. SQLite has only one that writes, anyway."""
    if connection.dialect.name == "postgresql":
        connection.execute(sa.text("SELECT pg_advisory_xact_lock(4928)"))


def digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def _rows(new: NewFeedback) -> list[Row]:
    rows = []
    for said in new.said:
        messages = new.messages(said.kind)
        # plus 0.0: -0.0 is 0.0
        value = None if said.value is None else said.value + 0.0
        told = [said.kind, said.name, value, said.correction, new.comment, new.task_id, new.run_id, sorted(messages)]
        row = Row(
            id=0,
            received=new.received,
            author=new.author,
            client=new.client,
            body="",
            kind=said.kind,
            name=said.name,
            value=value,
            comment=new.comment,
            correction=said.correction,
            task_id=new.task_id,
            run_id=new.run_id,
            fingerprint=digest([new.client, new.author, *told]),
            target="",
            state="new",
            reason=None,
            messages=messages,
        )
        rows.append(replace(row, target=_target(row, sorted(row.ids))))
    body = digest(sorted(row.fingerprint for row in rows))
    return [replace(row, body=body) for row in rows]


def _target(row: Row, judged: Sequence[str]) -> str:
    return digest([row.client, row.author, row.part, list(judged)])


def _renewed(connection: sa.Connection, there: Row, received: float, role: Role) -> bool:
    """The same was sent again: it is as new as the last time it came, unless it has had its day. Whether it has to be
    decided on again."""
    note(connection, there, "feedback_again", received, role)
    if received <= there.received or there.state not in ("counts", "replaced", "waits", "expired"):
        return False
    connection.execute(feedback.update().where(feedback.c.id == there.id).values(received=received))
    return there.state != "counts"


def _decide(connection: sa.Connection, rows: Sequence[Row], rules: FeedbackConfig, now: float, role: Role) -> None:
    if not rows:
        return
    known = known_answers(connection, (msg_id for row in rows for msg_id in row.ids))
    trained = trained_answers(connection, known)
    for row in sorted(rows, key=lambda row: row.age):
        judged = judged_answers(known, row.ids)
        target = _target(row, sorted(judged if row.kind != "preference" and judged else row.ids))
        facts = Facts(
            known=known,
            trained=trained,
            in_hour=_bodies_in_hour(connection, row),
            in_conversation=_bodies_of_conversations(connection, row, conversations_of(known, row.ids)),
            target_trained=_has_trained(connection, target),
            now=now,
        )
        state, reason = decided(row, facts, rules)
        row = replace(row, target=target)
        connection.execute(feedback.update().where(feedback.c.id == row.id).values(target=target))
        write_state(connection, row, state, reason, now, role)
        if state == "counts":
            _resolve(connection, row, now, role)


def _resolve(connection: sa.Connection, new: Row, now: float, role: Role) -> None:
    """Of the same author on the same answers the last counts; of a judge, only where no person has said anything."""
    rows = load(connection, feedback.c.target == new.target, feedback.c.state.in_(("counts", "replaced")))
    count = {row.id for row in winners(rows)}
    for row in rows:
        if row.id in count and row.state == "replaced" and row.id == new.id:
            write_state(connection, row, "counts", None, now, role)
        elif row.id not in count and row.state == "counts":
            write_state(connection, row, "replaced", "the same author said something else later", now, role)
    if new.part == "score":
        _person_before_judge(connection, new, now, role)


def _person_before_judge(connection: sa.Connection, new: Row, now: float, role: Role) -> None:
    beside = requests.alias("beside")
    named = (
        sa.select(feedback_messages.c.feedback_id)
        .join(beside, beside.c.msg_id == feedback_messages.c.msg_id)
        .where(beside.c.exchange.in_(sa.select(requests.c.exchange).where(requests.c.msg_id.in_(new.ids))))
    )
    of_judge = feedback.c.author.startswith(JUDGE, autoescape=True)
    same = [feedback.c.id.in_(named), feedback.c.client == new.client, feedback.c.value.is_not(None)]
    if not new.of_judge:
        ousted = load(connection, *same, of_judge, feedback.c.state == "counts")
    else:
        people = load(connection, *same, ~of_judge, feedback.c.state.in_(("counts", "trained", "late")))
        ousted = load(connection, feedback.c.id == new.id, feedback.c.state == "counts") if people else []
    for row in ousted:
        write_state(connection, row, "replaced", "a person has said what it was worth", now, role)


def _has_trained(connection: sa.Connection, target: str) -> bool:
    found = sa.select(feedback.c.id).where(feedback.c.target == target, feedback.c.state == "trained").limit(1)
    return connection.scalar(found) is not None


def _bodies_in_hour(connection: sa.Connection, row: Row) -> int:
    """What the same author sent in the hour before it, and what came later and was written earlier."""
    return int(
        connection.scalar(
            sa.select(sa.func.count(feedback.c.body.distinct())).where(
                feedback.c.author == row.author,
                feedback.c.client == row.client,
                feedback.c.received > row.received - HOUR,
                feedback.c.body != row.body,
                feedback.c.state != "refused",
            )
        )
        or 0
    )


def _bodies_of_conversations(connection: sa.Connection, row: Row, conversations: Sequence[str]) -> int:
    """What people sent about the fullest of them before."""
    counts = connection.execute(
        sa.select(sa.func.count(feedback.c.body.distinct()))
        .join(feedback_messages, feedback_messages.c.feedback_id == feedback.c.id)
        .join(requests, requests.c.msg_id == feedback_messages.c.msg_id)
        .where(
            requests.c.conversation_id.in_(conversations),
            feedback.c.body != row.body,
            feedback.c.state.not_in(("refused", "expired", "new", "waits")),
            ~feedback.c.author.startswith(JUDGE, autoescape=True),
        )
        .group_by(requests.c.conversation_id)
    )
    return max((int(count) for (count,) in counts), default=0)

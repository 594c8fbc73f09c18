"""What people and judges say of answers: written with what becomes of it.

    outcome = add(connection, NewFeedback(received=now, author="ana", client="", msg_ids=("chatcmpl-1",),
                                          said=(Said("thumb", value=1.0),)), rules)
    settle(connection, rules, now)                     # before a commit: answers became known, time went by
    judged = judgements(connection, rules)             # astune.store.feedback.judgements
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
from astune.store.feedback.outliers import hold_outliers
from astune.store.feedback.rows import JUDGE, Row, insert, load, note, write_state
from astune.store.feedback.rules import Facts, decided, winners
from astune.store.tables import feedback, feedback_messages, requests

Kind = Literal["number", "thumb", "rating", "correction", "preference"]
HOUR = 3600.0
UNNAMED = "reward"
"""The name of a reward that has none."""
_ORDER = ("refused", "held", "counts", "waits", "trained", "late", "replaced", "left_out", "expired")
"""Of several parts of a body, the state that it is said to be in comes first."""

# Made once: to make a statement takes longer than to run it.
_OF_JUDGE = feedback.c.author.startswith(JUDGE, autoescape=True)
_OTHER_BODY = feedback.c.body != sa.bindparam("its_body")
_HAS_TARGET = feedback.c.target == sa.bindparam("its_target")
_IN_HOUR = sa.select(sa.func.count(feedback.c.body.distinct())).where(
    feedback.c.author == sa.bindparam("its_author"),
    feedback.c.client == sa.bindparam("its_client"),
    feedback.c.received > sa.bindparam("since"),
    _OTHER_BODY,
    feedback.c.state != "refused",
)
_OF_CONVERSATIONS = (
    sa.select(sa.func.count(feedback.c.body.distinct()).label("bodies"))
    .join(feedback_messages, feedback_messages.c.feedback_id == feedback.c.id)
    .join(requests, requests.c.msg_id == feedback_messages.c.msg_id)
    .where(
        requests.c.conversation_id.in_(sa.bindparam("conversations", expanding=True)),
        _OTHER_BODY,
        feedback.c.state.not_in(("refused", "expired", "new", "waits")),
        ~_OF_JUDGE,
    )
    .group_by(requests.c.conversation_id)
    .subquery()
)
_SAID_BEFORE = sa.select(
    _IN_HOUR.scalar_subquery(),
    sa.select(sa.func.coalesce(sa.func.max(_OF_CONVERSATIONS.c.bodies), 0)).scalar_subquery(),
    sa.exists().where(_HAS_TARGET, feedback.c.state == "trained"),
)
"""For `Facts`: what the same author sent in the hour before, and what came later and was written earlier; what people
sent about the fullest of the conversations before; and whether the target is trained."""
_SAME_TEXT = feedback.c.fingerprint.in_(sa.bindparam("fingerprints", expanding=True))
_OTHERS = sa.and_(_HAS_TARGET, feedback.c.id != sa.bindparam("its_id"), feedback.c.state.in_(("counts", "replaced")))
_BESIDE = requests.alias("beside")
_SAME_EXCHANGES = (
    sa.select(feedback_messages.c.feedback_id)
    .join(_BESIDE, _BESIDE.c.msg_id == feedback_messages.c.msg_id)
    .where(
        _BESIDE.c.exchange.in_(
            sa.select(requests.c.exchange).where(requests.c.msg_id.in_(sa.bindparam("ids", expanding=True)))
        )
    )
)
_SCORES = sa.and_(
    feedback.c.id.in_(_SAME_EXCHANGES), feedback.c.client == sa.bindparam("its_client"), feedback.c.value.is_not(None)
)
_OUSTED = sa.and_(_SCORES, _OF_JUDGE, feedback.c.state == "counts")
_OF_PEOPLE = sa.and_(_SCORES, ~_OF_JUDGE, feedback.c.state.in_(("counts", "trained", "late")))
_OUTCOMES = (
    sa.select(feedback.c.state, feedback.c.reason)
    .where(feedback.c.id.in_(sa.bindparam("ids", expanding=True)))
    .order_by(feedback.c.received, feedback.c.fingerprint)
)


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
    """What became of a body. `state` is one of STATES (`astune.store.feedback.rules`)."""

    state: str
    reason: str
    duplicate: bool
    """Whether the very same was there before."""


def add(connection: sa.Connection, new: NewFeedback, rules: FeedbackConfig, role: Role = "serve") -> Outcome:
    """Writes it and says what became of it."""
    lock(connection)
    rows = _rows(new)
    there = {row.fingerprint: row for row in load(connection, _SAME_TEXT, fingerprints=[r.fingerprint for r in rows])}
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
    after = connection.execute(_OUTCOMES, {"ids": ids}).all()
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
        row = replace(row, target=target)
        said = {
            "its_author": row.author,
            "its_client": row.client,
            "its_body": row.body,
            "its_target": target,
            "since": row.received - HOUR,
            "conversations": conversations_of(known, row.ids),
        }
        in_hour, in_conversation, target_trained = connection.execute(_SAID_BEFORE, said).one()
        facts = Facts(
            known=known,
            trained=trained,
            in_hour=in_hour,
            in_conversation=in_conversation,
            target_trained=target_trained,
            now=now,
        )
        state, reason = decided(row, facts, rules)
        write_state(connection, row, state, reason, now, role)
        if state == "counts":
            _resolve(connection, replace(row, state=state, reason=reason), now, role)


def _resolve(connection: sa.Connection, new: Row, now: float, role: Role) -> None:
    """Of the same author on the same answers the last counts; of a judge, only where no person has said anything."""
    others = load(connection, _OTHERS, its_target=new.target, its_id=new.id)
    rows = [*others, new]
    count = {row.id for row in winners(rows)}
    for row in rows:
        if row.id not in count and row.state == "counts":
            write_state(connection, row, "replaced", "the same author said something else later", now, role)
    if new.part == "score":
        _person_before_judge(connection, new, now, role)


def _person_before_judge(connection: sa.Connection, new: Row, now: float, role: Role) -> None:
    same = {"ids": new.ids, "its_client": new.client}
    if not new.of_judge:
        ousted = load(connection, _OUSTED, **same)
    else:
        people = load(connection, _OF_PEOPLE, **same)
        ousted = load(connection, feedback.c.id == new.id, feedback.c.state == "counts") if people else []
    for row in ousted:
        write_state(connection, row, "replaced", "a person has said what it was worth", now, role)

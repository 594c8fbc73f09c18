"""Write feedback of people and judges, and decide its state.

    outcome = add(connection, NewFeedback(received=now, author="ana", client="", msg_ids=("chatcmpl-1",),
                                          parts=(FeedbackPart("thumb", value=1.0),)), rules)
    settle(connection, rules, now)                     # before a commit: decide again on what waits
    judged = judgements(connection, rules)             # astune.online.store.feedback.judgements
    mark(connection, ids, "trained", "v7", now)        # in the transaction that makes the version

Invariant: which feedback counts depends on its contents and the times at which it was received, not on the order in
which processes wrote it. Every change of a state has a line in `audit`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import sqlalchemy as sa

from astune.config.online import FeedbackConfig
from astune.errors import StoreError
from astune.online.store.answers import (
    chunks,
    conversations_of,
    find_judged,
    find_trained,
    is_trained,
    load_answers,
)
from astune.online.store.audit import Role
from astune.online.store.feedback.following import check_following
from astune.online.store.feedback.outliers import hold_outliers
from astune.online.store.feedback.rows import JUDGE, FeedbackRow, insert, load, note, write_state
from astune.online.store.feedback.rules import Facts, decide, winners
from astune.store.tables import feedback, feedback_messages, requests

Kind = Literal["number", "thumb", "rating", "correction", "preference"]
HOUR = 3600.0
UNNAMED = "reward"
"""The name of a reward that has none."""
_ORDER = ("refused", "held", "counts", "waits", "trained", "late", "replaced", "left_out", "expired")
"""The state of a body with several parts is that state of a part which comes first here."""

# Made once: to make a statement takes longer than to run it.
_OF_JUDGE = feedback.c.author.startswith(JUDGE, autoescape=True)
_OTHER_BODY = feedback.c.body != sa.bindparam("its_body")
_HAS_TARGET = feedback.c.target == sa.bindparam("its_target")
_IN_HOUR = sa.select(sa.func.count(feedback.c.body.distinct())).where(
    feedback.c.author == sa.bindparam("its_author"),
    feedback.c.client == sa.bindparam("its_client"),
    feedback.c.received > sa.bindparam("since"),
    feedback.c.received <= sa.bindparam("until"),
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
"""For `Facts`: bodies of the same author in the hour before, and in the hour after if they were written earlier (by a
clock that was ahead); bodies of people about the fullest of the conversations; and a condition, that feedback with the
same target is trained."""
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
class FeedbackPart:
    """One score, correction or preference of a body. `value` is None for corrections and preferences."""

    kind: Kind
    name: str = UNNAMED
    value: float | None = None
    correction: str | None = None


@dataclass(frozen=True)
class NewFeedback:
    """A body as it is read. A preference is about `better` and `worse`, every other part about `msg_ids`."""

    received: float
    author: str
    client: str
    parts: tuple[FeedbackPart, ...]
    msg_ids: tuple[str, ...] = ()
    better: str | None = None
    worse: str | None = None
    comment: str | None = None
    task_id: str | None = None
    run_id: str | None = None
    hint: str | None = None
    """Of a judge: what would have been better."""

    def messages(self, kind: Kind) -> tuple[tuple[str, str], ...]:
        """The answers that a part of that kind is about, as (msg_id, place)."""
        if kind == "preference":
            return ((str(self.better), "better"), (str(self.worse), "worse"))
        return tuple((msg_id, "about") for msg_id in dict.fromkeys(self.msg_ids))


@dataclass(frozen=True)
class FeedbackOutcome:
    """The state of a body: one of STATES (`astune.online.store.feedback.rules`)."""

    state: str
    reason: str
    duplicate: bool
    """True if the same body was there before."""


def add(connection: sa.Connection, new: NewFeedback, rules: FeedbackConfig, role: Role = "serve") -> FeedbackOutcome:
    """Write a body and decide its state."""
    lock(connection)
    rows = _rows(new)
    there = {row.fingerprint: row for row in load(connection, _SAME_TEXT, fingerprints=[r.fingerprint for r in rows])}
    undecided: list[FeedbackRow] = []
    ids: list[int] = []
    for row in rows:
        same = there.get(row.fingerprint)
        if same is None:
            same = insert(connection, row)
            undecided.append(same)
        elif _renew(connection, same, row.received, role):
            undecided.append(replace(same, received=row.received))
        ids.append(same.id)
    _decide(connection, undecided, rules, new.received, role)
    after = connection.execute(_OUTCOMES, {"ids": ids}).all()
    first = min(after, key=lambda row: _ORDER.index(row.state))
    return FeedbackOutcome(first.state, first.reason or "", len(there) == len(rows))


def settle(connection: sa.Connection, rules: FeedbackConfig, now: float, role: Role = "train") -> None:
    """Decide again on feedback that waits. Counting feedback is late if its answers were trained with other feedback
    meanwhile, and held if its name has no weight (written by an older ASTune, or before the configuration changed)."""
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
    names = (UNNAMED, *rules.rewards)
    for row in load(
        connection, feedback.c.state == "counts", feedback.c.value.is_not(None), feedback.c.name.not_in(names)
    ):
        write_state(connection, row, "held", "astune.online.feedback.rewards has no weight for it", now, role)
    hold_outliers(connection, rules, now)
    _decide(connection, check_following(connection, rules, now), rules, now, role)


def mark(
    connection: sa.Connection,
    feedback_ids: Iterable[int],
    state: Literal["trained", "left_out"],
    reason: str,
    now: float,
    role: Role = "train",
) -> None:
    """Mark feedback as used by a commit, or as never usable for that reason. Call it in the transaction that inserts
    the episodes of the commit."""
    lock(connection)
    for some in chunks(feedback_ids):
        for row in load(connection, feedback.c.id.in_(some)):
            write_state(connection, row, state, reason, now, role)


def mark_trained(
    connection: sa.Connection, version: int, state: Literal["counts", "left_out"], reason: str, now: float, role: Role
) -> int:
    """Let what a version was made from count anew, or never be learned again. How much that is."""
    lock(connection)
    rows = load(connection, feedback.c.state == "trained", feedback.c.reason == f"v{version}")
    for row in rows:
        write_state(connection, row, state, reason, now, role)
    return len(rows)


def count_rated(connection: sa.Connection) -> tuple[int, int]:
    """Count the counting feedback, and find its newest number: a cheap pair that changes with every new rating."""
    found = sa.select(sa.func.count(), sa.func.coalesce(sa.func.max(feedback.c.id), 0))
    count, newest = connection.execute(found.where(feedback.c.state == "counts")).one()
    return int(count), int(newest)


def lock(connection: sa.Connection) -> None:
    """Let one transaction at a time decide on feedback. On SQLite only one writes anyway."""
    if connection.dialect.name == "postgresql":
        connection.execute(sa.text("SELECT pg_advisory_xact_lock(4928)"))


def digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def _rows(new: NewFeedback) -> list[FeedbackRow]:
    rows = []
    for part in new.parts:
        messages = new.messages(part.kind)
        # plus 0.0: -0.0 is 0.0
        value = None if part.value is None else part.value + 0.0
        told = [part.kind, part.name, value, part.correction, new.comment, new.task_id, new.run_id, sorted(messages)]
        row = FeedbackRow(
            id=0,
            received=new.received,
            author=new.author,
            client=new.client,
            body="",
            kind=part.kind,
            name=part.name,
            value=value,
            comment=new.comment,
            correction=part.correction,
            task_id=new.task_id,
            run_id=new.run_id,
            fingerprint=digest([new.client, new.author, *told]),
            target="",
            state="new",
            reason=None,
            messages=messages,
            hint=new.hint,
        )
        rows.append(replace(row, target=_target(row, sorted(row.ids))))
    body = digest(sorted(row.fingerprint for row in rows))
    return [replace(row, body=body) for row in rows]


def _target(row: FeedbackRow, judged: Sequence[str]) -> str:
    return digest([row.client, row.author, row.part, list(judged)])


def _renew(connection: sa.Connection, there: FeedbackRow, received: float, role: Role) -> bool:
    """Note that the same feedback was sent again, and take the new time of receipt unless it is used or refused. True
    if it has to be decided on again."""
    note(connection, there, "feedback_again", received, role)
    if received <= there.received or there.state not in ("counts", "replaced", "waits", "expired"):
        return False
    connection.execute(feedback.update().where(feedback.c.id == there.id).values(received=received))
    return there.state != "counts"


def _decide(
    connection: sa.Connection, rows: Sequence[FeedbackRow], rules: FeedbackConfig, now: float, role: Role
) -> None:
    if not rows:
        return
    known = load_answers(connection, (msg_id for row in rows for msg_id in row.ids))
    trained = find_trained(connection, known)
    for row in sorted(rows, key=lambda row: row.age):
        judged = find_judged(known, row.ids)
        target = _target(row, sorted(judged if row.kind != "preference" and judged else row.ids))
        row = replace(row, target=target)
        said = {
            "its_author": row.author,
            "its_client": row.client,
            "its_body": row.body,
            "its_target": target,
            "since": row.received - HOUR,
            "until": row.received + HOUR,
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
        state, reason = decide(row, facts, rules)
        write_state(connection, row, state, reason, now, role)
        if state == "counts":
            _resolve(connection, replace(row, state=state, reason=reason), now, role)


def _resolve(connection: sa.Connection, new: FeedbackRow, now: float, role: Role) -> None:
    """Replace all but the last feedback of the same author on the same answers, and that of a judge if a person has
    given a score."""
    others = load(connection, _OTHERS, its_target=new.target, its_id=new.id)
    rows = [*others, new]
    count = {row.id for row in winners(rows)}
    for row in rows:
        if row.id not in count and row.state == "counts":
            write_state(connection, row, "replaced", "the same author said something else later", now, role)
    if new.part == "score":
        _person_before_judge(connection, new, now, role)


def _person_before_judge(connection: sa.Connection, new: FeedbackRow, now: float, role: Role) -> None:
    same = {"ids": new.ids, "its_client": new.client}
    if not new.of_judge:
        ousted = load(connection, _OUSTED, **same)
    else:
        people = load(connection, _OF_PEOPLE, **same)
        ousted = load(connection, feedback.c.id == new.id, feedback.c.state == "counts") if people else []
    for row in ousted:
        write_state(connection, row, "replaced", "a person has said what it was worth", now, role)


def load_held(connection: sa.Connection) -> list[FeedbackRow]:
    """Load all held feedback, the oldest first."""
    return load(connection, feedback.c.state == "held")


def choose_held(connection: sa.Connection, numbers: Collection[int], author: str | None) -> list[FeedbackRow]:
    """Choose held feedback by its numbers or its author. Raises StoreError if there is none, and for a number that is
    not held."""
    lock(connection)
    rows = load_held(connection)
    unknown = sorted(set(numbers) - {row.id for row in rows})
    if unknown:
        raise StoreError(f"no feedback {unknown[0]} is held; `astune online held` lists what is")
    found = [row for row in rows if row.id in numbers or (author is not None and row.author == author)]
    if not found:
        raise StoreError(f"no feedback of {author!r} is held; `astune online held` lists what is")
    return found


def accept(
    connection: sa.Connection, rows: Collection[FeedbackRow], rules: FeedbackConfig, now: float
) -> list[FeedbackRow]:
    """Let it count, unless later feedback replaces it or its answers were trained meanwhile. Return the rows as they
    are then."""
    for row in rows:
        note(connection, row, "feedback_accepted", now, "command")
    _decide(connection, [replace(row, state="accepted") for row in rows], rules, now, "command")
    return load(connection, feedback.c.id.in_([row.id for row in rows]))


def refuse(connection: sa.Connection, rows: Collection[FeedbackRow], now: float) -> list[FeedbackRow]:
    """Refuse it: it never counts, even if it is sent again. Return the rows as they are then."""
    for row in rows:
        write_state(connection, row, "refused", "refused by hand", now, "command")
    return load(connection, feedback.c.id.in_([row.id for row in rows]))

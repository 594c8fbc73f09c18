"""Pairs of answers to the same request, and what raters say of them.

A rater is asked once about each pair. Who prefers one of the answers gives feedback of the kind `preference`, by the
author `rater:NAME`; ties, two bad answers and skipped pairs stand here alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import sqlalchemy as sa

from astune.online.store import audit
from astune.online.store.answers import chunks, find_of
from astune.store.tables import comparison_votes, comparisons, feedback, feedback_messages, requests, turns

Choice: TypeAlias = Literal["first", "second", "tie", "both_bad", "skip"]
Source: TypeAlias = Literal["traffic", "versions", "group"]
COPIED = "compared:"
"""`run_id` of a request that was made to be compared begins so; the msg_id follows of the one that it repeats."""
JUDGED = "comparison judged"
"""The kind of the audit line about what a judge chose."""
REWARDS = "rewards"
"""Stands for a judge where the rewards of both answers chose."""
MOST_LOOKED_AT = 500
"""Newest requests among which pairs are looked for."""
_VALUED = ("counts", "trained", "late")


@dataclass(frozen=True)
class AnswerPair:
    """`first` and `second` are msg_ids; `judged` is the choice of a judge; `made` is in seconds since 1970."""

    number: int
    made: float
    source: str
    first: str
    second: str
    client: str
    judged: str | None


@dataclass(frozen=True)
class RatersVote:
    comparison: int
    rater: str
    choice: str


def add(connection: sa.Connection, source: Source, first: str, second: str, client: str, now: float) -> int:
    """Add a pair; return its number."""
    row = {"made": now, "source": source, "first": first, "second": second, "client": client}
    number = connection.execute(comparisons.insert().values(row)).inserted_primary_key
    assert number is not None, "the database counts comparisons"
    return int(number[0])


def find(connection: sa.Connection, number: int, client: str) -> AnswerPair | None:
    """Find a pair of this client's answers."""
    mine = comparisons.c.id == number, comparisons.c.client == client
    row = connection.execute(comparisons.select().where(*mine)).first()
    return None if row is None else AnswerPair(*row)


def find_open(connection: sa.Connection, client: str, rater: str, among: Iterable[int] | None = None) -> list[int]:
    """Find the pairs of the client that the rater has not seen, the oldest first. `among`: only these."""
    seen = sa.exists().where(comparison_votes.c.comparison_id == comparisons.c.id, comparison_votes.c.rater == rater)
    chosen = sa.select(comparisons.c.id).where(comparisons.c.client == client, ~seen).order_by(comparisons.c.id)
    found = connection.scalars(chosen).all()
    return list(found) if among is None else sorted(set(found).intersection(among))


def find_between(connection: sa.Connection, client: str, one: int, other: int) -> list[int]:
    """Find the client's pairs of one answer by either of two versions."""
    left, right = requests.alias(), requests.alias()
    pairs = (
        sa.select(comparisons.c.id)
        .join(left, left.c.msg_id == comparisons.c.first)
        .join(right, right.c.msg_id == comparisons.c.second)
        .where(comparisons.c.client == client, left.c.version.in_((one, other)), right.c.version.in_((one, other)))
        .where(left.c.version != right.c.version)
    )
    return list(connection.scalars(pairs))


def find_of_task(connection: sa.Connection, client: str, task_id: str) -> list[int]:
    """Find the client's pairs of answers at a task."""
    of_task = sa.select(requests.c.msg_id).where(requests.c.task_id == task_id, requests.c.client == client)
    return list(connection.scalars(sa.select(comparisons.c.id).where(comparisons.c.first.in_(of_task))))


def write_vote(
    connection: sa.Connection, number: int, rater: str, choice: Choice, comment: str | None, now: float
) -> str | None:
    """Write a vote. An earlier one of the rater stays as it is: return its choice, None if this is the first."""
    its = comparison_votes.c.comparison_id == number, comparison_votes.c.rater == rater
    there: str | None = connection.scalar(sa.select(comparison_votes.c.choice).where(*its))
    if there is not None:
        return there
    row = {"comparison_id": number, "rater": rater, "choice": choice, "comment": comment, "voted": now}
    connection.execute(comparison_votes.insert().values(row))
    return None


def write_judged(connection: sa.Connection, number: int, choice: Choice, judge: str) -> None:
    """Write what a judge, or `REWARDS`, chose."""
    audit.say(connection, "serve", JUDGED, str(number), judge=judge, choice=choice)
    connection.execute(comparisons.update().where(comparisons.c.id == number).values(judged=choice))


def every_comparison(connection: sa.Connection, client: str | None = None) -> list[AnswerPair]:
    """Load all pairs, the oldest first: of one client, or of all."""
    chosen = comparisons.select().order_by(comparisons.c.id)
    chosen = chosen if client is None else chosen.where(comparisons.c.client == client)
    return [AnswerPair(*row) for row in connection.execute(chosen)]


def judges_of(connection: sa.Connection) -> dict[int, str]:
    """Find who chose beforehand, by number of the pair."""
    said = audit.lines(connection, what=JUDGED)
    return {int(line.subject): str(line.details["judge"]) for line in said if line.subject is not None}


def every_vote(connection: sa.Connection, client: str | None = None) -> list[RatersVote]:
    """Load all votes on the pairs of one client, or of all, in the order of pairs and raters."""
    plain = [comparison_votes.c[name] for name in ("comparison_id", "rater", "choice")]
    chosen = sa.select(*plain).order_by(comparison_votes.c.comparison_id, comparison_votes.c.rater)
    if client is not None:
        chosen = chosen.join(comparisons).where(comparisons.c.client == client)
    return [RatersVote(*row) for row in connection.execute(chosen)]


def find_with_choices(connection: sa.Connection, client: str) -> list[str]:
    """Find the client's newest requests with several answers."""
    several = sa.select(turns.c.msg_id).group_by(turns.c.msg_id).having(sa.func.count() > 1)
    return find_newest(connection, client, requests.c.msg_id.in_(several))


def find_attempts(
    connection: sa.Connection, client: str, task_id: str | None
) -> dict[tuple[str, str | None], list[str]]:
    """Find the client's newest requests that are all of their conversation, by task and user; the oldest first."""
    beside = requests.alias()
    lonely = ~sa.exists().where(
        beside.c.conversation_id == requests.c.conversation_id, beside.c.msg_id != requests.c.msg_id
    )
    of_task = requests.c.task_id.is_not(None) if task_id is None else requests.c.task_id == task_id
    ids = find_newest(connection, client, lonely, of_task)
    columns = requests.c.msg_id, requests.c.task_id, requests.c.user
    whose = {
        row.msg_id: (row.task_id, row.user)
        for row in connection.execute(sa.select(*columns).where(requests.c.msg_id.in_(ids)))
    }
    found: dict[tuple[str, str | None], list[str]] = {}
    for msg_id in reversed(ids):
        found.setdefault(whose[msg_id], []).append(msg_id)
    return {key: some for key, some in found.items() if len(some) > 1}


def find_sampled(connection: sa.Connection, msg_id: str) -> dict[int, str]:
    """Find the answers that were sampled to the request to be compared, by version."""
    again = requests.c.run_id == f"{COPIED}{msg_id}", ~requests.c.msg_id.startswith(f"{msg_id}:", autoescape=True)
    rows = sa.select(requests.c.version, requests.c.msg_id).where(*again).order_by(requests.c.answered.desc())
    return {row.version: row.msg_id for row in connection.execute(rows)}


def find_copies(connection: sa.Connection, conversations: Sequence[str]) -> set[str]:
    """Find the conversations that were made of requests in these ones, to be compared."""
    mine = sa.select(sa.literal(COPIED) + requests.c.msg_id).where
    copies = sa.select(requests.c.conversation_id).where
    return find_of(
        connection,
        conversations,
        lambda some: copies(requests.c.run_id.in_(mine(requests.c.conversation_id.in_(some)))),
    )


def find_newest(connection: sa.Connection, client: str, *where: sa.ColumnElement[bool]) -> list[str]:
    """Find the client's newest requests, the newest first: recorded whole, by a version of ours, and for somebody else
    than raters."""
    copied = sa.func.coalesce(requests.c.run_id, "").startswith(COPIED)
    ours = requests.c.client == client, requests.c.redacted.is_(False), requests.c.version >= 0, ~copied
    order = requests.c.answered.desc(), requests.c.msg_id
    return list(
        connection.scalars(sa.select(requests.c.msg_id).where(*ours, *where).order_by(*order).limit(MOST_LOOKED_AT))
    )


def find_compared(connection: sa.Connection, msg_ids: Sequence[str]) -> set[str]:
    """Keep those of `msg_ids` that stand in a pair."""
    found: set[str] = set()
    for some in chunks(msg_ids):
        for column in (comparisons.c.first, comparisons.c.second):
            found.update(connection.scalars(sa.select(column).where(column.in_(some))))
    return found


def reward_of(connection: sa.Connection, msg_id: str) -> float | None:
    """The mean of the scores that name the answer; None if there are none."""
    about = sa.select(feedback_messages.c.feedback_id).where(feedback_messages.c.msg_id == msg_id)
    chosen = feedback.c.id.in_(about), feedback.c.value.is_not(None), feedback.c.state.in_(_VALUED)
    found: float | None = connection.scalar(sa.select(sa.func.avg(feedback.c.value)).where(*chosen))
    return found


def forget(connection: sa.Connection, msg_ids: Sequence[str]) -> None:
    """Delete the pairs that one of `msg_ids` stands in, with the votes on them."""
    for some in chunks(msg_ids, 500):
        connection.execute(comparisons.delete().where(comparisons.c.first.in_(some) | comparisons.c.second.in_(some)))


def forget_rater(connection: sa.Connection, rater: str) -> int:
    """Delete the votes of a rater; return how many there were."""
    return connection.execute(comparison_votes.delete().where(comparison_votes.c.rater == rater)).rowcount

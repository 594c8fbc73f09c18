"""Exchanges that nobody has said anything of."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass

import sqlalchemy as sa

from astune.store import audit
from astune.store.answers import chunks, judged_answers, known_answers
from astune.store.feedback.figures import JUDGE_FAILED
from astune.store.tables import feedback, feedback_messages, requests

SPOKEN = ("counts", "trained", "late", "held", "left_out")
"""States of a score that somebody gave and that may stand."""


@dataclass(frozen=True)
class UnratedExchange:
    """`msg_ids` are the way to its last answer, which came at `answered`."""

    exchange: str
    msg_ids: tuple[str, ...]
    client: str
    answered: float


def unrated_exchanges(connection: sa.Connection, after: float, until: float) -> list[UnratedExchange]:
    """Those whose last answer came after `after` and not after `until`, and that have no score, the oldest first. What
    was redacted cannot be trained and is left away."""
    recent = sa.select(requests.c.exchange).where(requests.c.answered > after).distinct()
    last = sa.func.max(requests.c.answered).label("last")
    ended = (
        sa.select(requests.c.exchange)
        .where(requests.c.exchange.in_(recent))
        .group_by(requests.c.exchange)
        .having(last > after, last <= until, sa.func.max(sa.cast(requests.c.redacted, sa.Integer)) == 0)
        .order_by(last, requests.c.exchange)
    )
    return unrated_of(connection, list(connection.scalars(ended)))


def unrated_of(connection: sa.Connection, exchanges: Collection[str]) -> list[UnratedExchange]:
    """Of these, those that have no score, in the same order."""
    rated: set[str] = set()
    known = known_answers(connection, exchanges)
    for some in chunks(exchanges):
        rated.update(
            connection.scalars(
                sa.select(requests.c.exchange)
                .join(feedback_messages, feedback_messages.c.msg_id == requests.c.msg_id)
                .join(feedback, feedback.c.id == feedback_messages.c.feedback_id)
                .where(requests.c.exchange.in_(some), feedback.c.value.is_not(None), feedback.c.state.in_(SPOKEN))
            )
        )
    answered = _answered(connection, exchanges)
    numbers: dict[str, list[tuple[int, str]]] = defaultdict(list)
    for answer in known.values():
        numbers[answer.exchange].append((answer.number, answer.msg_id))
    return [
        UnratedExchange(
            exchange=exchange,
            msg_ids=judged_answers(known, [max(numbers[exchange])[1]]),
            client=known[exchange].client,
            answered=answered[exchange],
        )
        for exchange in exchanges
        if exchange not in rated and exchange in known
    ]


def failures(connection: sa.Connection, exchange: str) -> int:
    """How often a judge could not tell what it was worth."""
    return sum(1 for _ in audit.lines(connection, subjects=[exchange], what=JUDGE_FAILED))


def _answered(connection: sa.Connection, exchanges: Collection[str]) -> dict[str, float]:
    found: dict[str, float] = {}
    for some in chunks(exchanges):
        last = sa.select(requests.c.exchange, sa.func.max(requests.c.answered))
        rows = connection.execute(last.where(requests.c.exchange.in_(some)).group_by(requests.c.exchange))
        found.update({str(exchange): float(when) for exchange, when in rows})
    return found

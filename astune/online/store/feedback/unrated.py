"""Exchanges without a score."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass

import sqlalchemy as sa

from astune.online.store import audit
from astune.online.store.answers import chunks, find_judged, load_answers
from astune.online.store.feedback.figures import JUDGE_FAILED
from astune.store.tables import feedback, feedback_messages, requests

SPOKEN = ("counts", "trained", "late", "held", "left_out")
"""States of a score by which an exchange is rated."""


@dataclass(frozen=True)
class UnratedExchange:
    """`msg_ids` are its answers up to the last one, which came at `answered`."""

    exchange: str
    msg_ids: tuple[str, ...]
    client: str
    answered: float


def find_unrated(connection: sa.Connection, after: float, until: float) -> list[UnratedExchange]:
    """Find the exchanges without a score whose last answer came after `after` and not after `until`, the oldest first.
    Redacted ones are left out, as they cannot be trained."""
    recent = sa.select(requests.c.exchange).where(requests.c.answered > after).distinct()
    last = sa.func.max(requests.c.answered).label("last")
    ended = (
        sa.select(requests.c.exchange)
        .where(requests.c.exchange.in_(recent))
        .group_by(requests.c.exchange)
        .having(last > after, last <= until, sa.func.max(sa.cast(requests.c.redacted, sa.Integer)) == 0)
        .order_by(last, requests.c.exchange)
    )
    return keep_unrated(connection, list(connection.scalars(ended)))


def keep_unrated(connection: sa.Connection, exchanges: Collection[str]) -> list[UnratedExchange]:
    """Keep the exchanges without a score, in the same order."""
    rated: set[str] = set()
    known = load_answers(connection, exchanges)
    for some in chunks(exchanges):
        rated.update(
            connection.scalars(
                sa.select(requests.c.exchange)
                .join(feedback_messages, feedback_messages.c.msg_id == requests.c.msg_id)
                .join(feedback, feedback.c.id == feedback_messages.c.feedback_id)
                .where(requests.c.exchange.in_(some), feedback.c.value.is_not(None), feedback.c.state.in_(SPOKEN))
            )
        )
    answered = _find_last_answers(connection, exchanges)
    numbers: dict[str, list[tuple[int, str]]] = defaultdict(list)
    for answer in known.values():
        numbers[answer.exchange].append((answer.number, answer.msg_id))
    return [
        UnratedExchange(
            exchange=exchange,
            msg_ids=find_judged(known, [max(numbers[exchange])[1]]),
            client=known[exchange].client,
            answered=answered[exchange],
        )
        for exchange in exchanges
        if exchange not in rated and exchange in known
    ]


def failures(connection: sa.Connection, exchange: str) -> int:
    """Count how often a judge has failed on an exchange."""
    return sum(1 for _ in audit.lines(connection, subjects=[exchange], what=JUDGE_FAILED))


def _find_last_answers(connection: sa.Connection, exchanges: Collection[str]) -> dict[str, float]:
    found: dict[str, float] = {}
    for some in chunks(exchanges):
        last = sa.select(requests.c.exchange, sa.func.max(requests.c.answered))
        rows = connection.execute(last.where(requests.c.exchange.in_(some)).group_by(requests.c.exchange))
        found.update({str(exchange): float(when) for exchange, when in rows})
    return found

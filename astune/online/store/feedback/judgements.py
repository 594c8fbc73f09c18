"""Feedback as training reads it: judgements of answers, preferences between answers, and exchanges without a score."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import fsum
from statistics import fmean

import sqlalchemy as sa

from astune.config.online import FeedbackConfig
from astune.online.store import audit
from astune.online.store.answers import KnownAnswer, find_judged, find_of, load_answers
from astune.online.store.feedback.figures import JUDGE_FAILED
from astune.online.store.feedback.rows import FeedbackRow, load
from astune.store.tables import feedback, feedback_messages, requests


@dataclass(frozen=True)
class Judgement:
    """All feedback on answers that were judged together: one episode."""

    msg_ids: tuple[str, ...]
    """All judged answers in the order of their conversations: the named ones and those before them."""
    reward: float | None
    """Mean over the authors of each author's reward: the weighted sum of the named rewards, clipped to the range that
    the rules allow. None if there are only corrections."""
    rewards: Mapping[str, float]
    """Unweighted mean over the authors of each named reward; `reward` is a number, thumb or rating without a name."""
    thumb: bool | None
    """The majority of the thumbs; None if there are none or as many up as down."""
    corrections: tuple[str, ...]
    """Corrected answers for the last of `msg_ids`, the newest last."""
    kinds: frozenset[str]
    authors: tuple[str, ...]
    task_id: str | None
    run_id: str | None
    """The feedback's task and run, else those of the answers."""
    received: float
    """The time at which the last of it came."""
    feedback_ids: tuple[int, ...]
    """For `astune.online.store.feedback.states.mark`."""
    raters: tuple[str, ...] = ("",)
    """The named users whose scores `reward` is made of; an empty name stands for all others."""
    correctors: tuple[str, ...] = ("",)
    """The named users who wrote the last of `corrections`; an empty name stands for all others."""
    cut: bool = False
    """True if an author's sum of named rewards was clipped."""
    hint: str | None = None
    """The newest of what judges say that would have been better."""


@dataclass(frozen=True)
class Preference:
    """A pair of answers of which most authors prefer one."""

    better: str
    worse: str
    agreement: float
    """(for - against) / all votes, above 0 and at most 1."""
    authors: tuple[str, ...]
    received: float
    feedback_ids: tuple[int, ...]
    raters: tuple[str, ...] = ("",)
    """The named users who prefer it; an empty name stands for all others."""


def judgements(
    connection: sa.Connection, rules: FeedbackConfig, states: Sequence[str] = ("counts",)
) -> list[Judgement]:
    """Collect the judgements from all feedback in one of `states`, the oldest first. Call `settle` before, in the same
    transaction."""
    rows = load(connection, feedback.c.state.in_(states), feedback.c.kind != "preference")
    known = load_answers(connection, (msg_id for row in rows for msg_id in row.ids))
    together: dict[tuple[str, ...], list[FeedbackRow]] = defaultdict(list)
    for row in rows:
        judged = find_judged(known, row.ids)
        if judged:  # its conversation may have been deleted
            together[judged].append(row)
    found = [_judgement(msg_ids, some, known, rules) for msg_ids, some in together.items()]
    return sorted(found, key=lambda judgement: (judgement.received, judgement.msg_ids))


def preferences(connection: sa.Connection, states: Sequence[str] = ("counts",)) -> list[Preference]:
    """Collect the preferences from all comparisons in one of `states`, the oldest first. A pair with as many votes for
    either side is left out."""
    pairs: dict[tuple[str, str], list[tuple[str, FeedbackRow]]] = defaultdict(list)
    for row in load(connection, feedback.c.state.in_(states), feedback.c.kind == "preference"):
        first, second = sorted(row.ids)
        pairs[first, second].append((next(msg_id for msg_id, place in row.messages if place == "better"), row))
    found = []
    for (first, second), votes in pairs.items():
        lead = sum(1 if better == first else -1 for better, _ in votes)
        if not lead:
            continue
        rows = [row for _, row in votes]
        found.append(
            Preference(
                better=first if lead > 0 else second,
                worse=second if lead > 0 else first,
                agreement=abs(lead) / len(votes),
                authors=_authors(rows),
                raters=_users(row for better, row in votes if (better == first) == (lead > 0)),
                received=max(row.received for row in rows),
                feedback_ids=tuple(row.id for row in rows),
            )
        )
    return sorted(found, key=lambda preference: (preference.received, preference.better, preference.worse))


def _judgement(
    msg_ids: tuple[str, ...], rows: Sequence[FeedbackRow], known: Mapping[str, KnownAnswer], rules: FeedbackConfig
) -> Judgement:
    by_author: dict[str, list[float]] = defaultdict(list)
    by_name: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        if row.value is not None:
            by_author[row.author].append(rules.rewards.get(row.name, 1.0) * row.value)
            by_name[row.name].append(row.value)
    sums = [fsum(values) for values in by_author.values()]
    within = [min(max(each, rules.least), rules.most) for each in sums]
    answers = [known[msg_id] for msg_id in msg_ids]
    corrections = tuple(dict.fromkeys(row.correction for row in rows if row.correction is not None))
    thumbs = sum(1 if row.value else -1 for row in rows if row.kind == "thumb")
    return Judgement(
        msg_ids=msg_ids,
        reward=fmean(within) if within else None,
        rewards={name: fmean(values) for name, values in sorted(by_name.items())},
        thumb=thumbs > 0 if thumbs else None,
        corrections=corrections,
        kinds=frozenset(row.kind for row in rows),
        authors=_authors(rows),
        raters=_users(row for row in rows if row.value is not None),
        cut=within != sums,
        hint=_last([row.hint for row in rows]),
        correctors=_users(row for row in rows if corrections and row.correction == corrections[-1]),
        task_id=_last([*(answer.task_id for answer in answers), *(row.task_id for row in rows)]),
        run_id=_last([*(answer.run_id for answer in answers), *(row.run_id for row in rows)]),
        received=max(row.received for row in rows),
        feedback_ids=tuple(row.id for row in rows),
    )


def _authors(rows: Sequence[FeedbackRow]) -> tuple[str, ...]:
    return tuple(sorted({row.author for row in rows}))


def _users(rows: Iterable[FeedbackRow]) -> tuple[str, ...]:
    return tuple(sorted({row.user for row in rows}))


def _last(values: Sequence[str | None]) -> str | None:
    return next((value for value in reversed(values) if value is not None), None)


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
    scored = (
        sa.select(requests.c.exchange)
        .join(feedback_messages, feedback_messages.c.msg_id == requests.c.msg_id)
        .join(feedback, feedback.c.id == feedback_messages.c.feedback_id)
        .where(feedback.c.value.is_not(None), feedback.c.state.in_(SPOKEN))
    )
    rated = find_of(connection, exchanges, lambda some: scored.where(requests.c.exchange.in_(some)))
    return load_exchanges(connection, [exchange for exchange in exchanges if exchange not in rated])


def load_exchanges(connection: sa.Connection, exchanges: Collection[str]) -> list[UnratedExchange]:
    """Load the exchanges that are known, in the same order."""
    known = load_answers(connection, exchanges)
    of_exchange: dict[str, list[KnownAnswer]] = defaultdict(list)
    for answer in known.values():
        of_exchange[answer.exchange].append(answer)
    found = []
    for exchange in exchanges:
        if exchange in known:
            answers = of_exchange[exchange]
            last = max(answers, key=lambda each: (each.number, each.msg_id))
            answered = max(each.answered for each in answers)
            judged = find_judged(known, [last.msg_id])
            found.append(UnratedExchange(exchange, judged, known[exchange].client, answered))
    return found


def failures(connection: sa.Connection, exchange: str, author: str) -> int:
    """Count how often the judge `author` has failed on an exchange."""
    lines = audit.lines(connection, subjects=[exchange], what=JUDGE_FAILED)
    return sum(line.details.get("judge", author) == author for line in lines)

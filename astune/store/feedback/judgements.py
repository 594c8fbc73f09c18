"""What training reads: the answers that were judged, what they were worth, and which answers are better than others."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import fsum
from statistics import fmean

import sqlalchemy as sa

from astune.config.online import FeedbackConfig
from astune.store.answers import KnownAnswer, judged_answers, known_answers
from astune.store.feedback.rows import Row, load
from astune.store.tables import feedback


@dataclass(frozen=True)
class Judgement:
    """What everybody says of answers that were judged together: one episode."""

    msg_ids: tuple[str, ...]
    """All that it judges, in the order of their conversations: those that were named and those that led to them."""
    reward: float | None
    """Mean over the authors of what each gave: the sum of their named rewards by weight. None: only corrected."""
    rewards: Mapping[str, float]
    """Mean over the authors by name, unweighted; `reward` is a number, thumb or rating without a name."""
    thumb: bool | None
    """What most of the thumbs say; None where there are none or as many of each."""
    corrections: tuple[str, ...]
    """Answers that would have been right in place of the last of `msg_ids`, the newest last."""
    kinds: frozenset[str]
    authors: tuple[str, ...]
    task_id: str | None
    run_id: str | None
    """As the feedback has them, else as the answers have them."""
    received: float
    """When the last of it came."""
    feedback_ids: tuple[int, ...]
    """For `astune.store.feedback.states.mark`."""


@dataclass(frozen=True)
class Preference:
    """One answer is better than another, as most who compared the two say."""

    better: str
    worse: str
    agreement: float
    """(for - against) / all votes, above 0 and at most 1."""
    authors: tuple[str, ...]
    received: float
    feedback_ids: tuple[int, ...]


def judgements(
    connection: sa.Connection, rules: FeedbackConfig, states: Sequence[str] = ("counts",)
) -> list[Judgement]:
    """Of all feedback that counts, or is in one of `states`, the oldest first. Call `settle` before, in the same
    transaction."""
    rows = load(connection, feedback.c.state.in_(states), feedback.c.kind != "preference")
    known = known_answers(connection, (msg_id for row in rows for msg_id in row.ids))
    together: dict[tuple[str, ...], list[Row]] = defaultdict(list)
    for row in rows:
        judged = judged_answers(known, row.ids)
        if judged:  # its conversation may have been deleted
            together[judged].append(row)
    found = [_judgement(msg_ids, some, known, rules.rewards) for msg_ids, some in together.items()]
    return sorted(found, key=lambda judgement: (judgement.received, judgement.msg_ids))


def preferences(connection: sa.Connection, states: Sequence[str] = ("counts",)) -> list[Preference]:
    """Of all comparisons that count, or are in one of `states`, the oldest first. Where as many say the one as the
    other, there is none."""
    pairs: dict[tuple[str, str], list[tuple[str, Row]]] = defaultdict(list)
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
                received=max(row.received for row in rows),
                feedback_ids=tuple(row.id for row in rows),
            )
        )
    return sorted(found, key=lambda preference: (preference.received, preference.better, preference.worse))


def _judgement(
    msg_ids: tuple[str, ...], rows: Sequence[Row], known: Mapping[str, KnownAnswer], weights: Mapping[str, float]
) -> Judgement:
    by_author: dict[str, list[float]] = defaultdict(list)
    by_name: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        if row.value is not None:
            by_author[row.author].append(weights.get(row.name, 1.0) * row.value)
            by_name[row.name].append(row.value)
    answers = [known[msg_id] for msg_id in msg_ids]
    thumbs = sum(1 if row.value else -1 for row in rows if row.kind == "thumb")
    return Judgement(
        msg_ids=msg_ids,
        reward=fmean(fsum(values) for values in by_author.values()) if by_author else None,
        rewards={name: fmean(values) for name, values in sorted(by_name.items())},
        thumb=thumbs > 0 if thumbs else None,
        corrections=tuple(dict.fromkeys(row.correction for row in rows if row.correction is not None)),
        kinds=frozenset(row.kind for row in rows),
        authors=_authors(rows),
        task_id=_last([*(answer.task_id for answer in answers), *(row.task_id for row in rows)]),
        run_id=_last([*(answer.run_id for answer in answers), *(row.run_id for row in rows)]),
        received=max(row.received for row in rows),
        feedback_ids=tuple(row.id for row in rows),
    )


def _authors(rows: Sequence[Row]) -> tuple[str, ...]:
    return tuple(sorted({row.author for row in rows}))


def _last(values: Sequence[str | None]) -> str | None:
    return next((value for value in reversed(values) if value is not None), None)

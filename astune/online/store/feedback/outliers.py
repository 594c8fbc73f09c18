"""Authors whose scores deviate from everyone's."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any, TypeVar

import sqlalchemy as sa

from astune.config.online import FeedbackConfig
from astune.online.store.feedback.rows import JUDGE, hold
from astune.store.tables import feedback

LEAST_VALUES = 10
"""Fewest scores of an author for a comparison."""
LEAST_AUTHORS = 6
"""Fewest authors for a comparison."""
LEAST_SPREAD = 0.25
"""Least standard deviation of one score, as a share of the range of scores."""
WINDOW = 30 * 86400.0
_MAD = 1.4826
"""Median absolute deviation to standard deviation, of a normal distribution."""
Author = TypeVar("Author", bound=Hashable)


@dataclass(frozen=True)
class ScoreStats:
    """Number, mean and variance of an author's scores."""

    count: int
    mean: float
    variance: float


def deviations(authors: Mapping[Author, ScoreStats], value_range: float) -> dict[Author, float]:
    """The deviation of each author's mean from everyone's, in standard errors. Authors with fewer than `LEAST_VALUES`
    scores do not count; with fewer than `LEAST_AUTHORS` authors the result is empty.

    With m(a), n(a) an author's mean and number of values, A authors, c the median of m, v the pooled variance of one
    value around its author's mean, at least (`LEAST_SPREAD` times the range)^2, and v/n the median of v/n(a):

        spread^2 = max(0, (1.4826 median|m(a) - c|)^2 - v/n)        how far authors differ in earnest
        z(a) = |m(a) - c| / sqrt(spread^2 + v/n(a) + pi/2 (spread^2 + v/n) / A)

    Medians, so that outliers do not move the centre and the spread, as long as they are fewer than half.
    """
    said = {author: values for author, values in authors.items() if values.count >= LEAST_VALUES}
    if len(said) < LEAST_AUTHORS:
        return {}
    centre = median(values.mean for values in said.values())
    total = sum(values.count for values in said.values())
    pooled = math.fsum(values.count * values.variance for values in said.values()) / total
    variance = max(pooled, (LEAST_SPREAD * value_range) ** 2)
    typical = median(variance / values.count for values in said.values())
    off = _MAD * median(abs(values.mean - centre) for values in said.values())
    between = max(0.0, off**2 - typical)
    of_centre = math.pi / 2 * (between + typical) / len(said)
    return {
        author: abs(values.mean - centre) / math.sqrt(between + variance / values.count + of_centre)
        for author, values in said.items()
    }


def hold_outliers(connection: sa.Connection, rules: FeedbackConfig, now: float) -> None:
    """Hold the counting feedback of authors who deviate by more than `rules.hold_outliers` standard errors. Each client
    and each name of a reward has its own scale. A correction is taken as the lowest score, whatever score came with
    it."""
    if rules.hold_outliers is None:
        return
    for (client, name), authors in _values(connection, rules, now).items():
        for author, off in deviations(authors, rules.most - rules.least).items():
            if off > rules.hold_outliers:
                theirs = (feedback.c.client == client, feedback.c.author == author)
                other_scores = feedback.c.value.is_not(None) & (feedback.c.name != name)
                why = "this author's mean is far off everyone's"
                hold(connection, (*theirs, ~other_scores), why, now, "train")


def _values(
    connection: sa.Connection, rules: FeedbackConfig, now: float
) -> dict[tuple[str, str], dict[str, ScoreStats]]:
    """Collect the scores by client and name, then by author. Held and refused feedback counts too. A correction counts
    as a score under every name, instead of the scores that came with it."""
    found: dict[tuple[str, str], dict[str, ScoreStats]] = defaultdict(dict)
    corrects = feedback.c.kind == "correction"
    beside = feedback.alias("beside")
    with_one = sa.exists().where(beside.c.body == feedback.c.body, beside.c.kind == "correction")
    for client, name, author, count, mean, square in _by_author(
        connection, feedback.c.value.is_not(None) & ~with_one, now
    ):
        found[client, name][author] = ScoreStats(int(count), float(mean), max(0.0, float(square) - float(mean) ** 2))
    for client, _, author, count, _, _ in _by_author(connection, corrects, now):
        for authors in [authors for (of, _), authors in found.items() if of == client]:
            authors[author] = _with_value(authors.get(author), rules.least, int(count))
    return found


def _with_value(values: ScoreStats | None, value: float, times: int) -> ScoreStats:
    """Add `value` to the scores, `times` times."""
    if values is None:
        return ScoreStats(times, value, 0.0)
    count = values.count + times
    mean = (values.count * values.mean + times * value) / count
    square = (values.count * (values.variance + values.mean**2) + times * value**2) / count
    return ScoreStats(count, mean, max(0.0, square - mean**2))


def _by_author(connection: sa.Connection, which: sa.ColumnElement[bool], now: float) -> Iterable[tuple[Any, ...]]:
    """Client, name, author, number of values, their mean and that of their squares, of authors with a name."""
    value = feedback.c.value
    chosen = (
        sa.select(
            feedback.c.client,
            feedback.c.name,
            feedback.c.author,
            sa.func.count(),
            sa.func.avg(value),
            sa.func.avg(value * value),
        )
        .where(
            which,
            feedback.c.author != "",
            feedback.c.received > now - WINDOW,
            ~feedback.c.author.startswith(JUDGE, autoescape=True),
            feedback.c.state.in_(("counts", "trained", "late", "held", "refused", "left_out")),
        )
        .group_by(feedback.c.client, feedback.c.name, feedback.c.author)
    )
    return map(tuple, connection.execute(chosen))

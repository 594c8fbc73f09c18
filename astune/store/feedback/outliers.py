"""Authors whose feedback is off everyone's."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import TypeVar

import sqlalchemy as sa

from astune.config.online import FeedbackConfig
from astune.store.feedback.rows import JUDGE, load, write_state
from astune.store.feedback.rules import ACCEPTED
from astune.store.tables import feedback

LEAST_VALUES = 10
"""An author with fewer says too little to be judged by."""
LEAST_AUTHORS = 6
"""With fewer authors nobody can tell which of them is off."""
LEAST_SPREAD = 0.25
"""Of the range of values: the standard deviation of one value is taken for no less."""
WINDOW = 30 * 86400.0
_MAD = 1.4826
"""Median absolute deviation to standard deviation, of a normal distribution."""
Author = TypeVar("Author", bound=Hashable)


@dataclass(frozen=True)
class Values:
    """What an author gave: how many values, their mean and their variance."""

    count: int
    mean: float
    variance: float


def deviations(authors: Mapping[Author, Values], value_range: float) -> dict[Author, float]:
    """How many standard errors each author's mean is off everyone's. Empty below `LEAST_AUTHORS` authors; those with
    less than `LEAST_VALUES` values do not count.

    With m(a), n(a) an author's mean and number of values, A authors, c the median of m, v the pooled variance of one
    value around its author's mean, at least (`LEAST_SPREAD` times the range)^2, and v/n the median of v/n(a):

        spread^2 = max(0, (1.4826 median|m(a) - c|)^2 - v/n)        how far authors differ in earnest
        z(a) = |m(a) - c| / sqrt(spread^2 + v/n(a) + pi/2 (spread^2 + v/n) / A)

    Medians, so that those who are off do not move what they are measured by, as long as they are fewer than half.
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
    """Holds what counts of authors that are more than `rules.hold_outliers` standard errors off. Rewards of different
    names are looked at apart, as are clients: each has its own scale."""
    if rules.hold_outliers is None:
        return
    for (client, name), authors in _values(connection, now).items():
        for author, off in deviations(authors, rules.most - rules.least).items():
            if off > rules.hold_outliers:
                _hold(connection, client, name, author, now)


def _hold(connection: sa.Connection, client: str, name: str, author: str, now: float) -> None:
    theirs = (feedback.c.client == client, feedback.c.name == name, feedback.c.author == author)
    counts = load(connection, *theirs, feedback.c.state == "counts", feedback.c.value.is_not(None))
    for row in counts:
        if row.reason != ACCEPTED:
            write_state(connection, row, "held", "this author's mean is far off everyone's", now, "train")


def _values(connection: sa.Connection, now: float) -> dict[tuple[str, str], dict[str, Values]]:
    """By client and name, then by author. What was held and refused speaks of its author as well."""
    value = feedback.c.value
    counted = (
        sa.select(
            feedback.c.client,
            feedback.c.name,
            feedback.c.author,
            sa.func.count(),
            sa.func.avg(value),
            sa.func.avg(value * value),
        )
        .where(
            value.is_not(None),
            feedback.c.author != "",
            feedback.c.received > now - WINDOW,
            ~feedback.c.author.startswith(JUDGE, autoescape=True),
            feedback.c.state.in_(("counts", "trained", "late", "held", "refused", "left_out")),
        )
        .group_by(feedback.c.client, feedback.c.name, feedback.c.author)
    )
    found: dict[tuple[str, str], dict[str, Values]] = defaultdict(dict)
    for client, name, author, count, mean, square in connection.execute(counted):
        found[client, name][author] = Values(int(count), float(mean), max(0.0, float(square) - float(mean) ** 2))
    return found

"""A release as its users had it, from the store: the sums that its statistics compare."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import sqlalchemy as sa

from astune.config.online import FeedbackConfig
from astune.online.release.statistics import Count, UnitTotals
from astune.online.store.assignments import unit_of
from astune.online.store.feedback.rows import JUDGE
from astune.store.tables import assignments, feedback, feedback_messages, requests, traffic

CHALLENGER = "challenger"
PEOPLE = ("counts", "trained", "late", "left_out")
"""States of feedback that is what its author thinks, whether or not a commit could use it."""
JUDGES = (*PEOPLE, "replaced")
"""A person's word replaces a judge's in training; what the judge had said stands."""
COUNTS: Mapping[str, str] = {
    "errors": "requests",
    "empty": "requests",
    "slow": "requests",
    "tool_failures": "tool_calls",
}
"""Counts of the traffic, and what they are a share of."""


class Bucket(NamedTuple):
    """An entry of the sums: number of a unit, stage and arm."""

    unit: int
    stage: int
    challenger: bool


LAST = Bucket(2**62, 0, False)
"""Behind all others."""


@dataclass
class Opinion:
    """Everything that one author said of one exchange."""

    place: Bucket
    exchange: str
    judge: str | None
    """Its name, if the author is one."""
    values: dict[str, float] = field(default_factory=dict)
    """By name of the reward."""
    thumb: float | None = None


class Minute(NamedTuple):
    """What an arm did on one server in one minute."""

    place: Bucket
    counts: sa.RowMapping


@dataclass
class Observed:
    """All that the store has of a release."""

    units: Counter[tuple[int, bool]] = field(default_factory=Counter)
    """Number of units by stage and arm."""
    in_arms: tuple[int, int] = (0, 0)
    """Number of different units over all stages: the champion's, the challenger's."""
    exchanges: Counter[Bucket] = field(default_factory=Counter)
    opinions: list[Opinion] = field(default_factory=list)
    minutes: list[Minute] = field(default_factory=list)

    def sum_metric(self, metric: str, rules: FeedbackConfig) -> UnitTotals:
        """Sum up `reward` or `thumbs` of people, `judged` (the reward by judges), else the named reward of people."""
        total: dict[Bucket, float] = defaultdict(float)
        count: dict[Bucket, float] = defaultdict(float)
        for opinion in self.opinions:
            value = None if (opinion.judge is None) == (metric == "judged") else _value(opinion, metric, rules)
            if value is not None:
                total[opinion.place] += value
                count[opinion.place] += 1
        return _to_arrays(total, count)

    def sum_rated(self, by_judges: bool = False) -> UnitTotals:
        """Sum up which share of the exchanges people rated, or judges."""
        rated = {each.exchange: each.place for each in self.opinions if (each.judge is not None) == by_judges}
        return _to_arrays(Counter(rated.values()), self.exchanges)

    def sum_traffic(self, what: str) -> UnitTotals:
        """Sum up a count per request. The unit is a minute: what varies with the hour, both arms have in common."""
        total: dict[Bucket, float] = defaultdict(float)
        count: dict[Bucket, float] = defaultdict(float)
        for minute in self.minutes:
            total[minute.place] += minute.counts[what]
            count[minute.place] += minute.counts["requests"]
        return _to_arrays(total, count)

    def count_traffic(self, what: str) -> dict[tuple[int, bool], list[Count]]:
        """A count by stage and arm, of each minute and server."""
        found: dict[tuple[int, bool], list[Count]] = defaultdict(list)
        for place, counts in self.minutes:
            found[place.stage, place.challenger].append(Count(counts[what], counts[COUNTS[what]]))
        return found

    def judges(self) -> dict[tuple[int, bool], set[str]]:
        """The judges of each stage and arm."""
        found: dict[tuple[int, bool], set[str]] = defaultdict(set)
        for each in self.opinions:
            if each.judge is not None:
                found[each.place.stage, each.place.challenger].add(each.judge)
        return found


def _value(opinion: Opinion, metric: str, rules: FeedbackConfig) -> float | None:
    if metric == "thumbs":
        return opinion.thumb
    if metric not in ("reward", "judged"):
        return opinion.values.get(metric)
    if not opinion.values:
        return None
    whole = math.fsum(rules.rewards.get(name, 1.0) * value for name, value in opinion.values.items())
    return min(max(whole, rules.least), rules.most)


def _to_arrays(total: Mapping[Bucket, float], count: Mapping[Bucket, float]) -> UnitTotals:
    unit, stage, arm = np.array(list(count), dtype=np.int64).reshape(-1, 3).T
    values, cases = (np.array([each.get(place, 0.0) for place in count], dtype=float) for each in (total, count))
    return UnitTotals(unit, stage, arm.astype(bool), values, cases)


def observe(connection: sa.Connection, release: sa.Row[Any]) -> Observed:
    """Read what belongs to a row of `releases`. What an assigned unit did not get or say counts nowhere: what a tester
    pinned, what came before and after. An exchange, and what was said of it, however late, count to the stage and arm
    of its first answer.
    """
    seen, stays = Observed(), _Stays()
    its = assignments.c
    arms: tuple[set[int], set[int]] = (set(), set())
    rows = sa.select(its.unit, its.stage, its.arm, its.first).where(its.release_id == release.id).order_by(its.stage)
    for unit, stage, arm, first in connection.execute(rows):
        is_challenger = arm == CHALLENGER
        arms[is_challenger].add(stays.add(unit, stage, is_challenger, first))
        seen.units[stage, is_challenger] += 1
    seen.in_arms = (len(arms[0]), len(arms[1]))
    places = {}
    its_answers = _of_release(release, requests.c.version, requests.c.answered)
    began = connection.execute(_select_exchanges(its_answers)).all()
    for exchange, client, user, conversation, version, answered in began:
        place = stays.find(unit_of(client, user, conversation), version == release.challenger, answered)
        if place is not None:
            places[exchange] = place
    seen.exchanges.update(places.values())
    seen.opinions = _collect_opinions(connection.execute(_select_opinions(its_answers)).all(), places)
    for row in connection.execute(_select_minutes(release, stays.began)).mappings():
        stage = stays.stage_at(60.0 * row["minute"])
        seen.minutes.append(Minute(Bucket(row["minute"], stage, row["version"] == release.challenger), row))
    return seen


class _Stays:
    """When which unit was first answered in which stage, by which arm."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._stays: dict[tuple[str, bool], list[tuple[float, Bucket]]] = defaultdict(list)
        self._begins: dict[int, float] = {}

    def add(self, unit: str, stage: int, challenger: bool, first: float) -> int:
        number = self._numbers.setdefault(unit, len(self._numbers))
        self._stays[unit, challenger].append((first, Bucket(number, stage, challenger)))
        self._begins[stage] = min(first, self._begins.get(stage, first))
        return number

    def find(self, unit: str, challenger: bool, answered: float) -> Bucket | None:
        """The entry of an answer: that of the last stage in which the unit had this arm by then."""
        stays = self._stays.get((unit, challenger))
        place = 0 if stays is None else bisect_right(stays, (answered, LAST))
        return None if stays is None or not place else stays[place - 1][1]

    @property
    def began(self) -> float:
        return min(self._begins.values(), default=math.inf)

    def stage_at(self, time: float) -> int:
        """The stage of the minute that begins at `time`."""
        return max((stage for stage, begins in self._begins.items() if begins < time + 60.0), default=0)


def _of_release(release: sa.Row[Any], version: sa.Column[int], time: sa.ColumnElement[Any]) -> sa.ColumnElement[bool]:
    its_time = time >= release.began if release.ended is None else time.between(release.began, release.ended)
    return sa.and_(version.in_((release.champion, release.challenger)), its_time)


def _select_exchanges(of: sa.ColumnElement[bool]) -> sa.Select[Any]:
    """Exchanges, as they began."""
    columns = [requests.c[name] for name in ("exchange", "client", "user", "conversation_id", "version", "answered")]
    return sa.select(*columns).where(of, requests.c.exchange == requests.c.msg_id)


def _select_opinions(of: sa.ColumnElement[bool]) -> sa.Select[Any]:
    """Scores with the exchanges that they are about, in the order in which those were answered."""
    said = feedback.c
    by_judge = said.author.startswith(JUDGE, autoescape=True)
    is_said = said.value.is_not(None) & (said.state.in_(PEOPLE) | (by_judge & said.state.in_(JUDGES)))
    return (
        sa.select(said.id, said.author, said.kind, said.name, said.value, requests.c.exchange)
        .join(feedback_messages, feedback_messages.c.feedback_id == said.id)
        .join(requests, requests.c.msg_id == feedback_messages.c.msg_id)
        .where(is_said, of)
        .order_by(said.received, said.id, requests.c.answered)
    )


def _select_minutes(release: sa.Row[Any], began: float) -> sa.Select[Any]:
    ends = traffic.c.minute * 60 + 59
    its = _of_release(release, traffic.c.version, ends) & (ends >= min(began, 2.0**40))
    return traffic.select().where(its).order_by(traffic.c.minute)


def observe_past(connection: sa.Connection, since: float) -> tuple[Observed, dict[int, float]]:
    """Read what all units got and said since a time, as one stage of one arm; and when each unit was first answered."""
    seen, numbers = Observed(), dict[str, int]()
    first: dict[int, float] = {}
    places = {}
    recent = (requests.c.answered >= since) & (requests.c.version >= 0)
    for exchange, client, user, conversation, _, answered in connection.execute(_select_exchanges(recent)).all():
        unit = numbers.setdefault(unit_of(client, user, conversation), len(numbers))
        places[exchange] = Bucket(unit, 0, False)
        first[unit] = min(answered, first.get(unit, answered))
    seen.exchanges.update(places.values())
    seen.opinions = _collect_opinions(connection.execute(_select_opinions(recent)).all(), places)
    return seen, first


def _collect_opinions(rows: Iterable[Any], places: Mapping[str, Bucket]) -> list[Opinion]:
    """Put together what one author said of one exchange: under each name the last. What is about several exchanges is
    said of the last one."""
    last = {row[0]: row for row in rows}
    found: dict[tuple[str, str], Opinion] = {}
    for _, author, kind, name, value, exchange in last.values():
        if exchange not in places:
            continue
        its = found.get((exchange, author))
        if its is None:
            judge = author.removeprefix(JUDGE) if author.startswith(JUDGE) else None
            its = found[exchange, author] = Opinion(places[exchange], exchange, judge)
        its.values[name] = value
        if kind == "thumb":
            its.thumb = value
    return list(found.values())

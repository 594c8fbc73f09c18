"""Figures of a release as it stands: metrics, guardrails, and whether the numbers of its users can be right."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa

from astune.config.online import FeedbackConfig, ReleaseConfig
from astune.errors import StoreError
from astune.online.release.observed import COUNTS, Observed, observe
from astune.online.release.statistics import (
    LEAST_UNITS,
    Contrast,
    Count,
    SampleRatio,
    check_ratio,
    compare,
    find_dispersion,
    weigh_excess,
)
from astune.store.tables import releases
from astune.support.statistics import holm

SPENT = ("tokens", "seconds")
"""Guardrails of what a request takes, with margins that are a part of the champion's."""
JUDGED_APART = 0.1
"""The difference between the shares of exchanges that are judged that is looked for."""


@dataclass(frozen=True)
class MetricFigures:
    """A metric that decides. `p` holds at every look; of secondary ones it is Holm's."""

    name: str
    primary: bool
    found: Contrast | None
    """None: too little was said to know."""
    p: float | None


@dataclass(frozen=True)
class Guardrail:
    """A figure in which the challenger may be worse by `margin` at most. None: too little is there to know."""

    name: str
    margin: float
    champion: float | None
    challenger: float | None
    interval: tuple[float, float] | None
    """Of the difference, at every look; a count has none."""
    p: float | None
    """Of a challenger that keeps to the margin, at every look, of a count."""
    breached: bool

    @property
    def is_known(self) -> bool:
        return self.interval is not None or self.p is not None


@dataclass(frozen=True)
class StageFigures:
    """Units that were answered in a stage, by arm. A unit that came in several stages is in each."""

    stage: int
    share: float
    champion: int
    challenger: int
    ratio: SampleRatio | None
    """None where all have one arm."""


@dataclass(frozen=True)
class ReleaseFigures:
    release: int
    champion: int
    challenger: int
    state: str
    stage: int
    units: tuple[int, int]
    """Number of different units: the champion's, the challenger's."""
    metrics: tuple[MetricFigures, ...]
    guardrails: tuple[Guardrail, ...]
    stages: tuple[StageFigures, ...]
    alarms: tuple[str, ...]
    """Why the figures cannot be trusted, in sentences: then nothing is to be promoted."""
    notes: tuple[str, ...] = field(default=())
    """What is missing."""

    @property
    def primary(self) -> MetricFigures:
        return self.metrics[0]

    @property
    def breaches(self) -> tuple[Guardrail, ...]:
        """The guardrails that are breached: any is a reason to roll back."""
        return tuple(each for each in self.guardrails if each.breached)


def load_release(connection: sa.Connection, champion: int, challenger: int) -> sa.Row[Any]:
    """The last test of two versions. Raises StoreError where there was none."""
    of_both = sa.or_(
        (releases.c.champion == champion) & (releases.c.challenger == challenger),
        (releases.c.champion == challenger) & (releases.c.challenger == champion),
    )
    row = connection.execute(releases.select().where(of_both).order_by(releases.c.id.desc()).limit(1)).first()
    if row is None:
        pairs = connection.execute(sa.select(releases.c.champion, releases.c.challenger).order_by(releases.c.id)).all()
        tested = ", ".join(f"v{each.champion} and v{each.challenger}" for each in pairs) or "no two versions"
        raise StoreError(
            f"v{champion} and v{challenger} were never tested against each other on users: answers of different days "
            f"compare nothing. Tested were {tested}"
        )
    return row


def figures_of(connection: sa.Connection, release_id: int, said: FeedbackConfig) -> ReleaseFigures:
    """The figures of a release, by its settings. Reads all that its users got and said."""
    row = connection.execute(releases.select().where(releases.c.id == release_id)).one()
    rules = ReleaseConfig.model_validate(row.settings)
    seen = observe(connection, row)
    metrics = _compare_metrics(seen, rules, said)
    guardrails = tuple(_check_guardrails(seen, rules, said))
    stages = tuple(_check_stages(seen, rules))
    return ReleaseFigures(
        release=row.id,
        champion=row.champion,
        challenger=row.challenger,
        state=row.state,
        stage=row.stage,
        units=seen.in_arms,
        metrics=metrics,
        guardrails=guardrails,
        stages=stages,
        alarms=tuple(_find_alarms(seen, stages, rules)),
        notes=tuple(_find_notes(metrics, guardrails)),
    )


def _compare_metrics(seen: Observed, rules: ReleaseConfig, said: FeedbackConfig) -> tuple[MetricFigures, ...]:
    names = (rules.metric, *rules.secondary)
    found = [compare(seen.sum_metric(name, said), rules.effect, rules.alpha) for name in names]
    some = [each.p for each in found[1:] if each is not None]
    corrected = iter(holm(some))
    return tuple(
        MetricFigures(
            name,
            place == 0,
            each,
            None if each is None else each.p if place == 0 else next(corrected),
        )
        for place, (name, each) in enumerate(zip(names, found, strict=True))
    )


def _check_guardrails(seen: Observed, rules: ReleaseConfig, said: FeedbackConfig) -> Iterator[Guardrail]:
    """Check each with its part of alpha: all of them together cry wolf with probability alpha at most."""
    wanted = {name: margin for name, margin in rules.guardrails.model_dump().items() if margin is not None}
    level = rules.alpha / max(1, len(wanted))
    for name, margin in wanted.items():
        if name in COUNTS:
            yield _check_count(seen, name, margin, level, rules)
        elif name in SPENT:
            yield _check_spent(seen, name, margin, level)
        else:
            totals = seen.sum_rated() if name == "rated" else seen.sum_metric(rules.metric, said)
            found = compare(totals, margin, level)
            yield _guard(name, margin, found, found is not None and found.high < -margin)


def _check_count(seen: Observed, name: str, margin: float, level: float, rules: ReleaseConfig) -> Guardrail:
    """Apply the fast rule within each stage. Where all users have the challenger, the champion's counts of the stages
    before stand beside it, too."""
    counted = seen.count_traffic(name)
    dispersion = find_dispersion([each for (_, arm), some in counted.items() if not arm for each in some])
    sums = {place: _add(some) for place, some in counted.items()}
    before, whole = (_add([count for (_, arm), count in sums.items() if arm == which]) for which in (False, True))
    both = []
    for stage, arm in sums:
        champion = before if rules.stages[stage] >= 1.0 else sums.get((stage, False))
        if arm and champion is not None:
            both.append((champion, sums[stage, True]))
    some = [p for each in both if (p := weigh_excess(*each, margin, dispersion)) is not None]
    p = min(1.0, len(some) * min(some)) if some else None
    champion_rate, challenger_rate = (each.happened / each.cases if each.cases else None for each in (before, whole))
    return Guardrail(name, margin, champion_rate, challenger_rate, None, p, p is not None and p < level)


def _check_spent(seen: Observed, name: str, margin: float, level: float) -> Guardrail:
    """Check what a request takes: it may be more by the part `margin` of the champion's."""
    totals = seen.sum_traffic(name)
    cases = totals.count[~totals.challenger].sum()
    most = float(margin * totals.total[~totals.challenger].sum() / cases) if cases else 0.0
    found = compare(totals, most, level) if most else None
    return _guard(name, margin, found, found is not None and found.low > most)


def _guard(name: str, margin: float, found: Contrast | None, breached: bool) -> Guardrail:
    if found is None:
        return Guardrail(name, margin, None, None, None, None, False)
    return Guardrail(name, margin, found.champion, found.challenger, (found.low, found.high), None, breached)


def _add(counts: Sequence[Count]) -> Count:
    return Count(math.fsum(each.happened for each in counts), math.fsum(each.cases for each in counts))


def _check_stages(seen: Observed, rules: ReleaseConfig) -> Iterator[StageFigures]:
    for stage in sorted({stage for stage, _ in seen.units}):
        champion, challenger, share = seen.units[stage, False], seen.units[stage, True], rules.stages[stage]
        yield StageFigures(stage, share, champion, challenger, check_ratio(champion, challenger, share))


def _find_alarms(seen: Observed, stages: Sequence[StageFigures], rules: ReleaseConfig) -> Iterator[str]:
    for each in stages:
        if each.ratio is not None and each.ratio.is_alarm:
            units = each.champion + each.challenger
            yield (
                f"sample ratio: the challenger has {each.challenger / units:.1%} of {units} users of stage "
                f"{each.stage + 1} and should have {each.share:.1%} (p {each.ratio.sequential:.1g}): answers of one "
                "version get lost, or servers do not agree"
            )
    judged = compare(seen.sum_rated(by_judges=True), JUDGED_APART, rules.alpha)
    if judged is not None and not judged.low <= 0.0 <= judged.high:
        yield (
            f"the judge scored {judged.challenger:.1%} of the challenger's exchanges and {judged.champion:.1%} of the "
            "champion's: it must look at the same share of both"
        )
    judges = seen.judges()
    for stage in sorted({stage for stage, _ in judges}):
        names = judges.get((stage, False), set()) | judges.get((stage, True), set())
        if len(names) > 1:
            yield f"stage {stage + 1} was judged by {', '.join(sorted(names))}: with another judge a stage begins anew"


def _find_notes(metrics: Sequence[MetricFigures], guardrails: Sequence[Guardrail]) -> Iterator[str]:
    for metric in metrics:
        if metric.found is None:
            yield f"{metric.name}: too little is said to know; it takes {LEAST_UNITS} users of each version who differ"
    for each in guardrails:
        if not each.is_known:
            yield f"{each.name}: there is too little of both versions, so this guardrail guards nothing yet"

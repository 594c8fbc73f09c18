"""The rules of a release: what a look at its figures means. Nothing is read or written here.

    harm, or surely worse                    roll back
    figures that cannot be trusted           hold
    too few hours, users, words to know      wait; after `max_hours` in a stage hold
    else                                     the next stage; after the last one promote

While the metric is worse by `effect`, as far as is known, no more users meet the version. At the end of the last stage
that has users of both versions, it must surely be worse by less.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from astune.config.online import ReleaseConfig
from astune.online.release.figures import Guardrail, MetricFigures, ReleaseFigures
from astune.online.store.releases import Release

HOUR = 3600.0
NO_SHARE = ("tokens", "seconds", "metric")
MAY_LACK = ("tool_failures", "tokens", "seconds", "rated", "metric")
"""Guardrails that a stage does not wait for: agents may have no tools, and all users may rate alike. What had no data
is told when the stage ends. A stage waits for the metric itself anyway."""


@dataclass(frozen=True)
class Ruling:
    """`why` is a sentence for people; of `wait` what it waits for."""

    what: Literal["wait", "widen", "promote", "hold", "roll_back"]
    why: str


@dataclass(frozen=True)
class Users:
    """Units that the challenger answered in this stage: users by name, and conversations that name nobody."""

    named: int
    unnamed: int


def decide(release: Release, figures: ReleaseFigures, users: Users, rules: ReleaseConfig, now: float) -> Ruling:
    """Decide what becomes of a release that is being tested."""
    primary = figures.primary.found
    if figures.breaches:
        return Ruling("roll_back", "; ".join(_say_breach(each) for each in figures.breaches))
    if primary is not None and primary.high < 0.0:
        return Ruling("roll_back", f"{_show(figures.primary)}: surely worse")
    if figures.alarms:
        return Ruling("hold", "; ".join(figures.alarms))
    hours = (now - release.stage_began) / HOUR
    missing = "; ".join(_find_missing(release, figures, users, rules, hours))
    if missing and hours >= rules.max_hours:
        said = f"not decided within {rules.max_hours:g} hours (astune.online.release.max_hours)"
        return Ruling("hold", f"{said}: {missing}")
    if missing:
        return Ruling("wait", missing)
    if release.stage + 1 < len(rules.stages):
        return Ruling("widen", _sum_up(figures, users))
    return Ruling("promote", _sum_up(figures, users))


def _find_missing(
    release: Release, figures: ReleaseFigures, users: Users, rules: ReleaseConfig, hours: float
) -> Iterator[str]:
    """Say what the stage still needs."""
    count = users.named + users.unnamed * rules.unnamed
    if count < rules.min_users:
        yield f"{count} of {rules.min_users} users have met v{release.challenger} in this stage" + (
            ""
            if not users.unnamed or rules.unnamed
            else f"; {users.unnamed} conversations name no user and do not count: send `user` with each request, or "
            "set astune.online.release.unnamed"
        )
    if hours < rules.min_hours:
        yield f"{hours:.1f} of {rules.min_hours:g} hours of this stage have passed"
    if release.share >= 1.0:
        return  # nobody meets the champion any more
    for each in figures.guardrails:
        if not each.is_known and each.name not in MAY_LACK:
            yield f"the guardrail {each.name} has no data of both versions"
    primary, after = figures.primary, rules.stages[release.stage + 1 :]
    if primary.found is None:
        yield f"too few users of both versions gave the metric {primary.name!r} (astune.online.release.metric)"
    elif (not after or after[0] >= 1.0) and primary.found.low <= -rules.effect:
        yield f"{_show(primary)}: it is not sure yet that the challenger is worse by {rules.effect:g} at most"
    elif primary.found.difference <= -rules.effect:
        yield f"{_show(primary)}: no more users meet v{release.challenger} while it looks worse by {rules.effect:g}"


def _show(metric: MetricFigures) -> str:
    found = metric.found
    assert found is not None
    return (
        f"{metric.name} {found.challenger:.3g} against {found.champion:.3g}, difference {found.low:+.3f} to "
        f"{found.high:+.3f}"
    )


def _say_breach(guardrail: Guardrail) -> str:
    share = "" if guardrail.name in NO_SHARE else "share "
    return (
        f"guardrail {guardrail.name}: {share}{guardrail.challenger:.3g} against {guardrail.champion:.3g}, and it may "
        f"be worse by {guardrail.margin:g}"
    )


def _sum_up(figures: ReleaseFigures, users: Users) -> str:
    said = f"{users.named + users.unnamed} users in this stage"
    if figures.primary.found is not None:
        said = f"{said}, {_show(figures.primary)}"
    unused = [each.name for each in figures.guardrails if not each.is_known]
    return f"{said}; no data for {', '.join(unused)}" if unused else said

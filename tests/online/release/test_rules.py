"""What a look at the figures means: one rule, one case."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from pydantic import ValidationError

from astune.config.online import ReleaseConfig
from astune.online.release.figures import Guardrail, MetricFigures, ReleaseFigures
from astune.online.release.rules import HOUR, Users, decide
from astune.online.release.statistics import Contrast
from astune.online.store.releases import Release
from tests.rows import each_row

RULES = ReleaseConfig(strategy="staged", min_users=50, min_hours=1.0, max_hours=24.0, effect=0.05)
FIRST = Release(1, 7, 9, "salt", "testing", 0, 0.05, 0.0, 0.0, None, None, {}, {})
SECOND, LAST = replace(FIRST, stage=1, share=0.25), replace(FIRST, stage=2, share=1.0)
MANY = Users(80, 0)


def figures(
    low: float | None = -0.02, high: float = 0.06, *guardrails: Guardrail, alarms: tuple[str, ...] = ()
) -> ReleaseFigures:
    found = None if low is None else Contrast(0.5, 0.5 + (low + high) / 2, (low + high) / 2, low, high, 0.4, (900, 80))
    primary = MetricFigures("reward", True, found, None if found is None else found.p)
    return ReleaseFigures(1, 7, 9, "testing", 0, (900, 80), (primary,), guardrails, (), alarms)


def guardrail(name: str, p: float | None = 0.5, breached: bool = False) -> Guardrail:
    rates = (None, None) if p is None else (0.01, 0.2)
    return Guardrail(name, 0.02, *rates, None, p, breached)


@each_row(
    ("release", "found", "users", "hours", "what", "why"),
    [
        (FIRST, figures(None), MANY, 2.0, "wait", "too few users of both versions gave the metric 'reward'"),
        (FIRST, figures(-0.26, 0.3), MANY, 2.0, "widen", "reward 0.52 against 0.5"),
        (FIRST, figures(-0.3, 0.1), MANY, 2.0, "wait", "no more users meet v9 while it looks worse by 0.05"),
        (FIRST, figures(-0.3, 0.1), MANY, 25.0, "hold", "no more users meet v9 while it looks worse by 0.05"),
        (SECOND, figures(), MANY, 2.0, "widen", "reward 0.52 against 0.5, difference -0.020 to +0.060"),
        (LAST, figures(), MANY, 2.0, "promote", "80 users"),
        (FIRST, figures(-0.3, -0.1), Users(3, 0), 0.1, "roll_back", "-0.300 to -0.100: surely worse"),
        (LAST, figures(-0.3, -0.1), MANY, 2.0, "roll_back", "surely worse"),
        (
            FIRST,
            figures(-0.02, 0.06, guardrail("errors", 0.0, True)),
            Users(3, 0),
            0.1,
            "roll_back",
            "guardrail errors: share 0.2 against 0.01, and it may be worse by 0.02",
        ),
        (FIRST, figures(alarms=("sample ratio: p 0",)), MANY, 2.0, "hold", "sample ratio"),
        (FIRST, figures(), Users(12, 0), 2.0, "wait", "12 of 50 users have met v9 in this stage"),
        (FIRST, figures(), MANY, 0.5, "wait", "0.5 of 1 hours of this stage"),
        (FIRST, figures(), Users(0, 300), 2.0, "wait", "300 conversations name no user and do not count"),
        (FIRST, figures(), Users(0, 300), 25.0, "hold", "not decided within 24 hours"),
        (SECOND, figures(None), MANY, 2.0, "wait", "too few users of both versions gave the metric 'reward'"),
        (SECOND, figures(None), MANY, 25.0, "hold", "too few users of both versions gave the metric 'reward'"),
        (SECOND, figures(-0.2, 0.1), MANY, 2.0, "wait", "not sure yet that the challenger is worse by 0.05 at most"),
        (FIRST, figures(-0.02, 0.06, guardrail("slow", None)), MANY, 2.0, "wait", "the guardrail slow has no data"),
        (FIRST, figures(-0.02, 0.06, guardrail("errors", None)), MANY, 25.0, "hold", "guardrail errors has no data"),
        (
            FIRST,
            figures(-0.02, 0.06, guardrail("tool_failures", None)),
            MANY,
            2.0,
            "widen",
            "no data for tool_failures",
        ),
    ],
)
def test_what_a_look_decides(
    release: Release, found: ReleaseFigures, users: Users, hours: float, what: str, why: str
) -> None:
    decision = decide(release, found, users, RULES, hours * HOUR)
    assert decision.what == what
    assert why in decision.why


def test_conversations_count_as_users_where_that_is_asked_for() -> None:
    rules = RULES.model_copy(update={"unnamed": True})
    assert decide(FIRST, figures(), Users(0, 300), rules, 2 * HOUR).what == "widen"


@each_row(
    ("given", "error"),
    [
        ({"stages": [0.25, 0.05]}, "each must be larger than the one before"),
        ({"stages": [0.25, 0.25]}, "each must be larger than the one before"),
        ({"stages": [0.0, 0.5]}, "greater than 0"),
        ({"stages": [0.5, 1.5]}, "less than or equal to 1"),
        ({"stages": [1.0]}, "leaves nobody to compare with"),
        ({"stages": []}, "at least 1 item"),
        ({"min_hours": 3.0, "max_hours": 2.0}, "max_hours 2 must be more than min_hours 3"),
        ({"strategy": "canary"}, "'at_once' or 'staged'"),
        ({"guardrails": {"errors": 0.0}}, "greater than 0"),
    ],
)
def test_settings_that_make_no_release_are_refused(given: dict[str, Any], error: str) -> None:
    with pytest.raises(ValidationError, match=error):
        ReleaseConfig.model_validate(given)

"""A finding: what a check found, at which place, and how to fix it.

yield fail("8 tasks in a step, there are 4", where="demo.yaml:12: astune.trainer.tasks_per_step", fix="set it to 4")
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "warn", "fail", "skip"]


@dataclass(frozen=True)
class Finding:
    """One thing that a check found. A failure or a warning always says how to fix it.

    `fail`: a run would break, or could not learn. `warn`: it would go on, worse than it could. `skip`: not looked at,
    `what` says why.
    """

    level: Level
    what: str
    where: str = ""
    """The place to change: `demo.yaml:12: astune.seed`, or a line of another file."""
    fix: str = ""
    check: str = ""
    """Which check found it; filled in by `run_checks`."""

    def __post_init__(self) -> None:
        if self.level in ("warn", "fail") and not self.fix:
            raise ValueError(f"{self.what!r} does not say how to fix it")


def ok(what: str) -> Finding:
    return Finding("ok", what)


def skip(what: str) -> Finding:
    return Finding("skip", what)


def warn(what: str, *, where: str = "", fix: str) -> Finding:
    return Finding("warn", what, where, fix)


def fail(what: str, *, where: str = "", fix: str) -> Finding:
    return Finding("fail", what, where, fix)


def count(findings: Iterable[Finding], level: Level) -> int:
    return sum(finding.level == level for finding in findings)

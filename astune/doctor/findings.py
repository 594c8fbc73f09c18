"""What a check says.

yield fail("8 tasks in a step, there are 4", where="demo.yaml:12: astune.trainer.tasks_per_step", mend="set it to 4")
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "warn", "fail", "skip"]


@dataclass(frozen=True)
class Finding:
    """One thing that a check found. A failure or a warning always says how to mend it.

    `fail`: a run would break, or could not learn. `warn`: it would go on, worse than it could. `skip`: not looked at,
    `what` says why.
    """

    level: Level
    what: str
    where: str = ""
    """The place to change: `demo.yaml:12: astune.seed`, or a line of another file."""
    mend: str = ""
    check: str = ""
    """Which check found it; filled in by `examine`."""

    def __post_init__(self) -> None:
        if self.level in ("warn", "fail") and not self.mend:
            raise ValueError(f"{self.what!r} has nothing on how to mend it")


def ok(what: str) -> Finding:
    return Finding("ok", what)


def skip(what: str) -> Finding:
    return Finding("skip", what)


def warn(what: str, *, where: str = "", mend: str) -> Finding:
    return Finding("warn", what, where, mend)


def fail(what: str, *, where: str = "", mend: str) -> Finding:
    return Finding("fail", what, where, mend)


def count(findings: Iterable[Finding], level: Level) -> int:
    return sum(finding.level == level for finding in findings)

"""A finding: what a check found, at which place, and how to fix it; findings as a table, and as JSON.

yield fail("8 tasks in a step, there are 4", where="demo.yaml:12: astune.trainer.tasks_per_step", fix="set it to 4")
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, Literal

from rich.table import Table

from astune.support.chinese import localize
from astune.support.terminal import Console, Text

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
    """The check that found it; filled in by `run_checks`."""

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


STYLES: dict[Level, tuple[str, str]] = {
    "ok": ("ok", "green"),
    "warn": ("WARN", "yellow"),
    "fail": ("FAIL", "bold red"),
    "skip": ("skip", "dim"),
}


def show(findings: Sequence[Finding], console: Console, last: str) -> None:
    """One table on a terminal; elsewhere one finding after the other, in whole lines. Then the last line."""
    told = [replace(each, what=localize(each.what), fix=localize(each.fix)) for each in findings]
    rows = group_skipped(told)
    if console.is_terminal:
        console.print(_table(rows))
    else:
        for finding in rows:
            console.out(_plain(finding), highlight=False)
    console.print(Text(localize(last), style="bold"), soft_wrap=True)


def group_skipped(findings: Sequence[Finding]) -> list[Finding]:
    """With checks side by side that were skipped for one reason told once.

    >>> [row.what for row in group_skipped([Finding("skip", "no x", check="a"), Finding("skip", "no x", check="b")])]
    ['a, b: no x']
    """
    rows: list[Finding] = []
    for (level, what), group in groupby(findings, key=lambda finding: (finding.level, finding.what)):
        same = list(group)
        if level == "skip" and len(same) > 1:
            names = ", ".join(finding.check for finding in same)
            same = [Finding("skip", f"{names}: {what}", check=f"{len(same)} checks")]
        rows += same
    return rows


def closing(findings: Sequence[Finding]) -> str:
    """
    >>> closing([Finding("ok", "all is well")])
    '0 would fail, 0 warnings'
    """
    warnings, skipped = count(findings, "warn"), count(findings, "skip")
    not_seen = f", {skipped} not looked at" if skipped else ""
    return f"{count(findings, 'fail')} would fail, {warnings} warning{'s' * (warnings != 1)}{not_seen}"


def _table(findings: Sequence[Finding]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    before = ""
    for finding in findings:
        word, style = STYLES[finding.level]
        text = Text(finding.what, style="dim" if finding.level in ("ok", "skip") else "")
        if finding.where:
            text.append(f"\n{finding.where}", style="cyan")
        if finding.fix:
            text.append("\nfix   ", style="bold").append(finding.fix)
        table.add_row(Text(word, style), Text("" if finding.check == before else finding.check, "bold"), text)
        before = finding.check
    return table


def _plain(finding: Finding) -> str:
    lines = [f"{STYLES[finding.level][0]:<6}{finding.check:<12}{finding.what}"]
    if finding.where:
        lines.append(f"{'':18}at    {finding.where}")
    if finding.fix:
        lines.append(f"{'':18}fix   {finding.fix}")
    return "\n".join(lines)


def to_json(findings: Sequence[Finding], conf: str) -> dict[str, Any]:
    """`{"conf": ..., "fail": 1, "warn": 0, "ok": 9, "skip": 0, "findings": [{"check": ..., "level": ..., "what": ...,
    "where": ..., "fix": ...}]}`; all five are always there, as text."""
    levels: tuple[Level, ...] = ("fail", "warn", "ok", "skip")
    counts: dict[str, int] = {level: count(findings, level) for level in levels}
    fields = ("check", "level", "what", "where", "fix")
    rows = [{name: getattr(finding, name) for name in fields} for finding in findings]
    return {"conf": conf, **counts, "findings": rows}

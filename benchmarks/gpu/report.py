"""The results of all parts as one page of Markdown. This imports nothing that a bare Python lacks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

TIMES = {
    "passed": "passed",
    "failed": "**failed**",
    "cut": "**cut**: out of time",
    "skipped": "skipped",
    "not run": "not run",
}


def markdown(parts: Mapping[str, Mapping[str, Any]]) -> str:
    lines = ["# What the GPU check found", "", "| part | | seconds | |", "| --- | --- | ---: | --- |"]
    for name, part in parts.items():
        lines.append(f"| {name} | {part['title']} | {shown(part.get('seconds', ''))} | {TIMES[part['status']]} |")
    for name, part in parts.items():
        if part["status"] != "not run":
            lines += ["", f"## {name}: {part['title']}", *_part(part)]
    return "\n".join(lines) + "\n"


def _part(part: Mapping[str, Any]) -> list[str]:
    lines: list[str] = []
    if facts := part.get("facts"):
        lines += ["", *(f"- {name}: {shown(value)}" for name, value in facts.items())]
    for title, rows in part.get("tables", {}).items():
        lines += ["", f"{title}:" if title else "", "", *table(rows)]
    if end := part.get("end of its log"):
        lines += ["", "The end of its log:", "", "```text", *end.replace("```", "'''").splitlines(), "```"]
    return lines


def table(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Rows may lack columns that others have.

    >>> print("\\n".join(table([{"a": 1, "b": 2.5}, {"a": "x"}])))
    | a | b |
    | --- | --- |
    | 1 | 2.50 |
    | x |  |
    """
    columns = list(dict.fromkeys(column for row in rows for column in row))
    lines = ["| " + " | ".join(columns) + " |", "| " + " | ".join("---" for _ in columns) + " |"]
    return lines + ["| " + " | ".join(shown(row.get(column, "")) for column in columns) + " |" for row in rows]


def shown(value: Any) -> str:
    """Three digits that count.

    >>> shown(0.012345), shown(123456.7), shown(2.5), shown(7), shown("a | b")
    ('0.0123', '123,457', '2.50', '7', 'a / b')
    """
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.2f}" if abs(value) >= 1 else f"{value:.3g}"
    return f"{value:,}" if isinstance(value, int) else str(value).replace("|", "/").replace("\n", " ")

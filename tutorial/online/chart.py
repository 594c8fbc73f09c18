"""What `run.py` found out, as a table and as a picture."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from astune.viewer.charts import Frame, svg

WIDTH, HEIGHT = 800, 380


@dataclass(frozen=True)
class Progress:
    """An examination of one version, while it served."""

    version: int
    seconds: float
    """Since the users came."""
    held_out: float
    """Share of right answers to held-out questions, greedily."""
    questions: int
    """Held-out questions that this version was asked."""
    asked: int
    """Questions of users so far, at temperature 1."""
    thumbs: int
    users: float | None
    """Share of the users' questions since the examination before that were answered right."""
    remarks: int = 0
    """What users said next who give no thumbs."""

    def to_line(self) -> str:
        return json.dumps(asdict(self)) + "\n"


def read_progress(path: Path) -> list[Progress]:
    return [Progress(**json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]


Runs = Sequence[Sequence[Progress]]


def table(runs: Runs) -> str:
    """Markdown: a row for each run."""
    said = "remarks" if any(run[-1].remarks for run in runs) else "thumbs"
    lines = [f"| run | held-out, at first | at the end | best | versions | {said} | minutes |"]
    lines.append("| --- | --- | --- | --- | --- | --- | --- |")
    for number, run in enumerate(runs, 1):
        first, last, best = run[0], run[-1], max(at.held_out for at in run)
        shown = f"{first.held_out:.0%} | {last.held_out:.0%} | {best:.0%}"
        lines.append(
            f"| {number} | {shown} | {last.version} | {last.remarks or last.thumbs:,} | {last.seconds / 60:.1f} |"
        )
    return "\n".join(lines)


def picture(runs: Runs, title: str = "Success while it serves, by version") -> str:
    """Held-out success by version: each run thin, their mean thick."""
    lines = [[(at.version, at.held_out) for at in run] for run in runs]
    return draw(lines, title, "thick: held-out questions, greedily, mean of the runs; thin: each run")


def draw(lines: Sequence[Sequence[tuple[int, float]]], title: str, told: str) -> str:
    """Success by version, each line thin, their mean thick."""
    last = max(1, max(points[-1][0] for points in lines))
    frame = Frame(64, 88, WIDTH - 28, HEIGHT - 56, (0, last), (0, 1))
    parts = [f'<rect class="card" x="0.5" y="0.5" width="{WIDTH - 1}" height="{HEIGHT - 1}" rx="10"/>']
    parts.append(f'<text class="title" x="24" y="34">{title}</text>')
    parts.append(f'<text x="24" y="60">{told}</text>')
    for tick in (0, 0.25, 0.5, 0.75, 1):
        y = frame.y(tick)
        parts.append(f'<line class="grid" x1="{frame.left}" x2="{frame.right}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{frame.left - 10}" y="{y + 4:.1f}" text-anchor="end">{100 * tick:.0f} %</text>')
    for version in range(0, last + 1):
        x = frame.x(version)
        parts.append(f'<text x="{x:.1f}" y="{frame.bottom + 22}" text-anchor="middle">v{version}</text>')
    parts += [f'<path class="raw" d="{frame.path(points)}"/>' for points in lines]
    versions = sorted(set.intersection(*({version for version, _ in points} for points in lines)))
    mean = [(version, statistics.fmean(dict(points)[version] for points in lines)) for version in versions]
    parts.append(f'<path class="mean" d="{frame.path(mean)}"/>')
    return svg(WIDTH, HEIGHT, title, parts)

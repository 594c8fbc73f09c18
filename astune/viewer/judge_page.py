"""A report of judges as one page: readable offline, and to be sent around."""

from __future__ import annotations

from html import escape
from pathlib import Path

from markupsafe import Markup

from astune.judging.figures import JudgeFigures
from astune.judging.report import JudgeReport
from astune.judging.rows import (
    comparison_text,
    confusion_rows,
    conventions,
    figure_rows,
    headline,
    label_text,
)
from astune.viewer.charts import STYLE, Frame, svg
from astune.viewer.page import content_policy, read_parts, render

SIZE = 340


def write_judge_page(report: JudgeReport, path: Path) -> None:
    """Writes the page; it needs no network and no other file."""
    style = read_parts("css", ("base", "story"))
    page = render(
        "judge_report.html.j2",
        policy=content_policy(styles=[style, STYLE]),
        style=Markup(style),
        headline=headline(report),
        conventions=conventions(report),
        rows=figure_rows(report),
        comparisons=[comparison_text(comparison) for comparison in report.comparisons()],
        label_text=label_text,
        graded=report.graded,
        judges=[
            {
                "name": figures.judge,
                "plot": Markup(calibration_svg(figures)) if figures.bins else "",
                "confusion": confusion_rows(report, judge),
                "disagreements": report.disagreements(judge),
                "failures": report.failures(judge),
            }
            for judge, figures in enumerate(report.figures)
        ],
    )
    path.write_text(page, encoding="utf-8", errors="backslashreplace")


def calibration_svg(figures: JudgeFigures) -> str:
    """Share of right answers by reward, with its 95 % interval: a judge whose reward means what it says is on the
    diagonal. A point's area is as the answers with that reward."""
    frame = Frame(52, 52, SIZE - 20, SIZE - 44, (0.0, 1.0), (0.0, 1.0))
    parts = [f'<rect class="card" x="0.5" y="0.5" width="{SIZE - 1}" height="{SIZE - 1}" rx="10"/>']
    parts.append(f'<text class="strong" x="20" y="30">{escape(figures.judge)}</text>')
    for tick in (0.0, 0.25, 0.5, 0.75, 1.0):
        x, y = frame.x(tick), frame.y(tick)
        parts.append(f'<line class="grid" x1="{frame.left}" x2="{frame.right}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{frame.left - 8}" y="{y + 4:.1f}" text-anchor="end">{100 * tick:.0f} %</text>')
        parts.append(f'<text x="{x:.1f}" y="{frame.bottom + 18}" text-anchor="middle">{tick:g}</text>')
    middle = (frame.left + frame.right) / 2
    parts.append(f'<text x="{middle:.1f}" y="{SIZE - 8}" text-anchor="middle">reward, and share that is right</text>')
    parts.append(f'<path class="raw" style="stroke-dasharray:4 4" d="{frame.path([(0, 0.0), (1, 1.0)])}"/>')
    most = max(bin.n for bin in figures.bins)
    for bin in figures.bins:
        x, (low, high) = frame.x(bin.mean_reward), (frame.y(share) for share in bin.interval)
        radius = 3 + 6 * (bin.n / most) ** 0.5
        title = f"reward {bin.low:.1f} to {bin.high:.1f}: {bin.right} of {bin.n} right"
        parts.append(f'<line class="sampled" x1="{x:.1f}" x2="{x:.1f}" y1="{low:.1f}" y2="{high:.1f}"/>')
        parts.append(
            f'<circle class="sampled" cx="{x:.1f}" cy="{frame.y(bin.share):.1f}" r="{radius:.1f}">'
            f"<title>{escape(title)}</title></circle>"
        )
    return svg(SIZE, SIZE, f"calibration of {figures.judge}", parts)

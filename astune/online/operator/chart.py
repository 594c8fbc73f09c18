"""The picture of a release: its difference with its confidence sequence, look by look."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from astune.viewer.charts import Frame, nice_ticks, svg, value_axis

WIDTH, HEIGHT = 560, 220


def sequence_svg(looks: Sequence[Mapping[str, Any]], title: str) -> str:
    """Draw the difference, challenger less champion, of each look that has one; "" where none has.

    A look, of `figures` of a release: `{"metric": {"champion", "challenger", "low", "high"}, "users", "stage"}`.
    """
    known = [look for look in looks if look.get("metric")]
    if not known:
        return ""
    ends = [float(look["metric"][end]) for look in known for end in ("low", "high")]
    ticks = nice_ticks([0.0, *ends])
    frame = Frame(64, 40, WIDTH - 20, HEIGHT - 26, (0, max(1, len(known) - 1)), (ticks[0], ticks[-1]))
    parts = [f'<rect class="card" x="0.5" y="0.5" width="{WIDTH - 1}" height="{HEIGHT - 1}" rx="10"/>']
    parts.append(f'<text class="strong" x="20" y="24">{escape(title)}</text>')
    parts += value_axis(frame, "difference")
    parts.append(
        f'<path class="raw" style="stroke-dasharray:4 4" d="{frame.path([(0, 0.0), (int(frame.steps[1]), 0.0)])}"/>'
    )
    points = []
    for number, look in enumerate(known):
        metric = look["metric"]
        difference = float(metric["challenger"]) - float(metric["champion"])
        points.append((number, difference))
        x, low, high = frame.x(number), frame.y(float(metric["low"])), frame.y(float(metric["high"]))
        told = f"look {number + 1}: {difference:+.3g} ({float(metric['low']):+.3g} to {float(metric['high']):+.3g})"
        parts.append(f'<line class="sampled" x1="{x:.1f}" x2="{x:.1f}" y1="{low:.1f}" y2="{high:.1f}"/>')
        parts.append(
            f'<circle class="sampled" cx="{x:.1f}" cy="{frame.y(difference):.1f}" r="3.5">'
            f"<title>{escape(told)}</title></circle>"
        )
    parts.append(f'<path class="mean" d="{frame.path(points)}"/>')
    parts.append(f'<text x="{frame.left}" y="{HEIGHT - 8}">looks, the first to the last</text>')
    return svg(WIDTH, HEIGHT, title, parts)

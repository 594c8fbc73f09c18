"""Draws who won how often against whom, from `astune eval ... --league ... --json`: python scripts/league_chart.py
league.json out.svg TITLE"""

from __future__ import annotations

import json
import sys
from html import escape
from pathlib import Path

from astune.viewer.charts import Frame, draw_marker, svg, value_axis

WIDTH, HEIGHT = 800, 380
STYLES = ("greedy", "sampled", "mean")


def main() -> None:
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    text = Path(sys.argv[1]).read_text(encoding="utf-8")
    league = json.loads(text[text.index("{\n") :])  # lines of progress may stand before it
    Path(sys.argv[2]).write_text(draw(league["won"], sys.argv[3]), encoding="utf-8")


def draw(won: list[dict], title: str) -> str:
    """A line for each version of the one side, over the versions of the other."""
    one, other = list(won[0])[:2]
    names = list(dict.fromkeys(pair[one] for pair in won))
    frame = Frame(64, 88, WIDTH - 28, HEIGHT - 48, (-0.5, len(names) - 0.5), (0.0, 1.0))
    parts = [f'<rect class="card" x="0.5" y="0.5" width="{WIDTH - 1}" height="{HEIGHT - 1}" rx="10"/>']
    parts += [f'<text class="title" x="24" y="34">{escape(title)}</text>', *value_axis(frame, "success")]
    for place, name in enumerate(names):
        words = escape(f"{other} {name}")
        parts.append(f'<text x="{frame.x(place):.1f}" y="{frame.bottom + 24}" text-anchor="middle">{words}</text>')
    for number, name in enumerate(names):
        style = STYLES[number % len(STYLES)]
        shares = [pair["won"] for pair in won if pair[one] == name]
        places = [place + 0.06 * (number - (len(names) - 1) / 2) for place in range(len(shares))]
        path = frame.path([(place, share["mean"]) for place, share in zip(places, shares, strict=True)])
        parts.append(f'<path class="{style}" style="fill:none" d="{path}"/>')
        for place, share in zip(places, shares, strict=True):
            low, high = map(frame.y, share["interval"])
            x = frame.x(place)
            parts.append(f'<path class="{style}" style="fill:none" d="M{x:.1f},{low:.1f} V{high:.1f}"/>')
            parts.append(draw_marker(style, x, frame.y(share["mean"]), escape(f"{share['mean']:.0%}")))
        label = f'{draw_marker(style, 9, -4)}<text x="22">{escape(f"{one} {name}")}</text>'
        parts.append(f'<g transform="translate({24 + 220 * number},66)">{label}</g>')
    return svg(WIDTH, HEIGHT, title, parts)


if __name__ == "__main__":
    main()

"""The four cells as a picture: a line for each prompt, from the first weights to the trained ones, with intervals.

Path("cells.svg").write_text(cells_svg(cross(played)[0]), "utf-8")

Lines that are not parallel say that prompt and weights need each other, or stand in for each other.
"""

from __future__ import annotations

from html import escape

from astune.config.evaluation import is_success
from astune.monitor.summary import show_figure
from astune.training.four_cells import CELLS, Cell, Crossed
from astune.viewer.charts import Frame, draw_marker, nice_ticks, svg, value_axis
from astune.viewer.held_out import show_mean

TITLE, WIDTH, HEIGHT = "Prompt and weights", 560, 380
MARKS = {False: "greedy", True: "sampled"}
"""The marks of the first prompt and of the tuned one, by the classes of the style."""


def cells_svg(crossed: Crossed) -> str:
    """A point for each cell, with its interval as a bar and its value beside it."""
    ends = [value for found in crossed.cells.values() for value in (found.mean, *(found.interval or ()))]
    ticks = nice_ticks(ends)
    values = (0.0, 1.0) if is_success(crossed.figure) else (ticks[0], ticks[-1])
    frame = Frame(64, 100, WIDTH - 28, HEIGHT - 48, (-0.4, 1.6), values)
    what = f"held-out {crossed.evaluation}, {crossed.figure}, {crossed.cells[CELLS[0]].n} tasks"
    parts = [
        f'<rect class="card" x="0.5" y="0.5" width="{WIDTH - 1}" height="{HEIGHT - 1}" rx="10"/>',
        f'<text class="title" x="24" y="34">{TITLE}</text>',
        f'<text x="24" y="56">{escape(what)}</text>',
        *value_axis(frame, crossed.figure),
    ]
    for place, words in enumerate(("first weights", "trained weights")):
        parts.append(f'<text x="{frame.x(place):.1f}" y="{frame.bottom + 24}" text-anchor="middle">{words}</text>')
    for number, tuned in enumerate((False, True)):
        parts += _line(frame, crossed, tuned)
        words = "tuned prompt" if tuned else "first prompt"
        mark = draw_marker(MARKS[tuned], 9, -4)
        parts.append(f'<g transform="translate({24 + 140 * number},82)">{mark}<text x="22">{words}</text></g>')
    return svg(WIDTH, HEIGHT, f"{TITLE}: {what}", parts)


def _line(frame: Frame, crossed: Crossed, tuned: bool) -> list[str]:
    found = [crossed.cells[Cell(tuned, trained)] for trained in (False, True)]
    style = MARKS[tuned]
    path = frame.path([(place, each.mean) for place, each in enumerate(found)])
    parts = [f'<path class="{style} join" style="fill:none" d="{path}"/>']
    for place, each in enumerate(found):
        x, y = frame.x(place), frame.y(each.mean)
        if each.interval is not None:
            low, high = map(frame.y, each.interval)
            parts.append(f'<path class="{style}" style="fill:none" d="M{x:.1f},{low:.1f} V{high:.1f}"/>')
        parts.append(draw_marker(style, x, y, escape(show_mean(crossed.figure, each))))
        value = escape(show_figure(crossed.figure, each.mean))
        under = not tuned and y + 16 < frame.bottom
        parts.append(f'<text class="strong" x="{x + 12:.1f}" y="{y + (16 if under else -8):.1f}">{value}</text>')
    return parts

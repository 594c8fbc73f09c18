"""The figures of held-out tasks before and after training, as both pages show them."""

from __future__ import annotations

from dataclasses import dataclass

from astune.monitor.receipt import Metrics
from astune.monitor.summary import decodings, figures_in, show_figure, show_interval
from astune.support.statistics import MeanOverTasks


@dataclass(frozen=True)
class FigureRow:
    """A figure of an evaluation. `tasks` is how many have it, "9 → 11" where that is not the same after training."""

    evaluation: str
    figure: str
    tasks: str
    before: str
    after: str


def figure_rows(metrics: Metrics) -> list[FigureRow]:
    """All figures that the metrics have with their intervals: before the first step, and after the last one that was
    evaluated. A run of before intervals were told has none."""
    rows = []
    for evaluation in decodings(metrics):
        found = [(row["step"], figures) for row in metrics if (figures := figures_in(row, evaluation))]
        before = dict(found[0][1]) if found and found[0][0] == 0 else {}
        after = dict(found[-1][1]) if found and found[-1][0] > 0 else {}
        for figure in dict.fromkeys((*after, *before)):
            ends = [each.get(figure) for each in (before, after)]
            tasks = dict.fromkeys(str(end.n) for end in ends if end is not None)
            rows.append(FigureRow(evaluation, figure, " → ".join(tasks), *(show_mean(figure, end) for end in ends)))
    return rows


def show_mean(figure: str, found: MeanOverTasks | None) -> str:
    """
    >>> show_mean("turns", MeanOverTasks(2.5, (2.0, 3.0), 8)), show_mean("success", None)
    ('2.500 (2.000 to 3.000)', '-')
    """
    if found is None:
        return "-"
    between = "" if found.interval is None else f" ({show_interval(figure, *found.interval)})"
    return f"{show_figure(figure, found.mean)}{between}"

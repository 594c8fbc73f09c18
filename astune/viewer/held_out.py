"""The figures of held-out tasks before and after training: all of them, and success or reward by kind of task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from astune.monitor.receipt import Metrics
from astune.monitor.summary import decodings, figures_in, show_figure, show_interval, summarize
from astune.support.statistics import MeanOverTasks
from astune.viewer.chosen import at_step, by_kind, kind_column, over_tasks
from astune.viewer.run_index import IndexedEpisode


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


@dataclass(frozen=True)
class HeldOutRow:
    """One line of the held-out table. `kind` is None for the line of all tasks."""

    decoding: str
    kind: str | None
    figure: str
    before: MeanOverTasks | None
    after: MeanOverTasks | None

    def show(self, found: MeanOverTasks | None) -> str:
        return show_mean(self.figure, found)


def make_held_out_rows(metrics: Metrics, phases: Mapping[str, Sequence[IndexedEpisode]]) -> list[HeldOutRow]:
    """The figures before and after training per decoding, then per kind of task where the tasks' rows name kinds."""
    rows = []
    for decoding, found in summarize(metrics)["held_out"].items():
        episodes = phases[f"eval/{decoding}"]
        steps = sorted({entry.step for entry in episodes})
        if not steps:
            continue
        before, after = (at_step(episodes, step) for step in (steps[0], steps[-1]))
        before, after = (before if steps[0] == 0 else []), (after if steps[-1] > 0 else [])
        rows.append(HeldOutRow(decoding, None, found["figure"], over_tasks(before), over_tasks(after)))
        column = kind_column(after or before)
        if column is not None:
            kinds = by_kind(before, column), by_kind(after, column)
            names = sorted(kinds[0].keys() | kinds[1].keys())
            shares = [[over_tasks(kind.get(name, [])) for kind in kinds] for name in names]
            rows += [HeldOutRow(decoding, n, found["figure"], *pair) for n, pair in zip(names, shares, strict=True)]
    return rows

"""The tables of `astune eval`, made for 80 columns, and the same as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rich.table import Table

from astune.errors import ConfigError, nearest
from astune.monitor.progress_view import show_tasks
from astune.monitor.summary import show_figure, show_interval_of, show_p
from astune.rollout.metrics import counts_of, figures_of, name_ends
from astune.selection.rows import cost_rows, model_rows
from astune.selection.select import Selection
from astune.support.terminal import make_table
from astune.training.comparison import Compared, Wins, row_to_json
from astune.training.standalone import Played


class Evaluated:
    """An evaluation that was played, and its figures by the evaluation's name. `chosen` are those that are shown;
    without any, all are."""

    def __init__(self, played: Played, chosen: Sequence[str]) -> None:
        self.played = played
        self.name = played.about.candidate.name
        self.counts = {name: counts_of(groups) for name, groups in played.groups.items()}
        self.all = {name: figures_of(groups) for name, groups in played.groups.items()}
        self.figures = {
            name: {figure: found[figure] for figure in chosen or found if figure in found}
            for name, found in self.all.items()
        }


def choose_figures(played: Iterable[Played], chosen: Sequence[str]) -> list[Evaluated]:
    """Choose the figures of each that was played. Raises ConfigError for one that none has, where attempts were
    judged."""
    evaluated = [Evaluated(one, chosen) for one in played]
    known = list(dict.fromkeys(figure for one in evaluated for found in one.all.values() for figure in found))
    for figure in chosen if known else ():
        if figure not in known:
            raise ConfigError(
                f"--figures: the evaluation has no {figure!r}.{nearest(figure, known)} It has: {', '.join(known)}"
            )
    return evaluated


@dataclass(frozen=True)
class ComparedCheckpoints:
    """A later checkpoint beside the first one."""

    first: str
    second: str
    rows: Sequence[Compared]
    wins: Sequence[Wins]


def evaluation_tables(evaluated: Sequence[Evaluated], compared: Sequence[ComparedCheckpoints]) -> Iterator[Table | str]:
    """All tables: of each, of all beside each other, of comparisons, and what the last mean."""
    yield from (figures_table(one) for one in evaluated)
    if len(evaluated) > 2:
        yield overview_table(evaluated)
    for each in compared:
        yield from comparison_tables(each)
    if any(each.rows for each in compared):
        yield caption(compared)


def figures_table(one: Evaluated) -> Table:
    """A row for each figure, and below them how many tasks and attempts there are."""
    table = _table(one.name, "held-out", "figure", "mean", "95 % interval", "tasks")
    for name, figures in one.figures.items():
        for figure, found in figures.items():
            row = (show_figure(figure, found.mean), show_interval_of(figure, found), f"{found.n:,}")
            table.add_row(name, _name_figure(figure), *row)
        if not figures:
            table.add_row(name, "-", "-", "-", "0")
    lines = []
    for name, counts in one.counts.items():
        judged = max((found.n for found in one.all[name].values()), default=0)
        lines.append(f"{name}: {judged:,} {show_tasks(counts['tasks'], counts['attempts'], counts['unjudged'])}")
    table.caption = "\n".join(lines)
    return table


def overview_table(all_: Sequence[Evaluated]) -> Table:
    """A column for each checkpoint."""
    table = _table("all of them, on their own tasks", "held-out", "figure", *(one.name for one in all_))
    evaluations = dict.fromkeys(name for one in all_ for name in one.figures)
    for name in evaluations:
        figures = [one.figures.get(name, {}) for one in all_]
        for figure in dict.fromkeys(figure for found in figures for figure in found):
            means = (show_figure(figure, found[figure].mean) if figure in found else "-" for found in figures)
            table.add_row(name, _name_figure(figure), *means)
    return table


def models_tables(found: Selection) -> Iterator[Table]:
    """Make the tables of models: how much each solves, and what a solved task takes."""
    for title, columns, rows in (model_rows(found), cost_rows(found)):
        table = _table(title, *columns, gap=2)
        for row in rows:
            table.add_row(*row)
        yield table


def comparison_tables(found: ComparedCheckpoints) -> Iterator[Table]:
    """The figures in both with the test of their difference, then the win rates; a table for each evaluation."""
    against = f"{found.second} against {found.first}, on the same tasks"
    for evaluation in dict.fromkeys(row.evaluation for row in found.rows):
        rows = [row for row in found.rows if row.evaluation == evaluation]
        names = ("figure", "first", "second", "change", "95 % interval", "p", "tasks")
        table = _table(f"{evaluation}: {against}", *names, gap=2)
        for row in rows:
            table.add_row(
                _name_figure(row.figure),
                show_figure(row.figure, row.first.mean),
                show_figure(row.figure, row.second.mean),
                show_signed(row.figure, row.difference.mean),
                show_interval_of(row.figure, row.difference),
                show_p(row.test),
                f"{row.test.n:,}{'*' * bool(row.left_out)}",
            )
        yield table
    if found.wins:
        yield _wins_table(found)


def _wins_table(found: ComparedCheckpoints) -> Table:
    columns = ("held-out", "by", "", "share", "95 % interval", "p", "tasks")
    table = _table(f"wins of {found.second} over {found.first}", *columns)
    for wins in found.wins:
        p = show_p(wins.test)
        for what, share in (("won", wins.won), ("tied", wins.tied), ("lost", wins.lost)):
            cells = (show_figure("success", share.mean), show_interval_of("success", share), p, f"{share.n:,}")
            table.add_row(wins.evaluation, wins.by, what, *cells)
            p = ""
    left_out = [f"{wins.left_out:,} ({wins.evaluation}, {wins.by})" for wins in found.wins if wins.left_out]
    table.caption = f"pairs of attempts that nothing compares: {', '.join(left_out)}" if left_out else None
    return table


def caption(comparisons: Sequence[ComparedCheckpoints]) -> str:
    """Explain the tables of comparisons below them."""
    rows = [row for each in comparisons for row in each.rows]
    text = (
        "p: paired permutation test over tasks, two-sided (of single attempts at a task: McNemar's exact test). "
        "Interval: bootstrap over tasks."
    )
    if any(row.figure not in ("success", "reward") for row in rows):
        text += (
            " Judge by success and reward: each p is of its figure alone, and of 20 figures that did not change one "
            "has p below 0.05."
        )
    if not all(row.test.exact for row in rows):
        text += " ~: estimated from 20,000 drawn permutations."
    left_out = max((row.left_out for row in rows), default=0)
    return text + (f" *: without the tasks, up to {left_out:,}, that have the figure in one only." if left_out else "")


def _table(title: str, *columns: str, gap: int = 3) -> Table:
    return make_table(*columns, left=("held-out", "figure", "model", "95 % interval", "by", ""), gap=gap, title=title)


def show_signed(figure: str, value: float) -> str:
    return f"{'+' if value > 0 else ''}{show_figure(figure, value)}"


def _name_figure(figure: str) -> str:
    """
    >>> _name_figure("pass_at_4"), _name_figure("judge/pass_at_4")
    ('pass@4', 'judge/pass_at_4')
    """
    return f"pass@{figure.removeprefix('pass_at_')}" if figure.startswith("pass_at_") else figure


def as_json(evaluated: Sequence[Evaluated], comparisons: Sequence[ComparedCheckpoints]) -> dict[str, Any]:
    """`compared` and `wins` have their keys only where two were compared."""
    shown = [
        {
            "name": one.name,
            "checkpoint": one.played.about.candidate.checkpoint,
            "model": one.played.about.candidate.model,
            "folder": str(one.played.folder),
            "figures": {name: name_ends(found) | one.counts[name] for name, found in one.figures.items()},
        }
        for one in evaluated
    ]
    compared = [_name_both(each) | row_to_json(row) for each in comparisons for row in each.rows]
    wins = [_name_both(each) | row_to_json(row) for each in comparisons for row in each.wins]
    return {
        "evaluated": shown,
        **({"compared": compared} if compared else {}),
        **({"wins": wins} if wins else {}),
    }


def _name_both(of: ComparedCheckpoints) -> dict[str, Any]:
    return {"names": [of.first, of.second]}

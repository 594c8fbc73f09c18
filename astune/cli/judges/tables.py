"""A report of judges as text that can be pasted into an issue: tables in Markdown, whole lines."""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import cell_len

from astune.judging.calibration import Bin
from astune.judging.report import JudgeReport, Mistake
from astune.support.visible import tell
from astune.viewer.judge_report.rows import (
    NONE,
    FigureRow,
    comparison_text,
    confusion_rows,
    conventions,
    figure_rows,
    headline,
    label_text,
    shortened,
)

MOST_SHOWN = 10
"""Disagreements, and failures, that are shown of each judge; --json has all."""
REASON_LENGTH = 100
BAR = 40


def show_report(report: JudgeReport) -> None:
    """Prints the report."""
    tell("\n".join([headline(report), *conventions(report), ""]))
    tell(table(["", *(figures.judge for figures in report.figures)], figure_rows(report)))
    for comparison in report.comparisons():
        tell(f"\n{comparison_text(comparison)}")
    for judge, figures in enumerate(report.figures):
        tell(f"\n## {figures.judge}\n")
        tell(table(["", "judged right", "judged wrong", "could not judge"], confusion_rows(report, judge)))
        if figures.bins:
            tell("\nreward, answers, share that is right: bar and 95 % interval; | is the mean reward\n")
            tell("\n".join(f"    {line}" for line in _bars(figures.bins)))
        _show_mistakes("disagrees with the label on", report.disagreements(judge), report.graded)
        _show_mistakes("could not judge", report.failures(judge), report.graded)


def table(columns: Sequence[str], rows: Sequence[FigureRow]) -> str:
    """In Markdown.

    >>> print(table(["", "x"], [("judged", ["9 of 9"])]))
    |        | x      |
    |--------|--------|
    | judged | 9 of 9 |
    """
    lines = [list(columns), *([name, *values] for name, values in rows)]
    cells = [[cell.replace("|", "\\|") for cell in line] for line in lines]
    widths = [max(map(cell_len, column)) for column in zip(*cells, strict=True)]
    shown = [
        f"| {' | '.join(cell + ' ' * (width - cell_len(cell)) for cell, width in zip(line, widths, strict=True))} |"
        for line in cells
    ]
    return "\n".join([shown[0], f"|{'|'.join('-' * (width + 2) for width in widths)}|", *shown[1:]])


def _bars(bins: Sequence[Bin]) -> list[str]:
    """
    >>> _bars([Bin(0.5, 1.0, 4, 3, 0.9, (0.301, 0.954))])
    ['0.5-1.0      4   75 %  ██████████████████████████████······|···  30 to 95 %']
    """
    lines = []
    for bin in bins:
        filled = round(BAR * bin.share)
        cells = ["█"] * filled + ["·"] * (BAR - filled)
        cells[min(BAR - 1, int(BAR * bin.mean_reward))] = "|"
        low, high = bin.interval
        figures = f"{bin.low:.1f}-{bin.high:.1f}  {bin.n:>5}  {100 * bin.share:>3.0f} %"
        lines.append(f"{figures}  {''.join(cells)}  {100 * low:.0f} to {100 * high:.0f} %")
    return lines


def _show_mistakes(what: str, mistakes: Sequence[Mistake], graded: bool) -> None:
    if not mistakes:
        return
    first = f", the first {MOST_SHOWN} (--json has all)" if len(mistakes) > MOST_SHOWN else ""
    tell(f"\n{what} {len(mistakes)}{first}:\n")
    rows = [
        (
            str(mistake.number),
            [
                shortened(mistake.task_id, 40),
                label_text(mistake.label, graded),
                NONE if mistake.reward is None else f"{mistake.reward:g}",
                shortened(mistake.reason, REASON_LENGTH),
            ],
        )
        for mistake in mistakes[:MOST_SHOWN]
    ]
    tell(table(["answer", "task", "label", "reward", "reason"], rows))

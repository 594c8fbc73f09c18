"""The figures of judges as texts, one column per judge: what the terminal and the page show."""

from __future__ import annotations

from collections.abc import Callable

from astune.judging.agreement import Interval, wilson
from astune.judging.figures import Estimate, JudgeFigures
from astune.judging.report import Comparison, JudgeReport

NONE = "-"
FigureRow = tuple[str, list[str]]
"""Name of the figure, and its value for each judge."""


def headline(report: JudgeReport) -> str:
    """The labelled answers in one sentence: how many, and how many are right."""
    n, right = len(report.labels), sum(label.right for label in report.labels)
    tasks = len({label.task_id for label in report.labels})
    answers = f"{n} labelled answer{'s' * (n != 1)} to {tasks} task{'s' * (tasks != 1)}"
    return f"{answers} ({report.source}): {right} right, {n - right} wrong by their labels"


def conventions(report: JudgeReport) -> list[str]:
    """The conventions behind the figures, one sentence each, where another choice was possible."""
    said = [
        "In brackets: 95 % intervals. Length and reward, length and label: rank correlations; a judge that likes long "
        "answers has more of the first than of the second."
    ]
    if len({label.task_id for label in report.labels}) < len(report.labels):
        said.append(
            "Some answers are to the same task: the intervals allow for that, but those of false positives and "
            "negatives, of the bins and McNemar's p take each answer as new."
        )
    if report.graded:
        values = [label.value for label in report.labels]
        said.append(
            f"Labels are graded, from {min(values):g} to {max(values):g}: an answer is right from "
            f"{report.pass_label:g} on (--pass-label)."
        )
    by_reward = [figures.judge for figures in report.figures if figures.by_reward]
    if by_reward:
        said.append(
            f"{', '.join(by_reward)}: where a verdict does not say whether the answer passed, it does from reward "
            f"{report.pass_reward:g} on (--pass-reward)."
        )
    if any(figures.usage.cached for figures in report.figures):
        said.append(
            "Some replies came from the cache, at no cost: astune.task_judge.llm.cache=null shows what they cost anew."
        )
    if any(figures.failed for figures in report.figures):
        said.append(
            "What a judge could not judge is in no figure but 'could not judge' and 'agrees, of all': it is neither "
            "agreement nor disagreement."
        )
    return said


def figure_rows(report: JudgeReport) -> list[FigureRow]:
    """The table of all judges; figures that no judge has are left out."""
    of_label = [
        (f"mean reward, label {label_text(value, report.graded)}", _mean_reward(value))
        for value in sorted({label.value for label in report.labels})
    ]
    pairs = {True: "pairs of one task in order", False: "pairs in order"}
    kind = any(figures.pairs_of_a_task for figures in report.figures)
    shown: list[tuple[str, Callable[[JudgeFigures], str]]] = [
        ("judged", lambda one: f"{one.judged} of {one.n}"),
        ("could not judge", lambda one: str(one.failed) if one.failed else NONE),
        ("agrees with the label", lambda one: _percent(one.accuracy)),
        ("agrees, of all", lambda one: _percent(Estimate(one.right_of_all))),
        ("Cohen's kappa", lambda one: _show_estimate(one.kappa)),
        ("false positives", lambda one: _rate(one.false_positives, one.confusion.counts[False, False])),
        ("false negatives", lambda one: _rate(one.false_negatives, one.confusion.counts[True, True])),
        ("Spearman", lambda one: _show_estimate(one.spearman)),
        ("quadratic kappa", lambda one: _show_estimate(one.quadratic_kappa)),
        (pairs[kind], lambda one: f"{_percent(one.pairwise)} of {one.pairs:,}" if one.pairs else NONE),
        *(of_label if len(of_label) <= 10 else []),
        ("calibration error", lambda one: _show_number(one.calibration_error)),
        ("length and reward", lambda one: _show_number(one.length_and_reward)),
        ("length and label", lambda one: _show_number(one.length_and_label)),
        ("same in both orders", lambda one: _percent(Estimate(one.position_consistency))),
        ("cost per 1,000", lambda one: _count(one.usage.cost)),
        ("calls per 1,000", lambda one: _count(one.usage.calls)),
        ("from the cache per 1,000", lambda one: _count(one.usage.cached)),
        ("tokens per 1,000", lambda one: _count(one.usage.tokens)),
        ("seconds per 1,000", lambda one: _count(one.usage.seconds)),
    ]
    rows = [(name, [show(figures) for figures in report.figures]) for name, show in shown]
    return [row for row in rows if any(value != NONE for value in row[1])]


def confusion_rows(report: JudgeReport, judge: int) -> list[FigureRow]:
    """Label by what the judge said: right, wrong, could not judge."""
    counts, failures = report.figures[judge].confusion.counts, report.failures(judge)
    return [
        (
            f"label {name}",
            [
                *(f"{counts[label, said]:,}" for said in (True, False)),
                str(sum(failure.right == label for failure in failures)),
            ],
        )
        for label, name in ((True, "right"), (False, "wrong"))
    ]


def comparison_text(comparison: Comparison) -> str:
    """Two judges in one sentence."""
    pair = f"{comparison.first} against {comparison.second}"
    if comparison.p < 0.05:
        better = comparison.first if comparison.only_first > comparison.only_second else comparison.second
        verdict = f"{better} agrees more often"
    else:
        verdict = "no difference that could not be chance"
    return (
        f"{pair}, on {comparison.n} answers that both judged: only the first agrees on {comparison.only_first}, only "
        f"the second on {comparison.only_second}; McNemar p = {comparison.p:.2g}: {verdict}"
    )


def label_text(value: float, graded: bool) -> str:
    return f"{value:g}" if graded else ("true" if value else "false")


def _mean_reward(value: float) -> Callable[[JudgeFigures], str]:
    def show(figures: JudgeFigures) -> str:
        found = next(((n, mean) for label, n, mean in figures.reward_by_label if label == value), None)
        return NONE if found is None else f"{found[1]:.3f} of {found[0]}"

    return show


def _rate(wrong: int, well: int) -> str:
    """`2 of 40 (1.4 to 16.5 %)`"""
    of = wrong + well
    return f"{wrong} of {of}{_interval(wilson(wrong, of), percent=True)}" if of else NONE


def _percent(estimate: Estimate) -> str:
    if estimate.value is None:
        return NONE
    return f"{100 * estimate.value:.1f} %{_interval(estimate.interval, percent=True)}"


def _show_estimate(estimate: Estimate) -> str:
    return NONE if estimate.value is None else f"{estimate.value:.3f}{_interval(estimate.interval, percent=False)}"


def _interval(interval: Interval | None, *, percent: bool) -> str:
    if interval is None:
        return ""
    low, high = interval
    return f" ({100 * low:.1f} to {100 * high:.1f} %)" if percent else f" ({low:.3f} to {high:.3f})"


def _show_number(value: float | None) -> str:
    return NONE if value is None else f"{value:.3f}"


def _count(value: float | None) -> str:
    if value is None:
        return NONE
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.3g}"


def shorten(text: str, most: int) -> str:
    """Shorten a text to one line of at most `most` characters.

    >>> shorten("a long\\nreason", 8)
    'a long …'
    """
    line = " ".join(text.split())
    return line if len(line) <= most else line[: most - 1] + "…"

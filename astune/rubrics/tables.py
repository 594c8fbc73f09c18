"""Rubrics as tables for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields
from itertools import groupby
from typing import Any

from rich.table import Table

from astune.rubrics.edits import edits_of
from astune.rubrics.measure import Accuracy
from astune.rubrics.similarity import duplicate_groups
from astune.support.terminal import Console, Text
from astune.task_judge.llm.rubric import Criterion, Rubric

BASELINES = {
    "one_round": "rubric after one round",
    "without_rubric": "judge without rubric",
    "majority": "majority",
}


FIGURES = {field.name for field in fields(Accuracy)}
"""Without all of these a report, which anyone may have edited, is not shown."""


def show_rubric(rubric: Rubric, console: Console) -> None:
    """Criteria by theme, then the report, then where it comes from."""
    console.print(criteria_table(rubric))
    if set(rubric.report.get("test", {})) >= FIGURES:
        console.print(report_table(rubric))
        if rubric.report.get("note"):
            console.print(Text(str(rubric.report["note"])), style="yellow")
    for line in provenance_lines(rubric):
        console.print(Text(line), style="dim")


def criteria_table(rubric: Rubric) -> Table:
    table = Table(title=Text(rubric.name), title_justify="left", box=None, padding=(0, 2, 0, 0))
    table.add_column("weight", justify="right")
    table.add_column("helps", justify="right")
    table.add_column("criterion")
    helps = rubric.report.get("helps", {})
    for theme, criteria in groupby(rubric.criteria, key=lambda one: one.theme):
        if theme:
            table.add_row("", "", Text(theme, style="bold"))
        for one in criteria:
            gain = helps.get(one.id)
            table.add_row(f"{one.weight:g}", "" if gain is None else f"{gain:.3f}", _describe(one))
    return table


def report_table(rubric: Rubric) -> Table:
    """Accuracy on the test examples, the rubric beside what it has to beat."""
    test, baselines = rubric.report["test"], rubric.report.get("baselines", {})
    table = Table(
        title=f"on {test['n']} test example{'' if test['n'] == 1 else 's'}",
        title_justify="left",
        box=None,
        padding=(0, 2, 0, 0),
    )
    table.add_column("")
    for name in ("accuracy", "95 % interval", "kappa", "could not judge"):
        table.add_column(name, justify="right")
    table.add_row("rubric", *_figures(test), style="bold")
    for name, title in BASELINES.items():
        if set(baselines.get(name) or ()) >= FIGURES:
            table.add_row(title, *_figures(baselines[name]))
    return table


def provenance_lines(rubric: Rubric) -> Iterator[str]:
    made = rubric.provenance
    if not made:
        yield "It does not say where it comes from: a person wrote it."
        return
    examples, split = made.get("examples", {}), made.get("split", {})
    yield (
        f"learned {made.get('created')} from {examples.get('file')} ({examples.get('kind')}, sha256 "
        f"{str(examples.get('sha256'))[:12]}): {split.get('train')} to learn from, {split.get('dev')} to choose by, "
        f"{split.get('test')} to test on; seed {made.get('seed')}"
    )
    cost = "cost unknown" if made.get("cost") is None else f"cost {made['cost']:g}"
    yield (
        f"by {', '.join(made.get('models', []))}: {made.get('replies')} replies, "
        f"{made.get('prompt_tokens')} + {made.get('completion_tokens')} tokens, {cost}"
    )
    yield f"an answer passes from {made.get('pass_at')}"
    edits = edits_of(rubric)
    if edits and rubric.digest != made.get("digest"):
        yield "edited by hand since: the report is of the rubric before"


def show_difference(first: Rubric, second: Rubric, console: Console) -> bool:
    """Prints what differs; whether anything does."""
    lines = list(differences(first, second))
    for line in lines:
        console.print(Text(line), style={"+": "green", "-": "red"}.get(line[0], ""))
    return bool(lines)


def differences(first: Rubric, second: Rubric) -> Iterator[str]:
    """A line for each criterion that was added (+), removed (-), or changed (~), and for the test accuracy."""
    before, after = ({one.id: one for one in rubric.criteria} for rubric in (first, second))
    gone = [one for name, one in before.items() if name not in after]
    new = [one for name, one in after.items() if name not in before]
    reworded = dict(_find_reworded(gone, new))
    for name, one in before.items():
        if name in after:
            yield from _changes(one, after[name])
        elif name in reworded:
            yield from _changes(one, reworded[name])
        else:
            yield f"- {one.weight:g}  {one.text}  [{name}]"
    for one in new:
        if one.id not in {other.id for other in reworded.values()}:
            yield f"+ {one.weight:g}  {one.text}  [{one.id}]"
    reports = [_accuracy(rubric) for rubric in (first, second)]
    if reports[0] != reports[1]:
        yield f"~ test accuracy: {reports[0]} -> {reports[1]}"


def _find_reworded(gone: list[Criterion], new: list[Criterion]) -> Iterator[tuple[str, Criterion]]:
    """Ids of criteria that are gone, each with one that says the same now."""
    together = [*gone, *new]
    for group in duplicate_groups([one.text for one in together], [[] for _ in together]):
        old, other = [i for i in group if i < len(gone)], [i for i in group if i >= len(gone)]
        yield from ((together[i].id, together[j]) for i, j in zip(old, other, strict=False))


def _changes(one: Criterion, other: Criterion) -> Iterator[str]:
    before, after = one.model_dump(exclude={"sources"}), other.model_dump(exclude={"sources"})
    for name, value in before.items():
        if after[name] != value:
            yield f"~ [{other.id}] {name}: {value} -> {after[name]}"


def _accuracy(rubric: Rubric) -> str:
    test: Mapping[str, Any] = rubric.report.get("test", {})
    return f"{test['accuracy']:.1%} of {test['n']}" if test else "no report"


def _figures(figures: Mapping[str, Any]) -> tuple[str, str, str, str]:
    kappa = figures["kappa"]
    return (
        f"{figures['accuracy']:.1%}",
        f"{figures['low']:.1%} to {figures['high']:.1%}",
        "-" if kappa is None else f"{kappa:.2f}",
        str(figures["could_not_judge"]),
    )


def _describe(one: Criterion) -> Text:
    text = Text(one.text)
    if one.edited:
        text.append("  (edited)", style="yellow")
    text.append(f"  {one.id}", style="dim")
    for score, anchor in sorted(one.anchors.items()):
        text.append(f"\n  {score}: {anchor}", style="dim")
    return text

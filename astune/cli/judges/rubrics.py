"""`astune rubrics`: learn a rubric from examples; show, check and compare rubrics."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from astune.api.rubric import learn_loaded, show_stages
from astune.cli.endings import INTERRUPTED, LEARNED_NOTHING
from astune.config.load import load_config
from astune.rubrics.edits import edits_of
from astune.rubrics.from_config import GO_ON, check_rubric
from astune.rubrics.learn import NothingHelps
from astune.rubrics.report import NO_BETTER, better_than_baselines
from astune.rubrics.tables import show_difference, show_rubric
from astune.support.terminal import Console
from astune.support.visible import tell
from astune.task_judge.llm.rubric import load_rubric

MOST_SHOWN = 15


def learn(conf: Path, overrides: Sequence[str], keep_edited: bool) -> int:
    """Learns a rubric and writes it; 1 if no criterion was found that helps, 3 if the rubric is no better than the
    baselines."""
    loaded = load_config(conf, overrides, for_run=False)
    console = Console()
    try:
        rubric, out = learn_loaded(loaded, keep_edited=keep_edited)
    except KeyboardInterrupt:
        tell(f"interrupted. {GO_ON}", file=sys.stderr)
        return INTERRUPTED
    except NothingHelps as error:
        for text, gain in sorted(error.candidates, key=lambda entry: -entry[1])[:MOST_SHOWN]:
            console.print(f"{gain:+.3f}  {text}")
        raise
    show_rubric(rubric, console)
    console.print(f"\nwritten: {out}")
    if not better_than_baselines(rubric.report):
        tell(NO_BETTER, file=sys.stderr)
        return LEARNED_NOTHING
    return 0


def show(file: Path) -> int:
    show_rubric(load_rubric(file), Console())
    return 0


def check(file: Path, conf: Path | None, examples: Path | None, overrides: Sequence[str]) -> int:
    """Check a rubric and list what was edited; with a configuration, judge labelled examples by it. 1 if it could judge
    none of them."""
    rubric = load_rubric(file)
    console = Console()
    console.print(f"{file}: valid, {len(rubric.criteria)} criteria, digest {rubric.digest}")
    edits = edits_of(rubric)
    for one in edits.criteria:
        console.print(f"edited or added by hand: {one.id}")
    for name in sorted(edits.removed):
        console.print(f"taken out by hand: {name}")
    if rubric.digest != rubric.provenance.get("digest", rubric.digest):
        console.print("the report in it is of the rubric before it was edited")
    if conf is None:
        return 0
    loaded = load_config(conf, overrides, for_run=False)
    with show_stages() as stages:
        accuracy, labelled = check_rubric(rubric, loaded, examples, stages)
    kappa = "-" if accuracy.kappa is None else f"{accuracy.kappa:.2f}"
    console.print(
        f"{labelled.path}: accuracy {accuracy.accuracy:.1%} of {accuracy.n} {labelled.kind} examples "
        f"(95 %: {accuracy.low:.1%} to {accuracy.high:.1%}), kappa {kappa}, {accuracy.could_not_judge} answers could "
        "not be judged"
    )
    if labelled.sha256 == rubric.provenance.get("examples", {}).get("sha256"):
        console.print("it was learned from these examples: only the test figures of its report are of new ones")
    return 1 if accuracy.could_not_judge == sum(len(example.answers) for example in labelled.all) else 0


def diff(first: Path, second: Path) -> int:
    """1 if the rubrics differ."""
    console = Console()
    if show_difference(load_rubric(first), load_rubric(second), console):
        return 1
    console.print("no difference")
    return 0

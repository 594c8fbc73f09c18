"""`astune judge-report`: compare judges with the labels that people gave."""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path

from rich.cells import cell_len

from astune.cli.judges.labelled_answers import LabelledAnswers, read_labelled_answers
from astune.cli.progress_bar import progress_bar
from astune.config.load import load_config
from astune.config.schema import AstuneConfig
from astune.errors import ConfigError, JudgeError
from astune.judging.agreement import Bin
from astune.judging.figures import JudgeFigures, Outcome, judge_figures
from astune.judging.report import JudgeReport, Mistake
from astune.judging.rows import (
    NONE,
    FigureRow,
    comparison_text,
    confusion_rows,
    conventions,
    figure_rows,
    headline,
    label_text,
    shorten,
)
from astune.rollout.verdict import ask_group, verdict_or_error
from astune.support.terminal import Console
from astune.support.visible import tell, tell_json
from astune.task_judge import GroupJudge, Judge, TaskJudges, make_judge
from astune.task_judge.judge_base import AT_ONCE
from astune.task_judge.registry import import_registered, load_judge
from astune.types import Episode, Task, Verdict
from astune.viewer.judge_page import write_judge_page

JudgeOf = Callable[[Task], Judge]


def judge_report(known: argparse.Namespace) -> int:
    """Prints how well judges agree with labels; 1 if one of them could not judge any answer. What the user's own code
    prints goes to standard error."""
    out: Path | None = known.out
    if out is not None and not out.absolute().parent.is_dir():
        raise ConfigError(f"--out {out}: there is no folder {out.absolute().parent}")
    config = load_config(known.conf, known.overrides, for_run=False).config.astune
    answers = read_labelled_answers(
        known.examples,
        config.task_reader.fields,
        response_field=known.response_field,
        label_field=known.label_field,
        pass_label=known.pass_label,
    )
    with redirect_stdout(sys.stderr):
        judges = _judges(config, known.judges, [episode.task for episode in answers.episodes])
        judged = asyncio.run(_judge_all(judges, answers, config.task_judge.seconds, known.pass_reward))
    report = JudgeReport(
        source=str(known.examples),
        labels=answers.labels,
        graded=answers.graded,
        pass_label=answers.pass_label,
        pass_reward=known.pass_reward,
        figures=tuple(figures for figures, _ in judged),
        outcomes=tuple(tuple(outcomes) for _, outcomes in judged),
    )
    if known.json:
        tell_json(report.to_json())
    else:
        show_report(report)
    if out is not None:
        write_judge_page(report, out)
        tell(f"written {out}", file=sys.stderr)
    return 1 if any(figures.judged == 0 for figures in report.figures) else 0


def _judges(config: AstuneConfig, names: Sequence[str], tasks: Sequence[Task]) -> dict[str, JudgeOf]:
    """The judges by name; if none is named, those that a run would ask. Raises ConfigError where there is none."""
    specs = names or {*(part.judge for part in config.task_judge.judges), *TaskJudges(config.task_judge).specs(tasks)}
    import_registered(specs, config.rollout.agentscope_learn_protocol)
    if not names:
        return _load_configured(config, tasks)
    return {name: _always(load_judge(name, config.task_judge, key="--judge")) for name in names}


def _always(judge: Judge) -> JudgeOf:
    return lambda task: judge


def _load_configured(config: AstuneConfig, tasks: Sequence[Task]) -> dict[str, JudgeOf]:
    """The judge that the task names, else the one of the configuration."""
    judge, task_judges = make_judge(config.task_judge), TaskJudges(config.task_judge)

    def judge_of(task: Task) -> Judge:
        chosen = task_judges.of(task) or judge
        if chosen is None:
            raise ConfigError("no judge: name one with --judge, or set astune.task_judge.judge_protocol")
        return chosen

    for task in tasks:
        judge_of(task)
    names = [part.judge.rpartition("/")[2] for part in config.task_judge.judges]  # a file is known by its name
    return {" + ".join(names) or "scorers": judge_of}


async def _judge_all(
    judges: Mapping[str, JudgeOf], answers: LabelledAnswers, seconds: float, pass_reward: float
) -> list[tuple[JudgeFigures, list[Outcome]]]:
    """One judge after the other, so that they do not slow each other down."""
    done = []
    with progress_bar(Console(stderr=True)) as progress:
        for name, judge_of in judges.items():
            bar = progress.add_task(name, total=len(answers.episodes))
            started = time.monotonic()
            outcomes = await judge_answers(judge_of, answers.episodes, seconds, partial(progress.advance, bar))
            took = time.monotonic() - started
            figures = judge_figures(
                name, answers.labels, outcomes, graded=answers.graded, seconds=took, pass_reward=pass_reward
            )
            done.append((figures, outcomes))
    return done


async def judge_answers(
    judge_of: JudgeOf, episodes: Sequence[Episode], seconds: float, advance: Callable[[float], None]
) -> list[Outcome]:
    """For each episode a verdict, or the error that kept the judge from one. A judge of groups gets all answers to a
    task together, other judges each alone; at most `AT_ONCE` are asked about at a time."""
    free = asyncio.Semaphore(AT_ONCE)
    outcomes: dict[int, Outcome] = {}

    async def ask(numbers: Sequence[int]) -> None:
        async with free:
            shown = [episodes[number] for number in numbers]
            outcomes.update(zip(numbers, await _ask_judge(judge_of(shown[0].task), shown, seconds), strict=True))
            advance(len(numbers))

    await asyncio.gather(*(ask(numbers) for numbers in _together(judge_of, episodes)))
    return [_refuse_undecided(outcomes[number]) for number in range(len(episodes))]


def _refuse_undecided(outcome: Outcome) -> Outcome:
    """A judge that contradicts itself could not judge."""
    if isinstance(outcome, Verdict) and outcome.undecided:
        return JudgeError(f"undecided: {outcome.reason}")
    return outcome


def _together(judge_of: JudgeOf, episodes: Sequence[Episode]) -> list[list[int]]:
    """Numbers of the episodes that are judged in one go."""
    by_task: dict[str, list[int]] = defaultdict(list)
    for number, episode in enumerate(episodes):
        by_task[episode.task.task_id].append(number)
    groups: list[list[int]] = []
    for numbers in by_task.values():
        is_for_groups = isinstance(judge_of(episodes[numbers[0]].task), GroupJudge)
        groups += [numbers] if is_for_groups else [[number] for number in numbers]
    return groups


async def _ask_judge(judge: Judge, episodes: Sequence[Episode], seconds: float) -> Sequence[Outcome]:
    if isinstance(judge, GroupJudge):
        return await ask_group(judge, episodes, seconds)
    return [await verdict_or_error(judge, episodes[0], seconds)]


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
                shorten(mistake.task_id, 40),
                label_text(mistake.label, graded),
                NONE if mistake.reward is None else f"{mistake.reward:g}",
                shorten(mistake.reason, REASON_LENGTH),
            ],
        )
        for mistake in mistakes[:MOST_SHOWN]
    ]
    tell(table(["answer", "task", "label", "reward", "reason"], rows))

"""`astune.learn_rubric`: what `astune rubrics` does, as a function."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from datetime import date
from os import PathLike
from pathlib import Path
from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from astune.api.settings import configure
from astune.config.load import LoadedConfig
from astune.errors import TaskError
from astune.rubrics import from_config
from astune.rubrics.examples import Examples, examples_of_rows
from astune.rubrics.report import NO_BETTER, better_than_baselines
from astune.support.terminal import Console
from astune.support.visible import tell
from astune.task_judge.llm.rubric import Rubric


def learn_rubric(
    examples: object = None,
    *,
    conf: str | PathLike[str] | None = None,
    keep_edited: bool = False,
    **keys: Any,
) -> Rubric:
    """Learn from a few judged answers what to judge others by, and write it to the file `astune.rubrics.out`.

        rubric = astune.learn_rubric(rows, rubrics={"out": "polite.yaml"}, task_judge={"llm": {"models": [api]}})
        astune.tune(solve, tasks=tasks, judge="RubricsAsJudge", task_judge={"rubrics": {"file": "polite.yaml"}, ...})

    `examples` are a path or a list of dicts, as docs/rubrics.md has them. One that judges no better than asking without
    it is written too, and that is said. Replies are kept, so that an equal call goes on where one was stopped. Raises
    `NothingHelps` where no criterion helps, `ConfigError` and `TaskError` before any model is asked.
    """
    given: Examples | None = None
    if isinstance(examples, str | PathLike):
        keys = {"rubrics.examples": str(examples), **keys}
    elif examples is not None:
        given = examples_of_rows(list(_places(examples)), Path("examples"))
    with configure(conf=conf, keys=keys, for_run=False) as loaded:
        rubric, out = learn_loaded(loaded, given, keep_edited=keep_edited)
        tell(f"written: {out}")
        if not better_than_baselines(rubric.report):
            tell(NO_BETTER, file=sys.stderr)
        return rubric


def learn_loaded(
    loaded: LoadedConfig, examples: Examples | None = None, *, keep_edited: bool = False
) -> tuple[Rubric, Path]:
    """Learn a rubric as a configuration says, from `examples` or those that it names, and show how it goes on."""
    with show_stages() as stages:
        return from_config.learn_rubric(loaded, stages, date.today(), examples, keep_edited=keep_edited)


def _places(examples: object) -> Iterator[tuple[str, dict[str, Any]]]:
    if isinstance(examples, Mapping) or not isinstance(examples, Iterable):
        raise TaskError(f"examples: got {examples!r:.80}; expected a path or a list of dicts")
    for index, row in enumerate(examples):
        if not isinstance(row, Mapping):
            raise TaskError(f"examples[{index}]: got {row!r:.80} of type {type(row).__name__}; expected a dict")
        yield f"examples[{index}]", dict(row)


class _Stages:
    """A bar for each stage on a terminal; elsewhere a line."""

    def __init__(self, console: Console, progress: Progress | None) -> None:
        self._console = console
        self._progress = progress
        self._task: TaskID | None = None
        self._failures: list[str] = []

    def stage(self, name: str, total: int) -> None:
        if self._progress is None:
            self._console.print(f"{name}: {total} question{'s' if total != 1 else ''}")
        else:
            self._task = self._progress.add_task(name, total=total)

    def advance(self) -> None:
        if self._progress is not None and self._task is not None:
            self._progress.advance(self._task)

    def report_failure(self, why: str) -> None:
        self._failures.append(why)

    def close(self) -> None:
        if self._failures:
            count = len(self._failures)
            times = "1 reply" if count == 1 else f"{count} replies"
            self._console.print(f"{times} could not be used, the last: {self._failures[-1]}")


@contextmanager
def show_stages() -> Iterator[_Stages]:
    """Yield what shows the stages of asking on standard error."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) if console.is_terminal else nullcontext() as progress:
        stages = _Stages(console, progress)
        try:
            yield stages
        finally:
            stages.close()

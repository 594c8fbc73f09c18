"""`astune check-tasks`: try right and wrong answers on the judge, for every task of a data set."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from astune.check_tasks.check import (
    ALWAYS,
    GOLD,
    KINDS,
    MUST_PASS,
    READ,
    CheckedTask,
    WrongAnswers,
    check_judged,
    wrong_answers,
)
from astune.check_tasks.judged_tasks import JudgedTasks, by_judge
from astune.check_tasks.try_answers import TriedAnswer
from astune.check_tasks.wordings import IN_A_FORMAT
from astune.cli.progress_bar import progress_bar
from astune.config.load import load_config
from astune.config.rules import ASKS_MODELS
from astune.config.schema import AstuneConfig
from astune.errors import ConfigError, TaskError
from astune.support.chinese import localize
from astune.support.terminal import Console
from astune.support.visible import tell, tell_json
from astune.task_judge import TaskJudges
from astune.task_judge.registry import import_registered
from astune.task_reader.task_reader_base import SPLITS, Split
from astune.task_reader.task_sets import read_task_sets
from astune.training.rollout_setup import environment_service
from astune.types import Task

MOST_SHOWN = 20
"""Tasks that fail, one by one; --json has all."""
MOST_MISJUDGED = 5
"""Answers to one of them that are judged wrongly; further ones are only named."""


@dataclass
class _Results:
    """The tasks of a data set that were checked, and those that were not."""

    done: list[tuple[JudgedTasks, str, list[CheckedTask]]] = field(default_factory=list)
    left_out: list[tuple[str, list[Task]]] = field(default_factory=list)
    """Why tasks were not checked, and which."""

    @property
    def tasks(self) -> list[CheckedTask]:
        return list(chain.from_iterable(tasks for _, _, tasks in self.done))

    @property
    def failing(self) -> list[CheckedTask]:
        return [one for one in self.tasks if one.misjudged]


def check_tasks(conf: Path, overrides: Sequence[str], split: str, limit: int | None, as_json: bool) -> int:
    """Prints what the judges say of right answers and of answers that are none; 1 if they are wrong about one. What the
    user's own code prints goes to standard error."""
    if limit is not None and limit < 1:
        raise ConfigError(f"--limit: expected a whole number from 1, found {limit}")
    config = load_config(conf, overrides, for_run=False).config.astune
    results = _Results()
    with redirect_stdout(sys.stderr), environment_service(config) as config:
        tasks = _read_tasks(config, [each for each in SPLITS if split in (each, "all")], limit)
        specs = {*(part.judge for part in config.task_judge.judges), *TaskJudges(config.task_judge).specs(tasks)}
        import_registered(specs, config.rollout.agentscope_learn_protocol)
        chosen = _choose(by_judge(tasks, config.task_judge), tasks, results)
        wrong = [wrong_answers(judged) for judged in chosen]
        for line in _announce_calls(chosen, wrong):
            tell(localize(line), file=sys.stderr)
        asyncio.run(_run(chosen, wrong, results))
    if as_json:
        tell_json(_to_json(conf, results))
    else:
        tell(localize("\n".join(_report(results))))
    return 1 if results.failing else 0


def _read_tasks(config: AstuneConfig, splits: Sequence[Split], limit: int | None) -> list[Task]:
    sets = read_task_sets(config.task_reader)
    found = [task for split in splits for task in sets.of(split)[:limit]]
    if not found:
        raise TaskError(f"there are no tasks in {' and '.join(splits)}: nothing to check")
    return found


def _place(task: Task) -> str:
    return task.place.removeprefix(f"{Path.cwd()}/") or f"task {task.task_id!r}"


def _choose(judges: Sequence[JudgedTasks], tasks: Sequence[Task], results: _Results) -> list[JudgedTasks]:
    """The judges with the tasks that can be checked. Raises ConfigError if there are none."""
    chosen = []
    with_judge = {id(task) for judged in judges for task in judged.tasks}
    if nobody := [task for task in tasks if id(task) not in with_judge]:
        results.left_out.append(("there is no judge: the workflow returns the reward itself", nobody))
    for judged in judges:
        if not judged.by_the_answer:
            results.left_out.append(
                (f"{judged.title} judges what an agent does, not its answer alone", [*judged.tasks])
            )
            continue
        needs = bool(IN_A_FORMAT.intersection(judged.names))
        with_answer = [task for task in judged.tasks if needs or (task.answer or "").strip()]
        if len(with_answer) < len(judged.tasks):
            without = [task for task in judged.tasks if not (task.answer or "").strip()]
            results.left_out.append(("there is no reference answer", without))
        if with_answer:
            chosen.append(JudgedTasks(judged.judge, judged.config, with_answer))
    if not chosen:
        raise ConfigError(
            "nothing can be checked: " + "; ".join(f"{why} ({len(of)} tasks)" for why, of in results.left_out)
        )
    return chosen


def _announce_calls(chosen: Sequence[JudgedTasks], wrong: Sequence[WrongAnswers]) -> list[str]:
    """Say for each judge that asks models how many calls that may take."""
    return [
        f"{judged.title} asks models: up to {_calls(judged, of):,} calls for {_count(judged.tasks)}, less what the "
        "cache has; --limit N takes fewer tasks"
        for judged, of in zip(chosen, wrong, strict=True)
        if judged.asks_models
    ]


def _answers(judged: JudgedTasks, wrong: WrongAnswers) -> int:
    return len(judged.tasks) * len(ALWAYS) + sum(map(len, wrong))


def _calls(judged: JudgedTasks, wrong: WrongAnswers) -> int:
    """An answer is compared with the reference in both orders where attempts are compared. Replies that are no JSON are
    asked for once more on top, as in a run."""
    compares = judged.config.llm.mode != "pointwise"
    asking = sum(2 if name == "LlmAsJudge" and compares else 1 for name in judged.names if name in ASKS_MODELS)
    return _answers(judged, wrong) * judged.config.llm.votes * asking


async def _run(chosen: Sequence[JudgedTasks], wrong: Sequence[WrongAnswers], results: _Results) -> None:
    with progress_bar(Console(stderr=True)) as progress:
        bar = progress.add_task("judging answers", total=sum(map(_answers, chosen, wrong)))
        for judged, of in zip(chosen, wrong, strict=True):
            done, wording = await check_judged(judged, lambda: progress.advance(bar), of)
            results.done.append((judged, wording, done))


def _report(results: _Results) -> list[str]:
    lines = []
    for judged, wording, done in results.done:
        written = f"answers written as in {wording.format('42')}" if wording != "{}" else "answers written as they are"
        lines.append(f"{judged.title.replace(f'{Path.cwd()}/', '')}: {_count(done)}, {written}")
    lines += [f"left out: {_count(of)}: {why}" for why, of in results.left_out]
    lines += ["", f"{'':<24}{'passes':>8}{'fails':>8}{'no verdict':>12}"]
    for kind, counts in _counts(results).items():
        mark = "   <- should pass" if kind in MUST_PASS else "   <- should fail"
        wrong = counts["wrong"]
        lines.append(f"{kind:<24}{counts['pass']:>8}{counts['fail']:>8}{counts['error']:>12}{mark if wrong else ''}")
    if untried := [kind for kind in KINDS if kind not in _counts(results)]:
        lines.append(f"not tried, as no task has a reference that suits: {', '.join(map(localize, untried))}")
    failing = results.failing
    if failing:
        lines.append("")
    for one in failing[:MOST_SHOWN]:
        lines += _show_misjudged(one)
    if len(failing) > MOST_SHOWN:
        lines.append(f"... {len(failing) - MOST_SHOWN} more (all with --json)")
    lines.append("")
    lines += _closing(results)
    return lines


def _show_misjudged(one: CheckedTask) -> list[str]:
    lines = [f"{_place(one.task)}  task {one.task.task_id!r}, reference {one.task.answer!r:.60}"]
    for kind in one.misjudged[:MOST_MISJUDGED]:
        tried = one.tried[kind]
        lines.append(f"    {_finding(kind, tried)}: {tried.text!r:.80}: {tried.said}")
    if also := one.misjudged[MOST_MISJUDGED:]:
        lines.append(f"    also: {', '.join(also)}")
    return lines


def _finding(kind: str, tried: TriedAnswer) -> str:
    if kind == READ:
        return "no other answer equals the reference"
    if kind != GOLD:
        return f"{kind} passes"
    return "the reference answer cannot be judged" if tried.error is not None else "the reference answer fails"


def _closing(results: _Results) -> list[str]:
    failing, total = results.failing, len(results.tasks)
    lines = []
    with_gold = [one for one in results.tasks if one.tried[GOLD].error is None]
    if errors := sum(one.tried[kind].error is not None for one in with_gold for kind in one.tried):
        lines.append(f"{errors} answers that must fail got no verdict: a run leaves such attempts out, it gives no 0")
    if failing:
        return [*lines, f"{len(failing)} of {total} tasks fail"]
    return [*lines, f"all {total} tasks are judged rightly"]


def _counts(results: _Results) -> dict[str, dict[str, int]]:
    """By kind of answer: how many pass, fail and get no verdict, and how often that is wrong."""
    seen = {kind for one in results.tasks for kind in one.tried}
    counts = {kind: {"pass": 0, "fail": 0, "error": 0, "wrong": 0} for kind in KINDS if kind in seen}
    for one in results.tasks:
        misjudged = one.misjudged
        for kind, tried in one.tried.items():
            passes = tried.right if kind in MUST_PASS else kind in misjudged
            outcome = "error" if tried.error is not None else "pass" if passes else "fail"
            counts[kind][outcome] += 1
            counts[kind]["wrong"] += kind in misjudged
    return counts


def _to_json(conf: Path, results: _Results) -> dict[str, Any]:
    return {
        "conf": str(conf),
        "tasks": len(results.tasks),
        "failing": len(results.failing),
        "judges": [
            {"judge": judged.title, "tasks": len(done), "written_as": wording} for judged, wording, done in results.done
        ],
        "left_out": [
            {"why": why, "tasks": [{"task_id": task.task_id, "place": _place(task)} for task in of]}
            for why, of in results.left_out
        ],
        "answers": _counts(results),
        "failures": [
            {
                "task_id": one.task.task_id,
                "place": _place(one.task),
                "kind": kind,
                "answer": tried.text,
                "reference": one.task.answer,
                "reward": None if tried.verdict is None else tried.verdict.reward,
                "passed": None if tried.verdict is None else tried.verdict.passed,
                "said": tried.said,
            }
            for one in results.failing
            for kind, tried in ((kind, one.tried[kind]) for kind in one.misjudged)
        ],
    }


def _count(of: Sequence[object]) -> str:
    return f"{len(of):,} task{'s' * (len(of) != 1)}"

"""`astune check-tasks`: does the judge know right from wrong, for every task of a data set?"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from astune.check_tasks.check import (
    ALWAYS,
    GOLD,
    KINDS,
    MUST_PASS,
    READ,
    Bench,
    CheckedTask,
    Opinion,
    Probes,
    benches,
    check_bench,
    probes,
)
from astune.check_tasks.wordings import IN_A_FORMAT
from astune.config.load import load_config
from astune.config.rules import ASKS_MODELS
from astune.config.schema import AstuneConfig
from astune.errors import ConfigError, TaskError
from astune.support.terminal import Console
from astune.support.visible import tell
from astune.task_judge import Scorers
from astune.task_judge.registry import import_registered
from astune.task_reader.task_reader_base import SPLITS, Split
from astune.task_reader.task_sets import read_task_sets
from astune.training.environment_service import environment_service
from astune.types import Task

MOST_SHOWN = 20
"""Tasks that fail, one by one; --json has all."""
MOST_FAULTS = 5
"""Answers to one of them; further ones are only named."""


@dataclass
class _Check:
    """What was found of the tasks of a data set."""

    done: list[tuple[Bench, str, list[CheckedTask]]] = field(default_factory=list)
    left_out: list[tuple[str, list[Task]]] = field(default_factory=list)
    """Why tasks were not checked, and which."""

    @property
    def tasks(self) -> list[CheckedTask]:
        return list(chain.from_iterable(tasks for _, _, tasks in self.done))

    @property
    def failing(self) -> list[CheckedTask]:
        return [one for one in self.tasks if one.faults]


def check_tasks(conf: Path, overrides: Sequence[str], split: str, limit: int | None, as_json: bool) -> int:
    """Prints what the judges say of right answers and of answers that are none; 1 if they are wrong about one. What the
    user's own code prints goes to standard error."""
    if limit is not None and limit < 1:
        raise ConfigError(f"--limit: expected a whole number from 1, found {limit}")
    config = load_config(conf, overrides, for_run=False).config.astune
    check = _Check()
    with redirect_stdout(sys.stderr), environment_service(config) as config:
        tasks = _read(config, [each for each in SPLITS if split in (each, "all")], limit)
        specs = {*(part.judge for part in config.task_judge.judges), *Scorers(config.task_judge).specs(tasks)}
        import_registered(specs, config.rollout.agentscope_learn_protocol)
        chosen = _choose(benches(tasks, config.task_judge), tasks, check)
        tried = [probes(bench) for bench in chosen]
        for line in _announced(chosen, tried):
            tell(line, file=sys.stderr)
        asyncio.run(_run(chosen, tried, check))
    if as_json:
        tell(json.dumps(_to_json(conf, check), indent=2, ensure_ascii=False))
    else:
        tell("\n".join(_report(check)))
    return 1 if check.failing else 0


def _read(config: AstuneConfig, splits: Sequence[Split], limit: int | None) -> list[Task]:
    sets = read_task_sets(config.task_reader)
    found = [task for split in splits for task in sets.of(split)[:limit]]
    if not found:
        raise TaskError(f"there are no tasks in {' and '.join(splits)}: nothing to check")
    return found


def _place(task: Task) -> str:
    return task.place.removeprefix(f"{Path.cwd()}/") or f"task {task.task_id!r}"


def _choose(found: Sequence[Bench], tasks: Sequence[Task], check: _Check) -> list[Bench]:
    """The judges with the tasks that can be checked. Raises ConfigError if there are none."""
    chosen = []
    judged = {id(task) for bench in found for task in bench.tasks}
    if nobody := [task for task in tasks if id(task) not in judged]:
        check.left_out.append(("there is no judge: the workflow returns the reward itself", nobody))
    for bench in found:
        if not bench.by_the_answer:
            check.left_out.append((f"{bench.title} judges what an agent does, not its answer alone", [*bench.tasks]))
            continue
        needs = bool(IN_A_FORMAT.intersection(bench.names))
        with_answer = [task for task in bench.tasks if needs or (task.answer or "").strip()]
        if len(with_answer) < len(bench.tasks):
            without = [task for task in bench.tasks if not (task.answer or "").strip()]
            check.left_out.append(("there is no reference answer", without))
        if with_answer:
            chosen.append(Bench(bench.judge, bench.config, with_answer))
    if not chosen:
        raise ConfigError(
            "nothing can be checked: " + "; ".join(f"{why} ({len(of)} tasks)" for why, of in check.left_out)
        )
    return chosen


def _announced(chosen: Sequence[Bench], tried: Sequence[Probes]) -> list[str]:
    """What it may cost."""
    return [
        f"{bench.title} asks models: up to {_calls(bench, of):,} calls for {_count(bench.tasks)}, less what the cache "
        "has; --limit N takes fewer tasks"
        for bench, of in zip(chosen, tried, strict=True)
        if bench.asks_models
    ]


def _answers(bench: Bench, tried: Probes) -> int:
    return len(bench.tasks) * len(ALWAYS) + sum(map(len, tried))


def _calls(bench: Bench, tried: Probes) -> int:
    """An answer is compared with the reference in both orders where attempts are compared. Replies that are no JSON are
    asked for once more on top, as in a run."""
    compares = bench.config.llm.mode != "pointwise"
    asking = sum(2 if name == "LlmAsJudge" and compares else 1 for name in bench.names if name in ASKS_MODELS)
    return _answers(bench, tried) * bench.config.llm.votes * asking


async def _run(chosen: Sequence[Bench], tried: Sequence[Probes], check: _Check) -> None:
    console = Console(stderr=True)
    columns = (TextColumn("judging"), BarColumn(), MofNCompleteColumn(), TextColumn("answers"))
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task("", total=sum(map(_answers, chosen, tried)))
        for bench, of in zip(chosen, tried, strict=True):
            done, wording = await check_bench(bench, lambda: progress.advance(bar), of)
            check.done.append((bench, wording, done))


def _report(check: _Check) -> list[str]:
    lines = []
    for bench, wording, done in check.done:
        written = "as they are" if wording == "{}" else f"as in {wording.format('42')}"
        lines.append(f"{bench.title.replace(f'{Path.cwd()}/', '')}: {_count(done)}, answers written {written}")
    lines += [f"left out: {_count(of)}: {why}" for why, of in check.left_out]
    lines += ["", f"{'':<24}{'passes':>8}{'fails':>8}{'no verdict':>12}"]
    for kind, counts in _counts(check).items():
        mark = "   <- should pass" if kind in MUST_PASS else "   <- should fail"
        wrong = counts["wrong"]
        lines.append(f"{kind:<24}{counts['pass']:>8}{counts['fail']:>8}{counts['error']:>12}{mark if wrong else ''}")
    if untried := [kind for kind in KINDS if kind not in _counts(check)]:
        lines.append(f"not tried, as no task has a reference that suits: {', '.join(untried)}")
    failing = check.failing
    if failing:
        lines.append("")
    for one in failing[:MOST_SHOWN]:
        lines += _shown(one)
    if len(failing) > MOST_SHOWN:
        lines.append(f"... {len(failing) - MOST_SHOWN} more (all with --json)")
    lines.append("")
    lines += _closing(check)
    return lines


def _shown(one: CheckedTask) -> list[str]:
    lines = [f"{_place(one.task)}  task {one.task.task_id!r}, reference {one.task.answer!r:.60}"]
    for kind in one.faults[:MOST_FAULTS]:
        opinion = one.opinions[kind]
        lines.append(f"    {_fault(kind, opinion)}: {_short(opinion.text)}: {opinion.said}")
    if also := one.faults[MOST_FAULTS:]:
        lines.append(f"    also: {', '.join(also)}")
    return lines


def _fault(kind: str, opinion: Opinion) -> str:
    if kind == READ:
        return "no other answer equals the reference"
    if kind != GOLD:
        return f"{kind} passes"
    return "the reference answer cannot be judged" if opinion.error is not None else "the reference answer fails"


def _short(text: str | None) -> str:
    return f"{text!r:.80}"


def _closing(check: _Check) -> list[str]:
    failing, total = check.failing, len(check.tasks)
    lines = []
    judged = [one for one in check.tasks if one.opinions[GOLD].error is None]
    if errors := sum(one.opinions[kind].error is not None for one in judged for kind in one.opinions):
        lines.append(f"{errors} answers that must fail got no verdict: a run leaves such attempts out, it gives no 0")
    if failing:
        return [*lines, f"{len(failing)} of {total} tasks fail"]
    return [*lines, f"all {total} tasks are judged rightly"]


def _counts(check: _Check) -> dict[str, dict[str, int]]:
    """By kind of answer: how many pass, fail and get no verdict, and how often that is wrong."""
    seen = {kind for one in check.tasks for kind in one.opinions}
    counts = {kind: {"pass": 0, "fail": 0, "error": 0, "wrong": 0} for kind in KINDS if kind in seen}
    for one in check.tasks:
        faults = one.faults
        for kind, opinion in one.opinions.items():
            passes = opinion.right if kind in MUST_PASS else kind in faults
            outcome = "error" if opinion.error is not None else "pass" if passes else "fail"
            counts[kind][outcome] += 1
            counts[kind]["wrong"] += kind in faults
    return counts


def _to_json(conf: Path, check: _Check) -> dict[str, Any]:
    return {
        "conf": str(conf),
        "tasks": len(check.tasks),
        "failing": len(check.failing),
        "judges": [
            {"judge": bench.title, "tasks": len(done), "written_as": wording} for bench, wording, done in check.done
        ],
        "left_out": [
            {"why": why, "tasks": [{"task_id": task.task_id, "place": _place(task)} for task in of]}
            for why, of in check.left_out
        ],
        "answers": _counts(check),
        "failures": [
            {
                "task_id": one.task.task_id,
                "place": _place(one.task),
                "kind": kind,
                "answer": opinion.text,
                "reference": one.task.answer,
                "reward": None if opinion.verdict is None else opinion.verdict.reward,
                "passed": None if opinion.verdict is None else opinion.verdict.passed,
                "said": opinion.said,
            }
            for one in check.failing
            for kind, opinion in ((kind, one.opinions[kind]) for kind in one.faults)
        ],
    }


def _count(of: Sequence[object]) -> str:
    return f"{len(of):,} task{'s' * (len(of) != 1)}"

"""Can all tasks be read, and are they ones that can be learned from?"""

from __future__ import annotations

import json
import re
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path

from astune.config.tasks import FieldsConfig
from astune.doctor.findings import Finding, fail, ok, skip, warn
from astune.doctor.hub import has_data_set, is_hub_id, is_reachable
from astune.doctor.packages import how_to_install
from astune.doctor.patient import Patient, PlacedTask, Split
from astune.errors import AstuneError, MissingDependency, TaskError
from astune.task_reader import make_reader
from astune.task_reader.jsonl import numbered_lines, parse_line
from astune.task_reader.rows import Row, tasks_from_rows
from astune.types import Task

MOST_SHOWN = 5
"""Bad lines of one file that are shown one by one."""
FEW = 10
_PLACED = re.compile(r"(?P<place>\d+(:\d+)?): (?P<what>.*)", re.DOTALL)
SPLITS: tuple[Split, ...] = ("training", "validation")


def check_tasks(patient: Patient) -> Iterator[Finding]:
    reader = patient.config.task_reader
    data_set = reader.huggingface.dataset_path or ""
    if reader.type == "huggingface" and is_hub_id(data_set) and (patient.offline or not is_reachable()):
        said = f"the data set {data_set} is on the Hugging Face hub, "
        if patient.offline:
            yield skip(f"{said}and this is --offline")
            return
        if not has_data_set(data_set):
            mend = "connect to the hub once, or name a local copy: a folder of parquet or JSON Lines files"
            where = patient.where("astune.task_reader.huggingface.dataset_path")
            yield fail(f"{said}which cannot be reached, and not on this machine", where=where, mend=mend)
            return
    tasks: dict[Split, Sequence[PlacedTask]] = {}
    for split in SPLITS:
        tasks[split] = yield from _read(patient, split)
    if not any(tasks.values()):
        return
    patient.tasks = tasks
    for split, placed in tasks.items():
        yield from _repeated(split, placed)
    yield from _shared(tasks["training"], tasks["validation"])
    yield from _answers(patient, [*tasks["training"], *tasks["validation"]])
    if 0 < len(tasks["training"]) < FEW:
        yield warn(
            f"{len(tasks['training'])} training tasks: the agent will learn them by heart",
            where=_file(patient, "training"),
            mend="collect more; a hundred is a good start, and hold some back for evaluation",
        )
    yield ok(f"{len(tasks['training'])} training tasks, {len(tasks['validation'])} held out")


def _file(patient: Patient, split: Split) -> str:
    return patient.where(
        {
            "jsonl": f"astune.task_reader.jsonl.{split}.file_path",
            "huggingface": f"astune.task_reader.huggingface.{split}_split",
        }.get(patient.config.task_reader.type, "astune.task_reader.type")
    )


def _read(patient: Patient, split: Split) -> Generator[Finding, None, Sequence[PlacedTask]]:
    """The tasks of a split with their places, all that can be read."""
    config = patient.config.task_reader
    path = (config.jsonl.training if split == "training" else config.jsonl.validation).file_path
    limit = config.max_training_tasks if split == "training" else config.max_validation_tasks
    try:
        if config.type == "jsonl" and path is not None:
            return (yield from _read_jsonl(Path(path), config.fields, limit, _file(patient, split)))
        return [PlacedTask(task, f"{split} task {task.task_id!r}") for task in make_reader(config).read(split)]
    except MissingDependency as error:
        yield fail(str(error), where=patient.where("astune.task_reader.type"), mend='pip install "astune[huggingface]"')
    except AstuneError as error:
        mend = how_to_install(str(error)) or "correct what astune.task_reader names, or the data itself"
        yield fail(str(error), where=_file(patient, split), mend=mend)
    return []


def _read_jsonl(
    path: Path, fields: FieldsConfig, limit: int | None, where: str
) -> Generator[Finding, None, Sequence[PlacedTask]]:
    if path.suffix in (".csv", ".parquet") and path.is_file():
        mend = "set astune.task_reader.type to huggingface, and astune.task_reader.huggingface.dataset_path to the file"
        yield fail(f"{path} is no JSON Lines file", where=where, mend=mend)
        return []
    rows: list[tuple[str, Row]] = []
    problems: list[str] = []
    try:
        for place, line in numbered_lines(path):
            try:
                row = parse_line(line, place)
                tasks_from_rows([(place, row)], fields)
                rows.append((place, row))
            except TaskError as error:
                problems.append(str(error))
            if limit is not None and len(rows) + len(problems) >= limit:
                break
    except TaskError as error:
        yield fail(
            str(error), where=where, mend="correct the path; a relative one is meant from the file that names it"
        )
        return []
    tasks, repeated = _with_unique_ids(rows, fields)
    for problem in [*problems, *repeated][:MOST_SHOWN]:
        found = _PLACED.match(problem, len(f"{path}:"))
        assert found, "problems of a file begin with its path and the number of the line"
        yield fail(found["what"], where=f"{path}:{found['place']}", mend=_mend(found["what"]))
    if (more := len(problems) + len(repeated) - MOST_SHOWN) > 0:
        yield fail(f"{more} more lines like these", where=str(path), mend="mend them too: a run stops at the first")
    if not rows and not problems:
        yield fail(
            "the file is empty", where=str(path), mend='write one JSON object per line: {"query": ..., "answer": ...}'
        )
    return tasks


def _with_unique_ids(rows: list[tuple[str, Row]], fields: FieldsConfig) -> tuple[list[PlacedTask], list[str]]:
    """The tasks of good rows, and what is to be said of rows whose id was used before."""
    repeated: list[str] = []
    while True:
        try:
            tasks = tasks_from_rows(rows, fields)
            return [PlacedTask(task, place) for task, (place, _) in zip(tasks, rows, strict=True)], repeated
        except TaskError as error:
            repeated.append(str(error))
            rows = [(place, row) for place, row in rows if not repeated[-1].startswith(f"{place}: ")]


def _mend(problem: str) -> str:
    if "already used" in problem:
        return "give each task an id of its own, or leave the ids out: they are then made from the content"
    if "JSON" in problem or "an object" in problem or "UTF-8" in problem:
        return "correct the line: each holds one whole JSON object, in UTF-8"
    if "is empty" in problem:
        return "write the question, or take the line out"
    if "no query" in problem or "no column" in problem:
        return "add the field, or name its column with astune.task_reader.fields"
    return "correct the line"


def _question(task: Task) -> str:
    return json.dumps([" ".join(task.query.split()).casefold(), *map(str, task.messages)])


def _repeated(split: Split, placed: Sequence[PlacedTask]) -> Iterator[Finding]:
    first: dict[str, str] = {}
    again = [
        (one.place, before)
        for one in placed
        if (before := first.setdefault(_question(one.task), one.place)) != one.place
    ]
    if again:
        yield warn(
            f"{len(again)} of {len(placed)} {split} tasks repeat another's question, the first that of {again[0][1]}",
            where=again[0][0],
            mend="take the repeated lines out: they count double",
        )


def _shared(training: Sequence[PlacedTask], validation: Sequence[PlacedTask]) -> Iterator[Finding]:
    trained = {_question(one.task): one.place for one in training}
    shared = [(one.place, trained[question]) for one in validation if (question := _question(one.task)) in trained]
    if shared:
        yield warn(
            f"{len(shared)} of {len(validation)} held-out tasks are trained on too, the first as {shared[0][1]}: the "
            "evaluation would show memory, not skill",
            where=shared[0][0],
            mend="take them out of one of the two files",
        )


def _answers(patient: Patient, placed: Sequence[PlacedTask]) -> Iterator[Finding]:
    without = [one for one in placed if one.task.answer is None or not one.task.answer.strip()]
    if not without:
        return
    task = without[0].task
    columns = ", ".join(task.metadata) or "none"
    mend = f"name their column with astune.task_reader.fields.answer; the first of these tasks has {columns}"
    said = f"{len(without)} of {len(placed)} tasks have no reference answer"
    if patient.config.task_judge.judge_protocol == "MathAnswerAsJudge":
        yield fail(f"{said}, which MathAnswerAsJudge compares with", where=without[0].place, mend=mend)
    elif len(without) < len(placed):
        yield warn(f"{said}, the others do", where=without[0].place, mend=mend)

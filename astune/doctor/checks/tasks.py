"""Can all tasks be read, and are they ones that can be learned from?"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Generator, Iterator, Sequence
from itertools import chain

from astune.clients.env_requests import Fault
from astune.clients.env_service import EnvInstance, EnvServiceClient
from astune.config.rules import plays_episodes
from astune.config.tasks import EnvServiceConfig
from astune.doctor.checked_config import CheckedConfig
from astune.doctor.checks.packages import how_to_install
from astune.doctor.findings import Finding, fail, ok, skip, warn
from astune.doctor.hub import has_data_set, is_hub_id, is_reachable
from astune.errors import AstuneError
from astune.rollout.environment import check_environments
from astune.task_reader.held_out import question_number, world_of
from astune.task_reader.task_reader_base import Split
from astune.task_reader.task_sets import TaskSets, forgiving, read_task_sets
from astune.training.held_out import evaluations_of
from astune.types import Task

MOST_SHOWN = 5
"""Bad lines of one file that are shown one by one."""
FEW = 10
MOST_ROOMS = 16
"""Instances that are made to see whether the service has room for them."""


def check_tasks(checked: CheckedConfig) -> Iterator[Finding]:
    reader = checked.config.task_reader
    data_set = reader.huggingface.dataset_path or ""
    if reader.type == "huggingface" and is_hub_id(data_set) and (checked.offline or not is_reachable()):
        said = f"the data set {data_set} is on the Hugging Face hub, "
        if checked.offline:
            yield skip(f"{said}and this is --offline")
            return
        if not has_data_set(data_set):
            fix = "connect to the hub once, or name a local copy: a folder of parquet or JSON Lines files"
            where = checked.where("astune.task_reader.huggingface.dataset_path")
            yield fail(f"{said}which cannot be reached, and not on this machine", where=where, fix=fix)
            return
    sets = yield from _read(checked)
    if sets is None:
        return
    training, validation = list(sets.training), list(sets.held_out)
    trains = plays_episodes(checked.config)
    if not trains:  # tasks are there to evaluate on; what is read of the others is read by the run too
        training, validation = [], [*validation, *chain.from_iterable(sets.named.values())]
    if not training and not validation:
        return
    checked.tasks = {"training": training, "validation": validation}
    checked.evaluations = evaluations_of(checked.config.evaluation, sets)
    yield from _find_repeated("training", training)
    yield from _find_repeated("validation", validation)
    yield from _answers(checked, [*training, *validation])
    if 0 < len(training) < FEW:
        yield warn(
            f"{len(training)} training tasks: the agent will learn them by heart",
            where=_source(checked, "training"),
            fix="collect more; a hundred is a good start, and hold some back for evaluation",
        )
    try:
        check_environments([*training, *validation], reader.env_service)
    except AstuneError as error:
        yield fail(
            str(error),
            where=checked.where("astune.task_reader.env_service.env_url"),
            fix="set one of the two, or take the field env_type out of the tasks",
        )
    named = "".join(f", {len(tasks)} in the held-out set {name!r}" for name, tasks in sets.named.items())
    if trains:
        yield from _find_room(checked, training)
        yield ok(f"{len(training)} training tasks, {len(validation)} held out{named}")
    else:
        yield ok(f"{len(validation)} held-out tasks, which evaluations play")


def _source(checked: CheckedConfig, split: Split) -> str:
    """The key that names where the tasks of a split are."""
    return checked.where(
        {
            "jsonl": f"astune.task_reader.jsonl.{split}.file_path",
            "huggingface": f"astune.task_reader.huggingface.{split}_split",
            "env_service": f"astune.task_reader.env_service.{split}_split",
            "reasoning_gym": f"astune.task_reader.reasoning_gym.{split}_tasks",
        }.get(checked.config.task_reader.type, "astune.task_reader.type")
    )


def _read(checked: CheckedConfig) -> Generator[Finding, None, TaskSets | None]:
    """All tasks that can be read, None if a source cannot."""
    try:
        checked.start_environment_service()
    except AstuneError as error:
        where = checked.where("astune.task_reader.env_service.serve")
        yield fail(str(error), where=where, fix=how_to_install(str(error)) or "fix what it says, or name another")
        return None
    config = checked.config.task_reader
    try:
        sets = read_task_sets(forgiving(config), named=checked.config.evaluation.sets)
    except AstuneError as error:
        yield _unreadable(checked, error)
        return None
    yield from _bad_records([*sets.training.skipped, *sets.held_out.skipped], stops=config.on_bad_record == "error")
    for said, setting in ((sets.repeated_ids, config.on_duplicate_id), (sets.overlap, config.on_overlap)):
        for warning in said:
            where, _, what = warning.partition(": ")
            finding = fail if setting == "error" else warn
            yield finding(what, where=where, fix=_fix_for(what))
    return sets


def _unreadable(checked: CheckedConfig, error: AstuneError) -> Finding:
    config = checked.config.task_reader
    held_out = config.jsonl.validation.file_path
    split: Split = "validation" if held_out is not None and held_out in str(error) else "training"
    fix = how_to_install(str(error)) or "correct what astune.task_reader names, or the data itself"
    if "file not found" in str(error):
        fix = "correct the path; a relative one is meant from the file that names it"
    return fail(str(error), where=_source(checked, split), fix=fix)


def _bad_records(problems: Sequence[str], *, stops: bool) -> Iterator[Finding]:
    finding = fail if stops else warn
    for problem in problems[:MOST_SHOWN]:
        where, _, what = problem.partition(": ")
        yield finding(what, where=where, fix=_fix_for(what))
    if (more := len(problems) - MOST_SHOWN) > 0:
        where = problems[MOST_SHOWN].partition(": ")[0]
        said = "a run stops at the first" if stops else "a run leaves them out"
        yield finding(f"{more} more records like these", where=where, fix=f"fix them too: {said}")


def _fix_for(problem: str) -> str:
    if "trained on too" in problem:
        return "take them out of one of the two, or set astune.task_reader.on_overlap to warn"
    if "already used" in problem:
        return "give each task an id of its own, or leave the ids out: they are then made from the content"
    if "JSON" in problem or "an object" in problem or "UTF-8" in problem:
        return "correct the line: each holds one whole JSON object, in UTF-8"
    if "is empty" in problem:
        return "write the question, or take the line out"
    if "no query" in problem or "no column" in problem:
        return "add the field, or name its column with astune.task_reader.fields"
    return "correct the line"


def _find_repeated(split: Split, tasks: Sequence[Task]) -> Iterator[Finding]:
    first: dict[int, Task] = {}
    again = [
        (task, before) for task in tasks if (before := first.setdefault(question_number(task, 0), task)) is not task
    ]
    if again:
        yield warn(
            f"{len(again)} of {len(tasks)} {split} tasks repeat another's question, the first that of "
            f"{again[0][1].place}",
            where=again[0][0].place,
            fix="take the repeated ones out: they count double",
        )


def _answers(checked: CheckedConfig, tasks: Sequence[Task]) -> Iterator[Finding]:
    without = [task for task in tasks if task.answer is None or not task.answer.strip()]
    if not without:
        return
    first = without[0]
    columns = ", ".join(first.metadata) or "none"
    fix = f"name their column with astune.task_reader.fields.answer; the first of these tasks has {columns}"
    said = f"{len(without)} of {len(tasks)} tasks have no reference answer"
    if checked.config.task_judge.judge_protocol == "MathAnswerAsJudge":
        yield fail(f"{said}, which MathAnswerAsJudge compares with", where=checked.place(first), fix=fix)
    elif len(without) < len(tasks):
        yield warn(f"{said}, the others do", where=checked.place(first), fix=fix)


def _find_room(checked: CheckedConfig, tasks: Sequence[Task]) -> Iterator[Finding]:
    """Make as many instances of a task as are played side by side, and say so where there is no room for them."""
    service, rollout = checked.config.task_reader.env_service, checked.config.rollout
    task = next((task for task in tasks if task.env_type is not None), None)
    wanted = min(rollout.num_repeat, rollout.max_concurrent, MOST_ROOMS)
    if task is None or service.env_url is None or wanted == 1:
        return
    room = asyncio.run(_count_rooms(service, task, wanted))
    if room < wanted:
        yield warn(
            f"the environment service has room for {room} of the {wanted} attempts at a task that are played side by "
            "side; the others wait for a free place, up to astune.task_reader.env_service.create_timeout",
            where=checked.where("astune.task_reader.env_service.create_timeout"),
            fix="give it more: `astune env serve --max-instances`, or the max_concurrent_envs of an OpenEnv server, "
            "which is 1 by default",
        )


async def _count_rooms(service: EnvServiceConfig, task: Task, wanted: int) -> int:
    """Count those that are not refused for want of room. Why one fails otherwise, the dry run says."""
    client = EnvServiceClient.of(service.model_copy(update={"create_timeout": 0.0, "retries": 0}))
    names = [f"doctor-{uuid.uuid4().hex}" for _ in range(wanted)]
    made = await asyncio.gather(
        *(client.create(task.env_type, world_of(task), name, service.params) for name in names), return_exceptions=True
    )
    await asyncio.gather(*(client.release(EnvInstance(client.url, name)) for name in names), return_exceptions=True)
    causes = [one.__cause__ for one in made if isinstance(one, BaseException)]
    return wanted - sum(isinstance(cause, Fault) and cause.status == 503 for cause in causes)

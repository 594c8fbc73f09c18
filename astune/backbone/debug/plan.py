"""Plan a debug run: which attempts at which tasks."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from difflib import get_close_matches
from itertools import islice
from pathlib import Path

from astune.config.schema import AstuneConfig
from astune.errors import TaskError
from astune.monitor.episode_filter import parse_filter
from astune.recordings.recording import Recording, read_recordings
from astune.task_reader.task_sets import stream_tasks
from astune.training.tasks import check_tasks
from astune.types import Task

REPLAY = "replay:"


@dataclass(frozen=True)
class Attempts:
    """The attempts at one task: None is a new one, a recording is played again."""

    task: Task
    recordings: tuple[Recording | None, ...]


def plan_attempts(config: AstuneConfig) -> list[Attempts]:
    """The attempts that `astune.debug` asks for. Raises TaskError if there are none."""
    if config.debug.model is not None and config.debug.model.startswith(REPLAY):
        return _read_recorded(Path(config.debug.model.removeprefix(REPLAY)), config.debug.filter)
    if config.debug.filter is not None:
        raise TaskError("astune.debug.filter chooses among recorded episodes: it needs --model replay:FILE")
    tasks = _take_by_id(config) if config.debug.tasks else _take_by_number(config)
    check_tasks(tasks, config)
    return [Attempts(task, (None,) * config.debug.num_repeat) for task in tasks]


def find_recorded_clock(config: AstuneConfig) -> datetime | None:
    """The clock of the recorded episodes that are to be played again, if there are any and it was kept with them."""
    if config.debug.model is None or not config.debug.model.startswith(REPLAY):
        return None
    first = next(read_recordings(Path(config.debug.model.removeprefix(REPLAY))), None)
    return None if first is None or first.config is None else first.config.astune.model.clock


def _take_by_number(config: AstuneConfig) -> list[Task]:
    """`astune.debug.num_tasks` tasks from number `index` on. Nothing after them is read."""
    debug = config.debug
    tasks = list(islice(stream_tasks(config.task_reader, debug.split), debug.index, debug.index + debug.num_tasks))
    if tasks:
        return tasks
    total = sum(1 for _ in stream_tasks(config.task_reader, debug.split))
    if not total:
        raise TaskError(f"astune.debug.split: there are no {debug.split} tasks; see astune.task_reader")
    raise TaskError(f"astune.debug.index: {debug.index} is too large; there are {total:,} {debug.split} tasks, from 0")


def _take_by_id(config: AstuneConfig) -> list[Task]:
    debug = config.debug
    known: list[str] = []
    wanted: dict[str, Task] = {}
    for task in stream_tasks(config.task_reader, debug.split):
        known.append(task.task_id)
        if task.task_id in debug.tasks:
            wanted[task.task_id] = task
    for task_id in debug.tasks:
        if task_id not in wanted:
            near = get_close_matches(task_id, known, n=5, cutoff=0.5) or known[:1]
            raise TaskError(
                f"astune.debug.tasks: there is no task {task_id!r} among the {len(known):,} {debug.split} tasks. "
                f"There is: {', '.join(near)}"
            )
    return [wanted[task_id] for task_id in debug.tasks]


def _read_recorded(path: Path, filter_text: str | None) -> list[Attempts]:
    """Read recorded episodes, and put the episodes of one group together."""
    wanted = None if filter_text is None else parse_filter(filter_text)
    groups: dict[tuple[int, str, str], list[Recording]] = {}
    count = 0
    for recording in read_recordings(path):
        count += 1
        if wanted is None or wanted(recording):
            place = (recording.step, recording.phase, recording.episode.task.task_id)
            groups.setdefault(place, []).append(recording)
    if not groups:
        raise TaskError(f"{path}: none of its {count:,} recorded episodes passes the filter {filter_text!r}")
    return [Attempts(group[0].episode.task, tuple(group)) for group in groups.values()]

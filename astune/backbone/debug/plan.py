"""Which attempts at which tasks a debug run makes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from astune.backbone.parts import read_tasks
from astune.config.schema import AstuneConfig
from astune.errors import TaskError
from astune.monitor.episode_filter import parse_filter
from astune.monitor.episodes import EpisodeRecord
from astune.monitor.recording import Recording, read_recordings
from astune.types import Task

REPLAY = "replay:"


@dataclass(frozen=True)
class Attempts:
    """The attempts at one task: None is a new one, a recording is played again."""

    task: Task
    recordings: tuple[Recording | None, ...]


def planned(config: AstuneConfig) -> list[Attempts]:
    """What `astune.debug` asks for. Raises TaskError if that is nothing."""
    if config.debug.model is not None and config.debug.model.startswith(REPLAY):
        return _recorded(Path(config.debug.model.removeprefix(REPLAY)), config.debug.filter)
    if config.debug.filter is not None:
        raise TaskError("astune.debug.filter chooses among recorded episodes: it needs --model replay:FILE")
    tasks = _chosen(read_tasks(config, config.debug.split), config)
    return [Attempts(task, (None,) * config.debug.num_repeat) for task in tasks]


def _chosen(tasks: Sequence[Task], config: AstuneConfig) -> Sequence[Task]:
    debug = config.debug
    if not tasks:
        raise TaskError(f"astune.debug.split: there are no {debug.split} tasks; see astune.task_reader")
    if debug.tasks:
        known = {task.task_id: task for task in tasks}
        for task_id in debug.tasks:
            if task_id not in known:
                near = get_close_matches(task_id, known, n=5, cutoff=0.5) or [tasks[0].task_id]
                raise TaskError(
                    f"astune.debug.tasks: there is no task {task_id!r} among the {len(tasks):,} {debug.split} tasks. "
                    f"There is: {', '.join(near)}"
                )
        return [known[task_id] for task_id in debug.tasks]
    if debug.index >= len(tasks):
        raise TaskError(
            f"astune.debug.index: {debug.index} is too large; there are {len(tasks):,} {debug.split} tasks, from 0"
        )
    return tasks[debug.index : debug.index + debug.num_tasks]


def _recorded(path: Path, filter_text: str | None) -> list[Attempts]:
    """Recorded episodes, those of one group together."""
    wanted = None if filter_text is None else parse_filter(filter_text)
    groups: dict[tuple[int, str, str], list[Recording]] = {}
    count = 0
    for recording in read_recordings(path):
        count += 1
        episode = recording.episode
        if wanted is None or wanted(EpisodeRecord(recording.step, recording.phase, episode)):
            groups.setdefault((recording.step, recording.phase, episode.task.task_id), []).append(recording)
    if not groups:
        raise TaskError(f"{path}: none of its {count:,} recorded episodes passes the filter {filter_text!r}")
    return [Attempts(group[0].episode.task, tuple(group)) for group in groups.values()]

"""The folder of a search: what is there already, and what is added."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from astune.errors import ConfigError
from astune.monitor.disk import write_whole, writing
from astune.monitor.episodes import EpisodeRecord, episode_from_row, episode_to_row, episodes_path, read_episodes
from astune.monitor.jsonl import keep_lines, read_lines
from astune.monitor.run_dir import RunDir
from astune.training.model_calls import keep_calls
from astune.types import Episode, Group, StopReason, Task

ABOUT, CANDIDATES, REFLECTIONS, RESULT = "search.json", "candidates.jsonl", "reflections.jsonl", "result.json"


@dataclass(frozen=True)
class SearchPlan:
    """What is searched, on what. `first` are the first texts, None until the workflow has asked for them."""

    search: Sequence[str]
    held_out: Sequence[str]
    attempts: int
    model: str
    first: Mapping[str, str] | None = None


class SearchRecord:
    """What a folder has of a search."""

    def __init__(self, run_dir: RunDir) -> None:
        self.run_dir = run_dir
        self._about = run_dir.path / ABOUT

    def begin(self, about: SearchPlan) -> SearchPlan:
        """Keep `about`, or give the one that is there. Raises ConfigError where that is of another search."""
        if not self._about.is_file():
            self.save_about(about)
            return about
        found = SearchPlan(**json.loads(self._about.read_text(encoding="utf-8")))
        for name in ("search", "held_out", "attempts", "model"):
            if getattr(found, name) != json.loads(json.dumps(getattr(about, name))):
                raise ConfigError(
                    f"{self.run_dir.path}: it was begun with another {name!r}, as its {ABOUT} says; give the tasks and "
                    "the model that it has, or start again without --resume"
                )
        return found

    def save_about(self, about: SearchPlan) -> None:
        self.write(ABOUT, asdict(about))

    def write(self, name: str, value: Any) -> None:
        path = self.run_dir.path / name
        with writing(path):
            write_whole(path, json.dumps(value, indent=1, ensure_ascii=False) + "\n")

    def reflections(self) -> dict[str, Mapping[str, Any]]:
        """The replies that are there, by their question."""
        path = self.run_dir.path / REFLECTIONS
        return {row["question"]: row for row in read_lines(path)} if path.is_file() else {}

    def forget(self, phase: str) -> None:
        self._path(phase).unlink(missing_ok=True)

    def drop_unfinished(self, attempts: int) -> None:
        """Drop the episodes and the calls of groups of which not all attempts are there: they are played again."""
        kept = set()
        for path in sorted(self.run_dir.episodes_dir.glob("*.jsonl")):
            names = [name.rpartition("/")[0] for name in self._names(path)]
            whole = {name for name in names if names.count(name) == attempts}
            keep_lines(path, lambda row, whole=whole: row["episode_id"].rpartition("/")[0] in whole)  # type: ignore[misc]
            kept |= whole
        keep_calls(self.run_dir.path, kept)

    def _names(self, path: Path) -> list[str]:
        """The names of the episodes that ended."""
        return [row["episode_id"] for row in read_lines(path) if row["stop_reason"] != StopReason.CANCELLED.value]

    def groups(self, phase: str, tasks: Sequence[Task]) -> dict[str, Group]:
        """The groups of a phase by task."""
        path = self._path(phase)
        found: dict[str, list[Episode]] = {}
        for record in read_episodes(path) if path.is_file() else ():
            found.setdefault(record.episode.task.task_id, []).append(replace(record.episode, timelines=()))
        return {task.task_id: _group(task, found[task.task_id]) for task in tasks if task.task_id in found}

    def _path(self, phase: str) -> Path:
        return episodes_path(self.run_dir.episodes_dir, phase)


def as_read(group: Group) -> Group:
    """A group that was just played as it will be read: what follows from it is then the same after a restart."""
    records = [EpisodeRecord(0, "", episode) for episode in group.episodes]
    rows = [json.loads(json.dumps(episode_to_row(record))) for record in records]
    return _group(group.task, [replace(episode_from_row(row).episode, timelines=()) for row in rows])


def _group(task: Task, episodes: Sequence[Episode]) -> Group:
    return Group(task, tuple(sorted(episodes, key=lambda one: int(one.episode_id.rpartition("/")[2]))))

"""The folder of a search: what is there already, and what is added."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from astune.errors import ConfigError
from astune.monitor.disk import write_whole, writing
from astune.monitor.episodes import episodes_path
from astune.monitor.jsonl import read_lines
from astune.monitor.run_dir import RunDir
from astune.training.standalone import read_attempts
from astune.types import Group, Task

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

    def groups(self, phase: str, tasks: Sequence[Task]) -> dict[str, Group]:
        """The groups of a phase by task."""
        found = read_attempts(self._path(phase), turns=True)
        return {task.task_id: Group(task, tuple(found[task.task_id])) for task in tasks if task.task_id in found}

    def _path(self, phase: str) -> Path:
        return episodes_path(self.run_dir.episodes_dir, phase)

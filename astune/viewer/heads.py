"""The heads of a run's episodes: what the pages need of each of them, without its turns and tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from astune.monitor.episodes import UNREADABLE, EpisodeRecord, episode_from_row, episodes_path
from astune.monitor.jsonl import line_error, read_lines
from astune.support.user_code import place_of

T = TypeVar("T")


@dataclass(frozen=True)
class Head:
    """The figures that are kept of every episode. `line` is its place in the file of its phase."""

    line: int
    step: int
    task_id: str
    reward: float | None
    passed: bool | None
    stop_reason: str
    error: str | None
    """Stage and kind, "workflow: KeyError"."""
    error_message: str
    error_place: str
    """`file:line` of the user's code, "" if none of it was involved."""
    metadata: Mapping[str, Any]
    undecided: bool = False

    @property
    def score(self) -> float | None:
        """Success where the judge has a notion of it, else the reward; None where there is neither."""
        if self.passed is None:
            return None if self.undecided else self.reward
        return float(self.passed)


def read_heads(run: Path, phase: str) -> list[Head]:
    path = episodes_path(run / "episodes", phase)
    return list(_each(path, head_of)) if path.exists() else []


def head_of(line: int, row: Mapping[str, Any]) -> Head:
    """The head of the episode that a line of an episode file holds."""
    error = row["error"] or {}
    return Head(
        line,
        row["step"],
        row["task_id"],
        row["reward"],
        row["passed"],
        row["stop_reason"],
        f"{error['stage']}: {error['kind']}" if error else None,
        error.get("message", ""),
        place_of(error.get("traceback", "")),
        row["task"]["metadata"],
        (row["verdict"] or {}).get("undecided", False),
    )


def read_records(run: Path, phase: str, heads: Iterable[Head]) -> dict[int, EpisodeRecord]:
    """The whole episodes of `heads` by line."""
    wanted = {head.line for head in heads}
    if not wanted:
        return {}
    path = episodes_path(run / "episodes", phase)
    found = _each(path, lambda line, row: (line, episode_from_row(row)) if line in wanted else None)
    return dict(one for one in found if one is not None)


def first_failures(run: Path, steps: Mapping[str, int]) -> dict[str, str]:
    """The message of the first failed call of each tool in the training step that `steps` names for it."""
    found: dict[str, str] = {}
    path = episodes_path(run / "episodes", "train")
    if not steps or not path.exists():
        return found
    for tools, step in _each(path, lambda line, row: (row.get("tools") or {}, row["step"])):
        for name, use in tools.items():
            if steps.get(name) == step and use["errors"]:
                found.setdefault(name, use["message"])
    return found


def _each(path: Path, made: Callable[[int, Mapping[str, Any]], T]) -> Iterator[T]:
    """Apply `made` to each line, counted from 0. Raises RunFolderError that names a line that is no episode."""
    for line, row in enumerate(read_lines(path)):
        try:
            yield made(line, row)
        except UNREADABLE as error:
            raise line_error(path, line + 1, f"not an episode ({type(error).__name__}: {error})") from error

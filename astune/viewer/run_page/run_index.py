"""An index of a run: the lines of `metrics.jsonl`, and the figures and the place of every episode.

Lines that cannot be read (a run that was killed, a disk that was full) are counted and left out, never fatal: the
viewer is what one opens when something went wrong.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from astune.monitor import EpisodeRecord, RunDir
from astune.monitor.episodes import episode_from_row
from astune.viewer.heads import Head, head_of


@dataclass(frozen=True)
class IndexedEpisode:
    """One episode: its head, its place in its file (bytes), and what the table shows and filters besides."""

    head: Head
    phase: str
    path: Path = field(repr=False)
    offset: int
    size: int
    episode_id: str
    query: str
    reference: str
    answer: str
    turns: int
    sampled: int
    """Tokens."""
    agents: tuple[str, ...]
    seconds: float | None


@dataclass(frozen=True)
class LeftOut:
    """A line that is no episode or no metrics, and why."""

    file: str
    line: int
    why: str


@dataclass(frozen=True)
class RunIndex:
    """`metrics` are pairs of line number, from 1, and row."""

    metrics: tuple[tuple[int, Mapping[str, Any]], ...]
    entries: tuple[IndexedEpisode, ...]
    left_out: tuple[LeftOut, ...]


def index_run(run: RunDir) -> RunIndex:
    """Reads every line once and keeps a few hundred bytes of each episode."""
    left_out: list[LeftOut] = []
    metrics = []
    for line, _, _, row in _read_rows(run.metrics_path, left_out):
        if isinstance(row.get("step"), int):
            metrics.append((line, row))
        else:
            left_out.append(LeftOut(run.metrics_path.name, line, "it has no step"))
    entries = []
    for path in sorted(run.episodes_dir.glob("*.jsonl"), key=lambda path: (path.name.startswith("eval_"), path.name)):
        for line, offset, size, row in _read_rows(path, left_out):
            try:
                entries.append(_entry(path, line, offset, size, row))
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                left_out.append(LeftOut(path.name, line, f"not an episode ({type(error).__name__}: {error})"))
    return RunIndex(tuple(metrics), tuple(entries), tuple(left_out))


def _read_rows(path: Path, left_out: list[LeftOut]) -> Iterator[tuple[int, int, int, dict[str, Any]]]:
    """Line number from 1, offset, size and object of every line that holds one."""
    if not path.exists():
        return
    offset = 0
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                row = json.loads(line)
            except ValueError as error:
                unfinished = not line.endswith(b"\n")
                why = "the line is unfinished" if unfinished else f"not JSON ({error})"
                left_out.append(LeftOut(path.name, number, why))
            else:
                if isinstance(row, dict):
                    yield number, offset, len(line), row
                else:
                    left_out.append(LeftOut(path.name, number, f"expected a JSON object, found {type(row).__name__}"))
            offset += len(line)


def _entry(path: Path, line: int, offset: int, size: int, row: Mapping[str, Any]) -> IndexedEpisode:
    spans = [span for timeline in row["timelines"] for span in timeline["spans"] if not span["shared"]]
    answer, seconds = row["answer"], row["metrics"].get("seconds")
    return IndexedEpisode(
        head_of(line, row),
        str(row["phase"]),
        path,
        offset,
        size,
        str(row["episode_id"]),
        str(row["task"]["query"]),
        row["task"]["answer"] or "",
        "" if answer is None else answer if isinstance(answer, str) else json.dumps(answer, ensure_ascii=False),
        len(row["turns"]),
        sum(span["stop"] - span["start"] for span in spans),
        tuple(dict.fromkeys(turn["agent"] for turn in row["turns"])),
        seconds,
    )


def read_episode(entry: IndexedEpisode) -> EpisodeRecord:
    """The whole episode."""
    with entry.path.open("rb") as file:
        file.seek(entry.offset)
        return episode_from_row(json.loads(file.read(entry.size)))

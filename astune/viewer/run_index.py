"""An index of a run: the lines of `metrics.jsonl`, and the figures and the place of every episode.

Lines that cannot be read (a run that was killed, a disk that was full) are counted and left out, never fatal: the
viewer is what one opens when something went wrong.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from sys import intern
from typing import Any

from astune.monitor import EpisodeRecord, RunDir
from astune.monitor.episodes import UNREADABLE, episode_from_row
from astune.support.user_code import place_of

CANDIDATES = "candidates.jsonl"
"""The file of a search, as `astune.prompts` describes it. Its package is not imported: it loads clients of APIs."""
MOST_OF_A_QUERY, MOST_OF_AN_ANSWER = 2000, 400
"""Characters that the table's search looks through. The whole texts stand in the episode."""


@dataclass(frozen=True, slots=True)
class IndexedEpisode:
    """One episode: its place in its file, `line` from 1, `offset` and `size` in bytes, and what pages tell of it but
    its turns and tokens."""

    path: Path = field(repr=False)
    line: int
    offset: int
    size: int
    episode_id: str
    step: int
    phase: str
    task_id: str
    query: str
    reference: str
    metadata: Mapping[str, Any]
    reward: float | None
    passed: bool | None
    undecided: bool
    stop_reason: str
    error: str | None
    """Stage and kind, "workflow: KeyError"."""
    error_message: str
    error_place: str
    """`file:line` of the user's code, "" if none of it was involved."""
    answer: str
    turns: int
    sampled: int
    """Tokens."""
    agents: tuple[str, ...]
    seconds: float | None
    failed_tools: Mapping[str, str]
    """By name of a tool of which calls failed the message of the first."""

    @property
    def score(self) -> float | None:
        """Success where the judge has a notion of it, else the reward; None where there is neither."""
        if self.passed is None:
            return None if self.undecided else self.reward
        return float(self.passed)


@dataclass(frozen=True)
class LeftOut:
    """A line that is no episode or no metrics, and why."""

    file: str
    line: int
    why: str


@dataclass(frozen=True)
class RunIndex:
    """`metrics` are pairs of line number, from 1, and row; `candidates` rows of a search for prompts."""

    metrics: tuple[tuple[int, Mapping[str, Any]], ...]
    entries: tuple[IndexedEpisode, ...]
    left_out: tuple[LeftOut, ...]
    candidates: tuple[Mapping[str, Any], ...] = ()

    def by_phase(self) -> defaultdict[str, list[IndexedEpisode]]:
        """The episodes of each phase, none of one that was not played."""
        phases: defaultdict[str, list[IndexedEpisode]] = defaultdict(list)
        for entry in self.entries:
            phases[entry.phase].append(entry)
        return phases


def index_run(run: RunDir) -> RunIndex:
    """Reads every line once and keeps a few hundred bytes of each episode; texts that many share stand once."""
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
                entries.append(_index_episode(path, line, offset, size, row))
            except UNREADABLE as error:
                left_out.append(LeftOut(path.name, line, f"not an episode ({type(error).__name__}: {error})"))
    candidates = [row for *_, row in _read_rows(run.path / CANDIDATES, left_out) if "candidate" in row]
    return RunIndex(tuple(metrics), tuple(entries), tuple(left_out), tuple(candidates))


def _read_rows(path: Path, left_out: list[LeftOut]) -> Iterator[tuple[int, int, int, dict[str, Any]]]:
    """Line number from 1, offset, size and object of every line that holds one."""
    if not path.exists():
        return
    offset = 0
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:
                unfinished = not line.endswith(b"\n")
                why = "the line is unfinished" if unfinished else f"not JSON ({error})"
                left_out.append(LeftOut(path.name, number, why))
            else:
                if isinstance(row, dict):
                    yield number, offset, len(line), row
                else:
                    left_out.append(LeftOut(path.name, number, f"expected a JSON object, found {type(row).__name__}"))
            offset += len(line)


def _index_episode(path: Path, line: int, offset: int, size: int, row: Mapping[str, Any]) -> IndexedEpisode:
    task, answer, error = row["task"], row["answer"], row["error"] or {}
    text = "" if answer is None else answer if isinstance(answer, str) else json.dumps(answer, ensure_ascii=False)
    spans = [span for timeline in row["timelines"] for span in timeline["spans"] if not span["shared"]]
    return IndexedEpisode(
        path=path,
        line=line,
        offset=offset,
        size=size,
        episode_id=str(row["episode_id"]),
        step=row["step"],
        phase=intern(str(row["phase"])),
        task_id=intern(row["task_id"]),
        query=intern(_cut(str(task["query"]), MOST_OF_A_QUERY)),
        reference=task["answer"] or "",
        metadata=task["metadata"],
        reward=row["reward"],
        passed=row["passed"],
        undecided=(row["verdict"] or {}).get("undecided", False),
        stop_reason=intern(row["stop_reason"]),
        error=f"{error['stage']}: {error['kind']}" if error else None,
        error_message=_cut(error.get("message", ""), MOST_OF_AN_ANSWER),
        error_place=place_of(error.get("traceback", "")),
        answer=_cut(text, MOST_OF_AN_ANSWER),
        turns=len(row["turns"]),
        sampled=sum(span["stop"] - span["start"] for span in spans),
        agents=tuple(dict.fromkeys(turn["agent"] for turn in row["turns"])),
        seconds=row["metrics"].get("seconds"),
        failed_tools={name: use["message"] for name, use in (row.get("tools") or {}).items() if use["errors"]},
    )


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def read_episode(entry: IndexedEpisode) -> EpisodeRecord:
    """The whole episode."""
    with entry.path.open("rb") as file:
        file.seek(entry.offset)
        return episode_from_row(json.loads(file.read(entry.size)))

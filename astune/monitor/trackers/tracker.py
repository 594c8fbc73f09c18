"""The base of all trackers, and what they are told."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from astune.config.monitor import MonitorConfig
from astune.monitor.jsonl import plain
from astune.types import Episode

MOST_CHARACTERS = 20_000
"""Of a message of an episode that a tracker gets."""


@dataclass(frozen=True)
class TrackedRun:
    """`id` is what `Tracker.start` gave when the run began, None where it begins now. `keys` are the values of its
    configuration by dotted key that are not the defaults."""

    project: str
    name: str
    folder: Path
    keys: Mapping[str, Any]
    id: str | None = None

    @property
    def known_id(self) -> str:
        """The id of the run there; a new one for a run that begins."""
        return self.id or secrets.token_hex(8)


@dataclass(frozen=True)
class ShownEpisode:
    """An episode as people look at it: `messages` are those of its last model call, and the answer to it."""

    task_id: str
    reward: float | None
    passed: bool | None
    stop_reason: str
    reason: str
    messages: Sequence[Mapping[str, Any]]

    @classmethod
    def of(cls, episode: Episode) -> ShownEpisode:
        messages = (*episode.turns[-1].messages, episode.turns[-1].response) if episode.turns else ()
        verdict = episode.verdict
        return cls(
            episode.task.task_id,
            episode.reward,
            None if verdict is None else verdict.passed,
            episode.stop_reason.value,
            "" if verdict is None else verdict.reason,
            [_cut(plain(message)) for message in messages],
        )

    def as_text(self) -> str:
        """Write the episode for a tracker that has neither traces nor tables."""
        head = f"{self.task_id}: reward {self.reward}, {self.stop_reason}"
        said = [f"[{message.get('role')}] {message.get('content')}" for message in self.messages]
        return "\n\n".join([head, *said, *([f"judge: {self.reason}"] if self.reason else [])])


class Tracker:
    """A place that the figures of a run are logged to. All calls but the first come from one thread that is its own, so
    it may wait for a network. What one raises is said once and never stops the run."""

    in_place: ClassVar[bool] = False
    """True where nothing waits for a network, and the calls may come from the run's own thread."""

    def __init__(self, config: MonitorConfig) -> None:
        self.config = config

    def start(self, run: TrackedRun) -> str | None:
        """Begin a run, or go on with the one that `run.id` names. Returns its id, which the run folder keeps."""

    def go_back(self, step: int) -> None:
        """Note that what was logged after `step` is done again. The later of two points of a step is the run's."""

    def log(self, step: int, values: Mapping[str, float], time: float) -> None:
        """Log the figures of a step, at `time` in seconds since 1970; values may be NaN or infinite."""
        raise NotImplementedError

    def show(self, step: int, phase: str, episodes: Sequence[ShownEpisode]) -> None:
        """Show episodes of a step; `phase` is "train" or, of an evaluation, as "eval/greedy"."""

    def finish(self, status: str) -> None:
        """End the run there. `status` is "completed", "interrupted" or "failed"."""


def _cut(message: Mapping[str, Any]) -> Mapping[str, Any]:
    content = message.get("content")
    if not isinstance(content, str) or len(content) <= MOST_CHARACTERS:
        return message
    return {**message, "content": f"{content[:MOST_CHARACTERS]}... ({len(content) - MOST_CHARACTERS} more characters)"}

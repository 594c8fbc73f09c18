"""What a run learns from in the place of an episode."""

from __future__ import annotations

from dataclasses import dataclass

from astune.types import Timeline


@dataclass(frozen=True)
class TrainingExample:
    """One row to imitate, or those of a preferred answer and of a rejected one, or of a good or a bad one. `place` is
    `file:line`."""

    rows: tuple[Timeline, ...]
    place: str
    liked: tuple[bool, ...] = (True,)
    """For each row whether it is of a good, or the preferred, answer."""

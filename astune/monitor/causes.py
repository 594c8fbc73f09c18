"""Causes for which episodes got no reward: each distinct one once, with its place and how often it was met.

causes = Causes()
new = causes.add(episode)      # the cause, if no episode before had it
causes.most                    # [(cause, 12), ...], most first
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from astune.support.user_code import place_of
from astune.types import Episode, StopReason

MOST_CHARACTERS = 300
"""Of a message that is shown."""
KEY_CHARACTERS = 80
"""Of a message that tells one cause from another, where there is no place in the user's code."""


@dataclass(frozen=True)
class Cause:
    """The reason for which an episode has no reward. `place` is `file:line` of the user's code, "" if none of it was
    involved; `message` is that of the first such episode, called `episode_id`."""

    stage: str
    kind: str
    message: str
    place: str
    episode_id: str

    @property
    def key(self) -> tuple[str, str, str]:
        """Equal for episodes that failed alike: numbers in a message are left out, as they are often the episode's
        own."""
        return self.stage, self.kind, self.place or re.sub(r"\d+", "#", self.message)[:KEY_CHARACTERS]

    def __str__(self) -> str:
        """In one line: `workflow: KeyError: 'price' (agent.py:12)`."""
        message = " ".join(self.message.split())
        if len(message) > MOST_CHARACTERS:
            message = f"{message[:MOST_CHARACTERS]}..."
        what = f"{self.stage}: {self.kind}: {message}".rstrip(": ")
        return f"{what} ({_shorten_place(self.place)})" if self.place else what


def _shorten_place(place: str) -> str:
    """The file as seen from the working directory, where it lies in it."""
    path = Path(place)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else place


def cause_of(episode: Episode) -> Cause | None:
    """None for an episode that was judged, and for one that was cut off with its run, or as it came late."""
    if episode.verdict is not None or episode.stop_reason in (StopReason.CANCELLED, StopReason.LATE):
        return None
    error = episode.error
    if error is None or episode.stop_reason not in (StopReason.ERROR, StopReason.TIMEOUT):
        return Cause("judge", "no verdict", "nobody judged the episode", "", episode.episode_id)
    return Cause(error.stage, error.kind, error.message, place_of(error.traceback), episode.episode_id)


class Causes:
    """The causes met so far."""

    def __init__(self) -> None:
        self._first: dict[tuple[str, str, str], Cause] = {}
        self._counts: dict[tuple[str, str, str], int] = {}

    def add(self, episode: Episode) -> Cause | None:
        """Counts the episode; its cause if it is the first of that kind."""
        cause = cause_of(episode)
        if cause is None:
            return None
        self._counts[cause.key] = self._counts.get(cause.key, 0) + 1
        return cause if self._first.setdefault(cause.key, cause) is cause else None

    @property
    def most(self) -> list[tuple[Cause, int]]:
        """Each cause and how many episodes had it, most first."""
        found = [(cause, self._counts[key]) for key, cause in self._first.items()]
        return sorted(found, key=lambda item: -item[1])

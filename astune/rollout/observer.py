"""Look on while an episode runs: what the debugger, replays and the doctor's dry run are made of."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from astune.context_tracker.sources import Source
from astune.context_tracker.tracker import ContextTracker
from astune.types import Episode, Task


class Observer:
    """Looks on while episodes run, and may answer in a model's place. By itself it does nothing: override what you
    want to see."""

    def source(self, name: str | None, source: Source) -> Source:
        """The model that answers in place of `source`: of the auxiliary model of that name, or of the policy (None)."""
        return source

    def started(self, episode_id: str, task: Task, tracker: ContextTracker, work: Coroutine[Any, Any, object]) -> None:
        """The workflow is about to run; `work` is its coroutine."""

    async def judging(self, episode: Episode) -> None:
        """The workflow is done; the verdict comes next, the workflow's own or the judge's."""

    def ended(self, episode: Episode) -> None:
        """The episode is over. It has its verdict, unless its group is judged at once later; one that was cancelled
        has what it got to."""

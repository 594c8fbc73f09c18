"""A run's look at each of its steps: does it go on though nothing is learned, or nothing can be judged?"""

from __future__ import annotations

from collections.abc import Mapping

from astune.errors import TrainingError
from astune.monitor.causes import Causes
from astune.monitor.nothing_learned import UNJUDGED, why_nothing
from astune.monitor.progress import Progress

PATIENCE = 3
"""Steps in a row without anything learned after which a run says so."""


class Learning:
    """Looks at each step of a run as it ends.

    learning.step_done(metrics)      # notes on the progress display why nothing is learned, or stops the run
    """

    def __init__(self, progress: Progress, max_unjudged_steps: int) -> None:
        """`max_unjudged_steps` is that of `astune.trainer`; 0 never stops."""
        self._progress, self._most = progress, max_unjudged_steps
        self._in_a_row = self._unjudged_in_a_row = 0

    def step_done(self, metrics: Mapping[str, float]) -> None:
        """Raises TrainingError after `max_unjudged_steps` in a row without a verdict."""
        why = why_nothing(metrics)
        self._in_a_row = 0 if why is None else self._in_a_row + 1
        self._unjudged_in_a_row = self._unjudged_in_a_row + 1 if why is UNJUDGED else 0
        if self._unjudged_in_a_row == self._most > 0:
            raise TrainingError(
                f"nothing could be judged in {self._most} steps in a row (astune.trainer.max_unjudged_steps)"
                f"{_most_often(self._progress.causes)}"
            )
        if why is not None and self._in_a_row == PATIENCE:
            self._progress.warn(f"nothing was learned in the last {PATIENCE} steps: {why}")


def _most_often(causes: Causes) -> str:
    return f"; most often {causes.most[0][0]}" if causes.most else ""

"""Whether a step taught the model anything, and why not: told from the line that it left in `metrics.jsonl`.

why_nothing(row)                # of one step; None if it trained
nothing_learned(rows)           # of a whole run; None if any step trained
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from astune.errors import TrainingError
from astune.monitor.causes import Causes
from astune.monitor.receipt import Metrics
from astune.monitor.words import LEFT_OUT

if TYPE_CHECKING:
    from astune.monitor.progress import Progress

PATIENCE = 3
"""Steps in a row without anything learned after which a run says so."""


@dataclass(frozen=True)
class Nothing:
    """Why nothing was learned: `reason` for programs, the rest for people."""

    reason: str
    what: str
    advice: str

    def __str__(self) -> str:
        return f"{self.what}: {self.advice}"


UNJUDGED = Nothing(
    "unjudged",
    "no episode was judged",
    "see the errors; `astune doctor` and --backbone=debug show one episode, call by call",
)
NO_CALLS = Nothing(
    "no_calls",
    "the workflow never called the model",
    "give the agent tuner.model(...), tuner.openai_client(...) or tuner.base_url(...) as its model",
)
ONE_ATTEMPT = Nothing(
    "one_attempt",
    "each task had one attempt, and attempts at a task are compared with each other",
    "raise astune.rollout.num_repeat",
)
ALL_WRONG = Nothing(
    "all_wrong",
    "no attempt at any task was successful",
    "easier tasks, a stronger model, or a judge that rewards a part; `astune check-tasks` tries the judge on the "
    "reference answers",
)
ALL_RIGHT = Nothing(
    "all_right", "every attempt at every task was successful", "harder tasks: the model can do these already"
)
EQUAL = Nothing(
    "no_signal",
    "all attempts at a task got the same reward",
    "raise astune.rollout.temperature or astune.rollout.num_repeat, take tasks of other difficulty, or let the judge "
    "tell better from worse",
)
SKIPPED = Nothing(
    "skipped_update",
    "the updates were thrown away, as their loss or gradient was no finite number",
    "lower astune.trainer.learning_rate, and look for rewards that are huge",
)
UNTRAINABLE = {
    "greedy": (
        "answers were drawn greedily",
        "take temperature=0 out of the agent's model options and of astune.rollout.temperature",
    ),
    "frozen": (
        "the agents are frozen",
        "give one agent at least tuner.model(name) as it is: without trainable=False and source=...",
    ),
    "inexact": (
        "the token ids of answers were made from text",
        "serve the model with an engine that returns token ids and log-probabilities, or set "
        "astune.rollout.allow_inexact",
    ),
    "no_logprobs": ("answers came without log-probabilities", "let the engine return log-probabilities"),
    "forced": (
        "another engine held the model to tool calls or JSON",
        "let the agent call its tools of its own accord, or use the policy instead of another engine",
    ),
}
"""By `Turn.excluded`: why no answer could be trained, and what to do."""


def why_nothing(row: Mapping[str, Any]) -> Nothing | None:
    """Why the step that left this line taught nothing; None if it did, or if the line is not of a step."""
    if row.get("tokens/trained") is None or row["tokens/trained"]:
        return None
    episodes = row.get("episodes/total") or 0
    if row.get("episodes/unjudged") == episodes:
        return UNJUDGED
    if not row.get("turns/total"):
        return NO_CALLS
    turns = {key.removeprefix(_TURNS): count or 0 for key, count in row.items() if key.startswith(_TURNS)}
    if turns and sum(turns.values()) == row["turns/total"]:  # whatever the rewards are
        return _untrainable(turns)
    skipped = row.get("tokens/dropped_skipped_update") or 0
    return SKIPPED if skipped > (row.get("tokens/dropped_no_signal") or 0) else _without_signal(row, episodes)


_TURNS = "turns/left_out_"


def _untrainable(turns: Mapping[str, float]) -> Nothing:
    """Why none of the step's turns could be trained: the commonest reason. Frozen agents are mostly meant to be so."""
    reason = max(turns, key=lambda name: (name != "frozen", turns[name]))
    why, advice = UNTRAINABLE.get(reason, (LEFT_OUT.get(reason, reason).rstrip("."), "see docs/runs.md"))
    return Nothing(reason, f"no answer could be trained, as {why}", advice)


def _without_signal(row: Mapping[str, Any], episodes: float) -> Nothing:
    groups = (row.get("groups/used") or 0) + (row.get("groups/no_signal") or 0)
    if episodes <= groups:
        return ONE_ATTEMPT
    known = {0.0: ALL_WRONG, 1.0: ALL_RIGHT}
    success = row.get("success/mean")
    return EQUAL if success is None else known.get(success, EQUAL)


def idle_steps(rows: Metrics) -> list[tuple[Nothing, int]]:
    """Why steps taught nothing and how many, most first."""
    reasons = [why_nothing(row) for row in rows]
    return Counter(reason for reason in reasons if reason is not None).most_common()


def nothing_learned(rows: Metrics) -> Nothing | None:
    """Why the run that left these lines learned nothing: the reason of most of its steps. None if any step trained, or
    there was none."""
    idle = idle_steps(rows)
    return None if not idle or any(row.get("tokens/trained") for row in rows) else idle[0][0]


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

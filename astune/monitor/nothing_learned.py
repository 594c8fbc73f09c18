"""Why a step, or a whole run, taught the model nothing: read off the line that each step leaves in `metrics.jsonl`.

why_nothing(row)                # of one step; None if it trained
nothing_learned(rows)           # of a whole run; None if any step trained
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from astune.monitor.receipt import Metrics
from astune.monitor.words import LEFT_OUT


@dataclass(frozen=True)
class Nothing:
    """A reason for which nothing was learned: `reason` for programs, the rest for people."""

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
    """The reason why the step that left this line taught nothing; None if it did teach, or the line is not of a
    step."""
    if row.get("tokens/trained") is None or row["tokens/trained"]:
        return None
    episodes = row.get("episodes/total") or 0
    if row.get("episodes/unjudged") == episodes:
        return UNJUDGED
    if not row.get("turns/total"):
        return NO_CALLS
    turns = {key.removeprefix(_TURNS): count or 0 for key, count in row.items() if key.startswith(_TURNS)}
    if turns and sum(turns.values()) == row["turns/total"]:  # whatever the rewards are
        # the commonest; frozen agents come last: they are meant so
        reason = max(turns, key=lambda name: (name != "frozen", turns[name]))
        why, advice = UNTRAINABLE.get(reason, (LEFT_OUT.get(reason, reason).rstrip("."), "see docs/runs.md"))
        return Nothing(reason, f"no answer could be trained, as {why}", advice)
    skipped = row.get("tokens/dropped_skipped_update") or 0
    return SKIPPED if skipped > (row.get("tokens/dropped_no_signal") or 0) else _without_signal(row, episodes)


_TURNS = "turns/left_out_"


def _without_signal(row: Mapping[str, Any], episodes: float) -> Nothing:
    groups = (row.get("groups/used") or 0) + (row.get("groups/no_signal") or 0)
    if episodes <= groups:
        return ONE_ATTEMPT
    known = {0.0: ALL_WRONG, 1.0: ALL_RIGHT}
    success = row.get("success/mean")
    return EQUAL if success is None else known.get(success, EQUAL)


def idle_steps(rows: Metrics) -> list[tuple[Nothing, int]]:
    """Each reason for which steps taught nothing and how many had it, most first."""
    reasons = [why_nothing(row) for row in rows]
    return Counter(reason for reason in reasons if reason is not None).most_common()


def nothing_learned(rows: Metrics) -> Nothing | None:
    """The reason why the run that left these lines learned nothing, which is that of most of its steps. None if any
    step trained, or there was none."""
    idle = idle_steps(rows)
    return None if not idle or any(row.get("tokens/trained") for row in rows) else idle[0][0]

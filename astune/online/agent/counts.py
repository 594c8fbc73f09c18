"""Counts of a runner and its outbox."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from astune.errors import name_error
from astune.online.agent.writes import DECISIONS


@dataclass
class CauseCounts:
    """Counts of failures by cause, with the last message of each. A cause is the type of an error or one of a few
    texts."""

    counts: Counter[str] = field(default_factory=Counter)
    last: dict[str, str] = field(default_factory=dict)

    def add(self, error: BaseException | str) -> None:
        name = error if isinstance(error, str) else type(error).__name__
        self.counts[name] += 1
        self.last[name] = error if isinstance(error, str) else name_error(error)[:500]

    @property
    def total(self) -> int:
        return sum(self.counts.values())


@dataclass(frozen=True)
class RunnerStats:
    """Counts since the start of a `TrainingRunner`.

    `requests` = not `selected` + `selected`; `runs` = `rewarded` + `unrewarded` + `without_replies` + all of `failed`
    + `timed_out` + `under_way` + `queued` + `unplayed`.
    """

    requests: int
    selected: int
    dropped: int
    """Selected requests for which the queue was full or the runner had stopped."""
    skipped: Mapping[str, int]
    """Selected requests that cannot be played again, by reason."""
    runs: int
    queued: int
    under_way: int
    unplayed: int
    """Runs that `stop` left undone."""
    rewarded: int
    unrewarded: int
    """Runs of which the reward function returned None."""
    without_replies: int
    """Runs in which the trained model was not asked."""
    timed_out: int
    failed: Mapping[str, int]
    trouble: Mapping[str, int]
    """Errors between production and the queue, such as those of a strategy, by type."""
    tool_calls: Mapping[str, int]
    """Tool calls of shadow runs by what was decided on them."""
    feedback_sent: int
    feedback_waiting: int
    feedback_refused: Mapping[str, int]
    feedback_lost: int
    commits: int
    commits_failed: Mapping[str, int]

    def __str__(self) -> str:
        said = [f"{self.requests} requests", f"{self.selected} selected", f"{self.runs} runs"]
        said += [f"{self.rewarded} rewarded", f"{self.feedback_sent} rewards sent", f"{self.commits} commits"]
        rest = {
            "dropped": self.dropped,
            "skipped": sum(self.skipped.values()),
            "unplayed": self.unplayed,
            "timed out": self.timed_out,
            "failed": sum(self.failed.values()),
            "unrewarded": self.unrewarded,
            "without replies": self.without_replies,
            "in trouble": sum(self.trouble.values()),
            "rewards waiting": self.feedback_waiting,
            "rewards refused": sum(self.feedback_refused.values()),
            "rewards lost": self.feedback_lost,
            "commits failed": sum(self.commits_failed.values()),
            "tool calls refused": self.tool_calls.get("refused", 0),
        }
        return ", ".join(said + [f"{count} {what}" for what, count in rest.items() if count])


class OutboxCounts(Protocol):
    """The counts that `RunnerStats` takes from an outbox."""

    sent: int
    lost: int
    refused: CauseCounts

    @property
    def waiting(self) -> int: ...


@dataclass
class RunnerCounts:
    """Running counts, of which `stats` makes a `RunnerStats`."""

    requests: int = 0
    selected: int = 0
    dropped: int = 0
    runs: int = 0
    under_way: int = 0
    unplayed: int = 0
    rewarded: int = 0
    unrewarded: int = 0
    without_replies: int = 0
    timed_out: int = 0
    commits: int = 0
    skipped: CauseCounts = field(default_factory=CauseCounts)
    failed: CauseCounts = field(default_factory=CauseCounts)
    trouble: CauseCounts = field(default_factory=CauseCounts)
    commits_failed: CauseCounts = field(default_factory=CauseCounts)
    tool_calls: CauseCounts = field(default_factory=CauseCounts)

    def stats(self, *, queued: int, outbox: OutboxCounts | None) -> RunnerStats:
        counted: dict[str, Any] = dict(vars(self))
        for name in ("skipped", "failed", "trouble", "commits_failed"):
            counted[name] = dict(counted[name].counts)
        counted["tool_calls"] = {fate: self.tool_calls.counts[fate] for fate in DECISIONS}
        return RunnerStats(
            queued=queued,
            feedback_sent=outbox.sent if outbox else 0,
            feedback_waiting=outbox.waiting if outbox else 0,
            feedback_refused=dict(outbox.refused.counts) if outbox else {},
            feedback_lost=outbox.lost if outbox else 0,
            **counted,
        )

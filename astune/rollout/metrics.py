"""Figures over many episodes, for the log. An episode without verdict is counted and left out of every mean."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence

from astune.rollout.player import PLAYED_AGAIN
from astune.rollout.verdict import FAILED
from astune.task_judge.judging_cost import judging_cost
from astune.types import Episode, Group, StopReason


def rollout_metrics(groups: Sequence[Group]) -> dict[str, float]:
    """Rewards, success, failures, stop reasons, turns and tokens. Means over nothing are left out, not 0."""
    episodes = [episode for group in groups for episode in group.episodes]
    turns = [turn for episode in episodes for turn in episode.turns]
    stops = Counter(episode.stop_reason for episode in episodes)
    metrics = {
        "episodes/total": float(len(episodes)),
        "episodes/failed": float(sum(episode.stop_reason in FAILED for episode in episodes)),
        "episodes/unjudged": float(sum(episode.verdict is None for episode in episodes)),
        "episodes/played_again": math.fsum(episode.metrics.get(PLAYED_AGAIN, 0.0) for episode in episodes),
        "calls/lost": math.fsum(episode.metrics.get("lost_calls", 0.0) for episode in episodes),
        **blocked_metrics(episodes),
        **tool_metrics(episodes),
        **late_metrics(episodes),
        "tokens/sampled": float(sum(len(turn.output_ids) for turn in turns)),
        "tokens/prompt": float(sum(len(turn.prompt_ids) for turn in turns)),
    }
    metrics |= {f"stop/{reason.value}": float(count) for reason, count in sorted(stops.items())}
    excluded = Counter(turn.excluded for turn in turns if turn.excluded is not None)
    metrics |= {f"turns/left_out_{reason}": float(count) for reason, count in sorted(excluded.items())}
    if episodes:
        metrics["turns/mean"] = len(turns) / len(episodes)
    return (
        metrics
        | judging_metrics("judging/", episodes)
        | _agent_metrics(episodes)
        | verdict_metrics(episodes)
        | _own_metrics(episodes)
    )


def blocked_metrics(episodes: Sequence[Episode]) -> dict[str, float]:
    """Seconds for which lines of the user's code kept the event loop from turning, by line and in all; nothing if none
    did."""
    lasted: Counter[str] = Counter()
    for episode in episodes:
        lasted.update({name: seconds for name, seconds in episode.metrics.items() if name.startswith("blocked/")})
    return {**lasted, "time/blocked": math.fsum(lasted.values())} if lasted else {}


def late_metrics(episodes: Sequence[Episode]) -> dict[str, float]:
    """How long the episodes are that were cut off as they came late, so far as they got, beside the others: what is
    learned from no longer has their kind. Nothing if none was."""
    late = [episode for episode in episodes if episode.stop_reason is StopReason.LATE]
    if not late:
        return {}
    others = [episode for episode in episodes if episode.stop_reason is not StopReason.LATE]
    return {
        f"{kind}/{name}": math.fsum(episode.metrics.get(key, 0.0) for episode in some) / len(some)
        for kind, some in (("late", late), ("in_time", others))
        for name, key in (("seconds", "seconds"), ("turns", "turns"), ("tokens", "output_tokens"))
        if some
    }


def tool_metrics(episodes: Sequence[Episode]) -> dict[str, float]:
    """Calls of each tool, and those that failed; nothing where no framework tells."""
    counts: Counter[str] = Counter()
    for episode in episodes:
        for name, use in episode.tools.items():
            counts[f"tools/calls/{name}"] += use.calls
            counts[f"tools/errors/{name}"] += use.errors
    return {name: float(count) for name, count in sorted(counts.items())}


def verdict_metrics(episodes: Sequence[Episode]) -> dict[str, float]:
    """Mean and spread of the rewards, share of successes, means of the judge's own figures."""
    verdicts = [episode.verdict for episode in episodes if episode.verdict is not None]
    rewards = [verdict.reward for verdict in verdicts]
    passed = [float(verdict.passed) for verdict in verdicts if verdict.passed is not None]
    metrics = {}
    if rewards:
        mean = math.fsum(rewards) / len(rewards)
        metrics["reward/mean"] = mean
        metrics["reward/std"] = math.sqrt(math.fsum((reward - mean) ** 2 for reward in rewards) / len(rewards))
    if passed:
        metrics["success/mean"] = math.fsum(passed) / len(passed)
    if undecided := sum(verdict.undecided for verdict in verdicts):
        metrics["episodes/undecided"] = undecided
    return metrics | _means("judge", [verdict.metrics for verdict in verdicts])


def judging_metrics(prefix: str, episodes: Sequence[Episode]) -> dict[str, float]:
    """Cost of the judges that ask other models; nothing if none does."""
    cost = judging_cost([episode.verdict for episode in episodes if episode.verdict is not None])
    return {f"{prefix}{name}": value for name, value in cost.items()}


def _agent_metrics(episodes: Sequence[Episode]) -> dict[str, float]:
    """Means of the rewards that agents got of their own, over the judged episodes in which they did."""
    return _means("agent_reward", [episode.agent_rewards for episode in episodes if episode.verdict is not None])


def _own_metrics(episodes: Sequence[Episode]) -> dict[str, float]:
    """Means of the figures that workflows return."""
    return _means("workflow", [episode.output.metrics for episode in episodes if episode.output is not None])


def _means(prefix: str, rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    columns: dict[str, list[float]] = {}
    for row in rows:
        for name, value in row.items():
            columns.setdefault(f"{prefix}/{name}", []).append(float(value))
    return {name: math.fsum(values) / len(values) for name, values in columns.items()}

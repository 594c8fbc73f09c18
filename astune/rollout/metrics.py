"""Figures over many episodes: of a training step, for the log, and of an evaluation, each with its interval and the
number of its tasks. An episode without verdict is counted and left out of every mean."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from astune.config.evaluation import FAMILIES, FIGURES, is_share
from astune.rollout.setup import PLAYED_AGAIN
from astune.rollout.verdict import FAILED
from astune.support.statistics import MeanOverTasks, estimate, pass_at_k
from astune.task_judge.judge_base import judging_cost
from astune.types import Episode, Group, StopReason, Turn


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
        **unread_metrics(turns),
        "calls/recovered": math.fsum(episode.metrics.get("recovered_calls", 0.0) for episode in episodes),
        **blocking_metrics(episodes),
        **tool_metrics(episodes),
        **cut_metrics(turns),
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
        | _means("agent_reward", [episode.agent_rewards for episode in episodes if episode.verdict is not None])
        | verdict_metrics(episodes)
        | _means("workflow", [episode.output.metrics for episode in episodes if episode.output is not None])
    )


def unread_metrics(turns: Sequence[Turn]) -> dict[str, float]:
    """Answers with call marks and no call, and those of them that a token limit cut off."""
    unread = [turn for turn in turns if turn.unread]
    cut = sum(turn.finish_reason == "length" for turn in unread)
    return {"calls/unread": float(len(unread)), "calls/unread_cut": float(cut)}


def cut_metrics(turns: Sequence[Turn]) -> dict[str, float]:
    """Cuts that the run made in conversations, and messages and tokens that they took out; nothing if there are
    none."""
    cuts = [(turn.cut, len(turn.prompt_ids)) for turn in turns if turn.cut is not None]
    if not cuts:
        return {}
    return {
        "context/cuts": float(len(cuts)),
        "context/messages": float(sum(cut.messages for cut, _ in cuts)),
        "context/tokens": float(sum(cut.prompt_tokens - prompt for cut, prompt in cuts)),
    }


def blocking_metrics(episodes: Sequence[Episode]) -> dict[str, float]:
    """Seconds for which lines of the user's code kept the event loop from turning, by line and in all; nothing if none
    did."""
    lasted: Counter[str] = Counter()
    for episode in episodes:
        lasted.update({name: seconds for name, seconds in episode.metrics.items() if name.startswith("blocked/")})
    return {**lasted, "time/blocked": math.fsum(lasted.values())} if lasted else {}


def late_metrics(episodes: Sequence[Episode]) -> dict[str, float]:
    """Mean length of the episodes that were cut off as too late, as far as they got, beside that of the others: only
    the others are learned from. Empty if none was cut off."""
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
    """Calls of each tool, those that failed, those with each cause, and the episodes in which it was offered."""
    counts: Counter[str] = Counter()
    for episode in episodes:
        counts.update(f"tools/offered/{name}" for name in episode.offered)
        for name, use in episode.tools.items():
            counts[f"tools/calls/{name}"] += use.calls
            counts[f"tools/errors/{name}"] += use.errors
            counts.update({f"tools/causes/{cause}/{name}": number for cause, number in use.causes.items()})
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


def _means(prefix: str, rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    columns: dict[str, list[float]] = {}
    for row in rows:
        for name, value in row.items():
            columns.setdefault(f"{prefix}/{name}", []).append(float(value))
    return {name: math.fsum(values) / len(values) for name, values in columns.items()}


_OF_EPISODE = {"turns": "turns", "tokens/prompt": "prompt_tokens", "tokens/sampled": "output_tokens"}
"""Figures that stand in `Episode.metrics`, and their names there."""


def evaluation_metrics(groups: Sequence[Group], seconds: float) -> dict[str, float]:
    """The figures of `figures_of` as a line of `metrics.jsonl` has them (see `name_ends`), and beside them `counts_of`
    and `seconds`."""
    return name_ends(figures_of(groups)) | counts_of(groups) | {"seconds": seconds}


def counts_of(groups: Sequence[Group]) -> dict[str, float]:
    """`tasks` and `attempts`, those that were played; `unjudged`, the attempts among them that have no verdict; what
    judging cost."""
    episodes = [episode for group in groups for episode in group.episodes]
    return {
        **judging_metrics("judging_", episodes),
        "tasks": float(len(groups)),
        "attempts": float(len(episodes)),
        "unjudged": float(sum(episode.verdict is None for episode in episodes)),
    }


def figures_of(groups: Sequence[Group]) -> dict[str, MeanOverTasks]:
    """Every figure of `values_by_task`, its mean over the tasks that have it with its interval."""
    return {
        figure: estimate(list(values.values()), share=is_share(figure))
        for figure, values in values_by_task(groups).items()
    }


def name_ends(figures: Mapping[str, MeanOverTasks]) -> dict[str, float]:
    """Each figure by its name, the ends of its interval as `<figure>_low` and `<figure>_high` where there is one, and
    the tasks that have it as `<figure>_tasks`. `monitor.summary.figures_in` reads them back. Where a judge calls a
    metric `risk` and another one `risk_low`, the name stands for the metric, and `risk` has no such end."""
    named: dict[str, float] = {}
    for figure, found in figures.items():
        named[figure] = found.mean
        if found.interval is not None:
            named[f"{figure}_low"], named[f"{figure}_high"] = found.interval
        named[f"{figure}_tasks"] = float(found.n)
    return named | {figure: found.mean for figure, found in figures.items()}


def values_by_task(groups: Sequence[Group]) -> dict[str, dict[str, float]]:
    """For each figure its value of each task that has it: the mean over the task's attempts that have it (see
    `attempt_figures`). A task with fewer judged attempts than k has no `pass_at_k`."""
    found: dict[str, dict[str, float]] = defaultdict(dict)
    tools = {name for group in groups for episode in group.episodes for name in episode.tools}
    for group in groups:
        values: dict[str, list[float]] = defaultdict(list)
        for episode in group.episodes:
            for figure, value in attempt_figures(episode, tools).items():
                values[figure].append(value)
        for figure, each in values.items():
            found[figure][group.task.task_id] = math.fsum(each) / len(each)
        passed, k = values["success"], 2
        while k <= len(passed):
            found[f"pass_at_{k}"][group.task.task_id] = pass_at_k(len(passed), round(sum(passed)), k)
            k *= 2
    return {figure: found[figure] for figure in sorted(found, key=_place)}


def attempt_figures(episode: Episode, tools: set[str]) -> dict[str, float]:
    """Figures of one attempt, under the names that a training step has for them: what its verdict says, the rewards of
    single agents, the workflow's own metrics, turns, tokens, and calls of `tools` with those that failed. None of an
    attempt without a verdict: it failed, or its judge could not tell. A tool that was offered and not called was called
    0 times, one of which no framework tells has no figure."""
    verdict = episode.verdict
    if verdict is None:
        return {}
    found = {"reward": verdict.reward}
    if verdict.passed is not None:
        found["success"] = float(verdict.passed)
    own = {} if episode.output is None else episode.output.metrics
    for family, given in (("judge/", verdict.metrics), ("agent_reward/", episode.agent_rewards), ("workflow/", own)):
        found |= {f"{family}{name}": float(value) for name, value in given.items()}
    found |= {figure: episode.metrics[name] for figure, name in _OF_EPISODE.items() if name in episode.metrics}
    if episode.tools or "tool_calls" in episode.metrics:
        uses = episode.tools.values()
        found["tools/calls"] = float(sum(use.calls for use in uses))
        found["tools/errors"] = float(sum(use.errors for use in uses))
        for name in tools:
            use = episode.tools.get(name)
            found[f"tools/calls/{name}"] = 0.0 if use is None else float(use.calls)
            found[f"tools/errors/{name}"] = 0.0 if use is None else float(use.errors)
    return found


def _place(figure: str) -> tuple[int, int, str]:
    """The place of a figure among the others: the judge's figures come first, then the costs."""
    if figure.startswith("pass_at_"):
        return 2, int(figure.removeprefix("pass_at_")), ""
    if figure in FIGURES:
        place = FIGURES.index(figure)
        return (place, 0, "") if place < 2 else (4, place, "")
    family = next(number for number, family in enumerate(FAMILIES) if figure.startswith(family))
    return (3, family, figure) if family < 3 else (5, family, figure)

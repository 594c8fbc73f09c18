"""The outcome of a commit for everything that it looked at, as rows and as figures."""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from astune.config.online import CommitConfig
from astune.online.store.learned import LearnedEpisode, LearnedTurn
from astune.online.training.commit_data import CommitData
from astune.online.training.learning import SHARE, CommitUpdates
from astune.online.training.plan import Item, Plan, RatedAnswers
from astune.online.training.weighing import authors_needed
from astune.types import Group

SKIPPED = "skipped_update"


@dataclass
class CommitOutcomes:
    """`episodes` are those that the commit is done with; what waits is not among them."""

    episodes: list[LearnedEpisode] = field(default_factory=list)
    used_feedback: list[int] = field(default_factory=list)
    unused_feedback: dict[str, list[int]] = field(default_factory=dict)
    waiting: Counter[str] = field(default_factory=Counter)
    """Counts of the others, which wait, by reason."""

    def keep_done(self, groups: Sequence[Group]) -> list[Group]:
        """The groups, less the episodes that wait."""
        done = {episode.episode_id for episode in self.episodes}
        return [
            replace(group, episodes=tuple(each for each in group.episodes if each.episode_id in done))
            for group in groups
        ]


def outcomes_of(
    plan: Plan, data: CommitData, done: CommitUpdates, commit: int, paths: Mapping[str, Sequence[str]]
) -> CommitOutcomes:
    """Invariant: an episode is trained, left out for a reason, or waits."""
    found = CommitOutcomes()
    trained = {sample.episode_id for sample in done.taken}
    undone = {sample.episode_id for sample in done.undone} - trained
    skipped = {sample.episode_id for sample in done.skipped} - trained
    for episode_id, item in data.items.items():
        if episode_id in undone:
            found.waiting[done.waits] += 1
            continue
        reason = None
        if episode_id not in trained:
            reason = SKIPPED if episode_id in skipped else data.left_out.get(episode_id, "no_signal")
        _note(found, episode_id, item, reason, paths)
    for number, (reason, item) in enumerate(plan.left_out):
        _note(found, f"commit-{commit}/left-{number}", item, reason, paths)
    return found


def _note(
    found: CommitOutcomes, episode_id: str, item: Item, reason: str | None, paths: Mapping[str, Sequence[str]]
) -> None:
    last = item.headings[-1]
    said = item.judgement if isinstance(item, RatedAnswers) else item.preference
    judged = item.judgement if isinstance(item, RatedAnswers) else None
    found.episodes.append(
        LearnedEpisode(
            episode_id,
            last.conversation_id,
            last.task_id if judged is None else judged.task_id,
            last.run_id if judged is None else judged.run_id,
            None if judged is None else judged.reward,
            "trained" if reason is None else "left_out",
            reason,
            tuple(step for msg_id in item.msg_ids for step in paths.get(msg_id, (msg_id,))),
        )
    )
    if reason is None:
        found.used_feedback += said.feedback_ids
    else:
        found.unused_feedback.setdefault(reason, []).extend(said.feedback_ids)


def turns_of(data: CommitData, done: CommitUpdates) -> Iterator[LearnedTurn]:
    """The share of each turn in the updates that were taken."""
    for sample in done.taken:
        source = data.sources[sample.episode_id, sample.task_id]
        if source.method == "distill":  # a span for each token
            slope = math.fsum(a * w for a, w in zip(sample.advantages, sample.weights, strict=True))
            size, count = max(sample.weight_sum, 1e-12), len(sample.weights)
            yield LearnedTurn(sample.episode_id, source.turn_ids[0], "distill", slope / size, size / count, count)
            continue
        for span, advantage, weight in zip(sample.timeline.spans, sample.advantages, sample.weights, strict=True):
            if weight:
                turn_id = source.turn_ids[span.turn] if source.turn_ids else None
                yield LearnedTurn(sample.episode_id, turn_id, source.method, advantage, weight, len(span))


def waits_of(plan: Plan, outcomes: CommitOutcomes) -> dict[str, int]:
    """Count the waiting episodes by reason."""
    waiting = plan.waiting + outcomes.waiting
    return {reason: count for reason, count in waiting.items() if count}


def figures_of(plan: Plan, data: CommitData, done: CommitUpdates, outcomes: CommitOutcomes) -> dict[str, float | str]:
    """The figures of a commit for the log."""
    trained = [episode for episode in outcomes.episodes if episode.state == "trained"]
    rewards = [episode.reward for episode in trained if episode.reward is not None]
    left_out = Counter(episode.reason for episode in outcomes.episodes if episode.state == "left_out")
    waiting = waits_of(plan, outcomes)
    figures: dict[str, float | str] = {
        "rated": float(len(outcomes.episodes) + sum(waiting.values())),
        "episodes/trained": float(len(trained)),
        "episodes/left_out": float(sum(left_out.values())),
        "episodes/waiting": float(sum(waiting.values())),
        "reward/n": float(len(rewards)),
    }
    if rewards:
        figures["reward/mean"] = math.fsum(rewards) / len(rewards)
    figures |= {f"left_out/{reason}": float(count) for reason, count in sorted(left_out.items(), key=str)}
    figures |= {f"waiting/{reason}": float(count) for reason, count in sorted(waiting.items())}
    cut = sum(isinstance(item, RatedAnswers) and item.judgement.cut for item in data.items.values())
    if cut:
        figures["reward/cut"] = float(cut)
    if plan.incomplete:
        figures |= {"groups/incomplete": float(plan.incomplete), "groups/size": float(plan.siblings)}
    if done.taken:
        told = Counter(turn.method for turn in turns_of(data, done))
        figures |= {f"turns/{method}": float(count) for method, count in sorted(told.items())}
        figures |= data.metrics | done.metrics
        figures |= {"failing_tools": data.failing_tools} if data.failing_tools else {}
        figures |= {name: value for name, value in data.receipt.metrics(0).items() if name.startswith("tokens/")}
        figures["data_sha256"] = data_digest(outcomes)
    return {name: value for name, value in figures.items() if isinstance(value, str) or math.isfinite(value)}


def data_digest(outcomes: CommitOutcomes) -> str:
    """SHA-256 of what a version was made from: answers, rewards, and what was left out."""
    rows = [[each.msg_ids, each.reward, each.state, each.reason] for each in outcomes.episodes]
    return hashlib.sha256(json.dumps(rows).encode()).hexdigest()


def why_nothing(plan: Plan, data: CommitData, done: CommitUpdates, rules: CommitConfig) -> str:
    """Why a commit made no version, in words."""
    if "kl/undone" in done.metrics:
        return (
            f"even at {done.metrics[SHARE]:.2g} of astune.trainer.learning_rate the first update would have moved a "
            f"token by a mean KL of {done.metrics['kl/undone']:.3g} from the version before, more than "
            f"astune.online.commit.max_kl of {rules.max_kl:g}"
        )
    if data.authors:
        authors = f"{len(data.authors)} author{'s' * (len(data.authors) != 1)}"
        return (
            f"what there is to learn from is of {authors}, and a version is made from {authors_needed(rules)} or more: "
            f"of nobody comes more of it than astune.online.commit.most_per_author, {rules.most_per_author:g} "
            "(1: no limit)"
        )
    if data.left_out:
        found = Counter(data.left_out.values())
        found["for_a_signal"] = plan.waiting["for_a_signal"]
        counted = ", ".join(f"{count} {reason}" for reason, count in found.items() if count)
        return f"nothing that was rated has anything to learn from: {counted}"
    if plan.waiting["for_more"] and not plan.waiting["for_a_signal"]:
        return f"{plan.waiting['for_more']} are rated, and astune.online.commit.min_episodes is {rules.min_episodes}"
    if +plan.waiting:
        counted = ", ".join(f"{count} {reason}" for reason, count in plan.waiting.items() if count)
        return f"all that is rated waits: {counted}"
    if plan.left_out:
        counted = ", ".join(f"{n} {reason}" for reason, n in Counter(reason for reason, _ in plan.left_out).items())
        return f"all that is rated was left out: {counted}"
    return "nobody has rated anything that was not trained yet"

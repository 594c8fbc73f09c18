"""One episode as a card of the report: facts, conversation, and timelines as tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from astune.algorithm.advantage import dr_grpo
from astune.algorithm.credit import EpisodeCredit, credit_group
from astune.monitor.words import FORKS
from astune.types import Episode, Group, Timeline
from astune.viewer.conversation import Bubble, conversation, count_of, in_words, receipt_line
from astune.viewer.run_config import LOGPROB_DIGITS, Pieces


def credit_of(episode: Episode, group: Sequence[Episode]) -> EpisodeCredit | None:
    """The advantages that the turns of `episode` get in comparison with the attempts of its group: rewards less their
    mean. None for one that nobody judged, and where all attempts did equally well."""
    credits = credit_group(Group(episode.task, tuple(group)), dr_grpo)
    if not any(credit.has_signal for credit in credits):
        return None
    return next((credit for credit in credits if credit.episode is episode), None)


def tokens(episode: Episode, timeline: Timeline, pieces: Pieces | None, credit: EpisodeCredit | None) -> dict[str, Any]:
    """A timeline for the page's script. `texts` is None if the tokenizer is not at hand: ids are shown instead."""
    advantages: Sequence[float | None] = (
        [None] * len(timeline.spans) if credit is None else credit.span_advantages(timeline)
    )
    return {
        "ids": list(timeline.token_ids),
        "texts": None if pieces is None else pieces(tuple(timeline.token_ids)),
        "spans": [
            {
                "turn": span.turn + 1,
                "start": span.start,
                "excluded": episode.turns[span.turn].excluded,
                "shared": span.shared,
                "advantage": advantage,
                "version": span.policy_version,
                "logprobs": [round(logprob, LOGPROB_DIGITS) for logprob in span.logprobs],
            }
            for span, advantage in zip(timeline.spans, advantages, strict=True)
        ],
    }


@dataclass(frozen=True)
class Card:
    """One episode as the page shows it."""

    key: str
    heading: str
    reward: float | None
    passed: bool | None
    advantage: float | None
    facts: str
    receipt: str
    answer: str
    reference: str
    reason: str
    own_rewards: str
    error: str
    traceback: str
    bubbles: list[Bubble] = field(default_factory=list)
    timelines: list[dict[str, Any]] = field(default_factory=list)
    timeline_titles: list[tuple[str, str]] = field(default_factory=list)
    """Of each row what it holds, and why it begins."""

    @property
    def outcome(self) -> str:
        """ "good", "bad" or "none": the colour of the reward."""
        if self.reward is None:
            return "none"
        better = self.passed if self.passed is not None else self.reward > 0
        return "good" if better else "bad"


def card(key: str, heading: str, episode: Episode, pieces: Pieces | None, credit: EpisodeCredit | None = None) -> Card:
    verdict, error, output = episode.verdict, episode.error, episode.output
    return Card(
        key=key,
        heading=heading,
        reward=episode.reward,
        passed=None if verdict is None else verdict.passed,
        advantage=None if credit is None else credit.outcome,
        facts=_episode_facts(episode),
        receipt=receipt_line(episode),
        answer="" if output is None or output.answer is None else str(output.answer),
        reference=episode.task.answer or "",
        reason="" if verdict is None else verdict.reason,
        own_rewards=", ".join(f"{agent} {reward:+.3g}" for agent, reward in episode.agent_rewards.items()),
        error="" if error is None else f"{error.stage}: {error.kind}: {error.message}",
        traceback="" if error is None else error.traceback,
        bubbles=conversation(episode),
        timelines=[tokens(episode, timeline, pieces, credit) for timeline in episode.timelines],
        timeline_titles=[_timeline_title(timeline) for timeline in episode.timelines],
    )


def _episode_facts(episode: Episode) -> str:
    facts = [count_of(len(episode.turns), "turn"), in_words(episode.stop_reason.value)]
    if "seconds" in episode.metrics:
        facts.append(f"{episode.metrics['seconds']:.1f} s")
    if episode.metrics.get("lost_calls"):
        facts.append(f"{episode.metrics['lost_calls']:.0f} calls without an answer")
    if episode.metrics.get("recovered_calls"):
        facts.append(f"got over {episode.metrics['recovered_calls']:.0f} calls at a limit")
    return " · ".join(facts)


def _timeline_title(timeline: Timeline) -> tuple[str, str]:
    shared = sum(len(span) for span in timeline.spans if span.shared)
    facts = [timeline.agent, f"{len(timeline.token_ids):,} tokens", f"{timeline.trained_tokens:,} trainable here"]
    if shared:
        facts.append(f"{shared:,} shared with an earlier row")
    if timeline.fork is None:
        return ", ".join(facts), ""
    return ", ".join(facts), f"A new row ({in_words(timeline.fork)}). {FORKS.get(timeline.fork, '')}"

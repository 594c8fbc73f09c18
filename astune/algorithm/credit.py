"""Who gets the advantage: agents, turns, and the branches of an episode.

Outcome: an episode's reward is compared with the other attempts of its group. An agent with rewards of its own
(`tuner.reward`) is compared with itself in the other attempts. Process: rewards of single turns (`tuner.reward_turn`)
are compared over the group, and each is added to the advantage of its turn and of those before it on the timeline
(GRPO with process supervision, arXiv 2402.03300, section 4.1.3).

A turn that several timelines share (the agent went on from it more than once) lies on all these branches:

    credit         loss of its tokens                               an example with branches of +1 and -1
    once           in the first branch, with that one's advantage   +1
    per_branch     in every branch, with that one's advantage       +1, -1: branches count, shared tokens weigh more
    mean_branch    the same, each divided by the branches           +1/2, -1/2

Branches have different advantages only where turns have rewards. The gradient of `mean_branch` is that of the mean
over branches (Tree Training, arXiv 2511.00413); for a clipped loss every branch is clipped with its own advantage.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from astune.algorithm.advantage import AdvantageFunction
from astune.errors import TrainingError
from astune.types import Episode, Group, Timeline

Credit = Literal["once", "per_branch", "mean_branch"]


@dataclass(frozen=True)
class EpisodeCredit:
    """An episode's advantages: of its outcome, of its agents where they have rewards of their own, and what each
    rewarded turn adds."""

    episode: Episode
    outcome: float
    of_agent: Mapping[str, float]
    of_turn: Mapping[int, float]

    def span_advantages(self, timeline: Timeline) -> tuple[float, ...]:
        """One per span: the agent's, plus what its turn and the later ones of this timeline were rewarded."""
        base = self.of_agent.get(timeline.agent, self.outcome)
        to_go = 0.0
        found = []
        for span in reversed(timeline.spans):
            to_go += self.of_turn.get(span.turn, 0.0)
            found.append(base + to_go)
        return tuple(reversed(found))

    @property
    def has_signal(self) -> bool:
        """Whether any advantage differs from 0."""
        return any(any(self.span_advantages(timeline)) for timeline in self.episode.timelines)


def credit_group(group: Group, estimator: AdvantageFunction) -> list[EpisodeCredit]:
    """The credit of every judged episode of the group, in order. Raises TrainingError for an estimator that does not
    give one finite number per reward."""
    judged = [episode for episode in group.episodes if episode.verdict is not None]
    rewards = [episode.verdict.reward for episode in judged if episode.verdict is not None]
    outcomes = _estimated(estimator, rewards, group)
    of_agent: list[dict[str, float]] = [{} for _ in judged]
    of_turn: list[dict[int, float]] = [{} for _ in judged]
    for agent in sorted({agent for episode in judged for agent in episode.agent_rewards}):
        acting = [number for number, episode in enumerate(judged) if _has_acted(episode, agent)]
        own = [judged[number].reward_of(agent) for number in acting]
        values = _estimated(estimator, [reward for reward in own if reward is not None], group)
        for number, value in zip(acting, values, strict=True):
            of_agent[number][agent] = value
    for places in _rewarded_turns(judged).values():
        values = _estimated(estimator, [judged[number].turn_rewards[turn] for number, turn in places], group)
        for (number, turn), value in zip(places, values, strict=True):
            of_turn[number][turn] = value
    credited = zip(judged, outcomes, of_agent, of_turn, strict=True)
    return [EpisodeCredit(*each) for each in credited]


def span_shares(episode: Episode, credit: Credit) -> list[tuple[float, ...]]:
    """For each timeline, how much each span counts on it: 0 for context. A trainable turn's shares sum to 1, with
    `per_branch` to its branches."""
    branches = Counter(span.turn for timeline in episode.timelines for span in timeline.spans)
    shares = []
    for timeline in episode.timelines:
        row = []
        for span in timeline.spans:
            share = 1.0 / branches[span.turn] if credit == "mean_branch" else 1.0
            row.append(share if span.trainable and not (credit == "once" and span.shared) else 0.0)
        shares.append(tuple(row))
    return shares


def _has_acted(episode: Episode, agent: str) -> bool:
    return any(turn.agent == agent for turn in episode.turns)


def _rewarded_turns(judged: Sequence[Episode]) -> dict[str, list[tuple[int, int]]]:
    """(number of the episode, number of the turn) of all turns with a reward, by agent."""
    places: dict[str, list[tuple[int, int]]] = {}
    for number, episode in enumerate(judged):
        for turn in sorted(episode.turn_rewards):
            places.setdefault(episode.turns[turn].agent, []).append((number, turn))
    return places


def _estimated(estimator: AdvantageFunction, rewards: Sequence[float], group: Group) -> list[float]:
    if not rewards:
        return []
    advantages = list(estimator([float(reward) for reward in rewards]))
    if len(advantages) != len(rewards) or not all(map(math.isfinite, advantages)):
        raise TrainingError(
            f"astune.algorithm.advantage: {estimator!r} gave {advantages!r} for the {len(rewards)} rewards of "
            f"task {group.task.task_id!r}; expected one finite number for each"
        )
    return advantages

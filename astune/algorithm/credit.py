"""Credit: the advantage that agents, turns and the branches of an episode get.

Outcome: an episode's reward is compared with the other attempts of its group. An agent with rewards of its own
(`tuner.reward`) is compared with itself in the other attempts. Process: once a turn of an agent has a reward
(`tuner.reward_turn`), all turns of that agent in the group are compared, 0 where there is none, and what each gets is
added to the advantage of its turn and of those before it (GRPO with process supervision, arXiv 2402.03300, section
4.1.3). So a reward that every turn gets alike changes nothing. Before it are the turns of its timeline, and where the
history was rewritten (`Turn.follows`) those that it follows: of several conversations that follow a turn in this way,
the turn gets the mean.

A turn that several timelines share (the agent went on from it more than once) lies on all these branches:

    credit         loss of its tokens                               an example with branches of +1 and -1
    once           in the first branch, with that one's advantage   +1
    mean_branch    in every branch, divided by their number         +1/2, -1/2
    per_branch     in every branch, with that one's advantage       +1, -1: the loss of separate rows

`once` and `mean_branch` count every token once; they differ only where turns have rewards, as only then branches have
different advantages. `per_branch` counts a token by the branches that pass through it, which is what the mean over
branches comes to (Tree Training, arXiv 2511.00413). A clipped loss is clipped for every branch by itself, with its own
advantage.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

from astune.algorithm.step_advantage import OUTCOMES, Advantage, Rewards, StepEstimator, as_estimator
from astune.errors import TrainingError
from astune.support.user_values import show_value
from astune.types import Episode, Group, Timeline, Turn

Credit = Literal["once", "per_branch", "mean_branch"]


@dataclass(frozen=True)
class EpisodeCredit:
    """An episode's advantages: of its outcome, of its agents where they have rewards of their own, and what each
    rewarded turn adds."""

    episode: Episode
    outcome: float
    of_agent: Mapping[str, float]
    of_turn: Mapping[int, float]

    def span_rewards(self, timeline: Timeline) -> tuple[float, ...]:
        """One reward per span, paid at its last token: that of its turn, and at the last one the outcome. With
        rewards as they are in place of advantages, `span_advantages` is the sum of these from a span to the end."""
        paid = [self._gains.get(span.turn, 0.0) for span in timeline.spans]
        if paid:
            paid[-1] += self.of_agent.get(timeline.agent, self.outcome)
        return tuple(paid)

    def span_advantages(self, timeline: Timeline) -> tuple[float, ...]:
        """One advantage per span: the agent's, plus the gains of its turn and of the later ones of this timeline;
        none above 0 for turns that earn no credit."""
        base = self.of_agent.get(timeline.agent, self.outcome)
        to_go = 0.0
        found = []
        for span in reversed(timeline.spans):
            to_go += self._gains.get(span.turn, 0.0)
            mine = base + to_go
            found.append(min(mine, 0.0) if span.turn in self.episode.no_credit else mine)
        return tuple(reversed(found))

    @cached_property
    def _gains(self) -> dict[int, float]:
        """The gain that each turn adds to itself and to those before it: its own, and the mean of what the rewritten
        conversations that follow it add up to."""
        gains: dict[int, float] = {}
        if not self.of_turn:
            return gains
        rows = {span.turn: line for line in self.episode.timelines for span in line.spans if not span.shared}
        rewritten: dict[int, list[float]] = {}
        for number in reversed(range(len(self.episode.turns))):  # what follows a turn comes after it
            own = self.of_turn.get(number, 0.0)
            later = rewritten.get(number)
            gains[number] = own + (math.fsum(later) / len(later) if later else 0.0)
            followed = self.episode.turns[number].follows
            on_row = [span.turn for span in rows[number].spans]
            if followed is not None and followed not in on_row:
                rest = on_row[on_row.index(number) :]
                rewritten.setdefault(followed, []).append(math.fsum(gains[turn] for turn in rest))
        return gains

    @property
    def has_signal(self) -> bool:
        """True if any advantage of a trainable turn differs from 0."""
        return any(
            span.trainable and advantage
            for timeline in self.episode.timelines
            for span, advantage in zip(timeline.spans, self.span_advantages(timeline), strict=True)
        )


def credit_groups(groups: Sequence[Group], advantage: Advantage) -> list[list[EpisodeCredit]]:
    """The credit of every judged episode of each group, in order. Raises TrainingError for an estimator that does not
    give one finite number per reward."""
    estimator = as_estimator(advantage)
    judged = [list_judged(group) for group in groups]
    outcomes = [[0.0] * len(episodes) for episodes in judged]
    of_agent: list[list[dict[str, float]]] = [[{} for _ in episodes] for episodes in judged]
    of_turn: list[list[dict[int, float]]] = [[{} for _ in episodes] for episodes in judged]
    for population, compared in comparisons(groups).items():
        found = _estimate(estimator, population, [each.rewards for each in compared])
        for each, values in zip(compared, found, strict=True):
            for (number, agent, turn), value in zip(each.receivers, values, strict=True):
                if turn is not None:
                    of_turn[each.group][number][turn] = value
                elif agent is not None:
                    of_agent[each.group][number][agent] = value
                else:
                    outcomes[each.group][number] = value
    return [
        [EpisodeCredit(*each) for each in zip(*columns, strict=True)]
        for columns in zip(judged, outcomes, of_agent, of_turn, strict=True)
    ]


def observe(estimator: StepEstimator, groups: Sequence[Group]) -> None:
    """Tell the estimator of the rewards of a step that is done."""
    found = comparisons(groups)
    estimator.observe({population: [each.rewards for each in compared] for population, compared in found.items()})


class GroupComparison(NamedTuple):
    """The rewards of one group that are compared in one population, and where each advantage goes: the number of a
    judged episode, and the agent and the turn unless it is for the whole of it."""

    group: int
    rewards: Rewards
    receivers: tuple[tuple[int, str | None, int | None], ...]


def comparisons(groups: Sequence[Group]) -> dict[str, list[GroupComparison]]:
    """The populations of a step: the outcomes, the rewards of each agent that has its own, and those of the turns of
    each agent with rewarded turns."""
    found: dict[str, list[GroupComparison]] = {OUTCOMES: []}
    for number, group in enumerate(groups):
        judged = list_judged(group)
        found[OUTCOMES].append(_of_episodes(number, group, judged, None))
        for agent in sorted({agent for episode in judged for agent in episode.agent_rewards}):
            found.setdefault(f"agent {agent}", []).append(_of_episodes(number, group, judged, agent))
        for agent in sorted({episode.turns[turn].agent for episode in judged for turn in episode.turn_rewards}):
            places = [
                (place, turn)
                for place, episode in enumerate(judged)
                for turn in range(len(episode.turns))
                if episode.turns[turn].agent == agent
            ]
            values = tuple(float(judged[episode].turn_rewards.get(turn, 0.0)) for episode, turn in places)
            tokens = tuple(_count_trained(judged[episode].turns[turn]) for episode, turn in places)
            receivers = tuple((episode, agent, turn) for episode, turn in places)
            rewards = Rewards(group.task, values, tokens)
            found.setdefault(f"turns of {agent}", []).append(GroupComparison(number, rewards, receivers))
    return found


def list_judged(group: Group) -> list[Episode]:
    return [episode for episode in group.episodes if episode.verdict is not None]


def _of_episodes(number: int, group: Group, judged: Sequence[Episode], agent: str | None) -> GroupComparison:
    """The outcomes of the group, or those of an agent in the episodes in which it acted."""
    acting = [
        place
        for place, episode in enumerate(judged)
        if agent is None or any(turn.agent == agent for turn in episode.turns)
    ]
    own = [judged[place].reward if agent is None else judged[place].reward_of(agent) for place in acting]
    turns = [
        [turn for turn in judged[place].turns if turn.trainable and agent in (None, turn.agent)] for place in acting
    ]
    rewards = Rewards(
        group.task,
        tuple(reward for reward in own if reward is not None),
        tuple(sum(map(_count_trained, each)) for each in turns),
        tuple(map(len, turns)),
    )
    return GroupComparison(number, rewards, tuple((place, agent, None) for place in acting))


def _count_trained(turn: Turn) -> int:
    return len(turn.output_ids) if turn.trainable else 0


def span_shares(episode: Episode, credit: Credit) -> list[tuple[float, ...]]:
    """Share of each span in its turn, by timeline: 0 for context. A trainable turn's shares sum to 1, with
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


def _estimate(estimator: StepEstimator, population: str, groups: Sequence[Rewards]) -> list[list[float]]:
    """Ask the estimator. Raises TrainingError where it does not give one finite number for each reward of each
    group."""
    found = estimator(population, groups)
    same = len(found) == len(groups) and all(
        len(values) == len(group.values) for values, group in zip(found, groups, strict=True)
    )
    if not same or not all(math.isfinite(value) for values in found for value in values):
        raise TrainingError(
            f"astune.algorithm.advantage: {estimator!r} gave {show_value(found)} for the rewards {population!r} of "
            f"{len(groups)} groups; expected one finite number for each"
        )
    return found

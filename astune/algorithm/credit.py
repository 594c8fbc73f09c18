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
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from astune.algorithm.advantage import AdvantageFunction
from astune.errors import TrainingError
from astune.support.user_code import place_of
from astune.support.user_values import figure, shown, text_of
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
            to_go += self._gains.get(span.turn, 0.0)
            found.append(base + to_go)
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
        """Whether any advantage of a trainable turn differs from 0."""
        return any(
            span.trainable and advantage
            for timeline in self.episode.timelines
            for span, advantage in zip(timeline.spans, self.span_advantages(timeline), strict=True)
        )


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
    for agent in _agents_with_turn_rewards(judged):
        places = _turns_of(judged, agent)
        values = _estimated(estimator, [judged[number].turn_rewards.get(turn, 0.0) for number, turn in places], group)
        for (number, turn), value in zip(places, values, strict=True):
            of_turn[number][turn] = value
    credited = zip(judged, outcomes, of_agent, of_turn, strict=True)
    return [EpisodeCredit(*each) for each in credited]


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


def _has_acted(episode: Episode, agent: str) -> bool:
    return any(turn.agent == agent for turn in episode.turns)


def _agents_with_turn_rewards(judged: Sequence[Episode]) -> list[str]:
    return sorted({episode.turns[turn].agent for episode in judged for turn in episode.turn_rewards})


def _turns_of(judged: Sequence[Episode], agent: str) -> list[tuple[int, int]]:
    """(number of the episode, number of the turn) of all turns of the agent."""
    return [
        (number, turn_number)
        for number, episode in enumerate(judged)
        for turn_number, turn in enumerate(episode.turns)
        if turn.agent == agent
    ]


def _estimated(estimator: AdvantageFunction, rewards: Sequence[float], group: Group) -> list[float]:
    if not rewards:
        return []
    place = f"astune.algorithm.advantage: {estimator!r}"
    try:
        given: object = estimator([float(reward) for reward in rewards])
        advantages = [figure(value) for value in given] if isinstance(given, Iterable) else []
    except Exception as error:
        raise TrainingError(
            f"{place} raised {type(error).__name__}: {text_of(error)}, at the rewards of task {group.task.task_id!r} "
            f"({place_of(error)})"
        ) from error
    found = [value for value in advantages if value is not None]
    if len(advantages) != len(rewards) or len(found) != len(rewards):
        raise TrainingError(
            f"{place} gave {shown(given)} for the {len(rewards)} rewards of task {group.task.task_id!r}; expected one "
            "finite number for each"
        )
    return found

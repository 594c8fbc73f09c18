"""The part of episodes that is one model's, where a run has several (`astune.models`).

    a wolf's turns      w1    w2         take_own(episode, "wolf")        w1 w2
    a villager's           v1    v2  ->  take_own(episode, "villager")    v1 v2

No timeline has turns of two models, as a turn never continues another model's (`context_tracker.merge`); what the other
said is in the prompts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from astune.context_tracker.merge import TurnForest
from astune.types import Episode, Group


def list_own(groups: Sequence[Group], model: str) -> list[Group]:
    """The groups as far as they are the model's: its own turns, of the episodes in which it has any. Where there is one
    model they are its own as they are."""
    if not model:
        return list(groups)
    return [
        replace(group, episodes=tuple(own for own in (take_own(each, model) for each in group.episodes) if own.turns))
        for group in groups
    ]


def take_own(episode: Episode, model: str) -> Episode:
    """The episode as if nobody but this model had been asked in it: its turns, counted anew, and their timelines."""
    numbers = [number for number, turn in enumerate(episode.turns) if turn.model == model]
    place: dict[int | None, int] = {number: new for new, number in enumerate(numbers)}
    turns = [replace(turn, follows=place.get(turn.follows)) for turn in (episode.turns[number] for number in numbers)]
    forest = TurnForest(turns)
    agents = {turn.agent for turn in turns}
    return replace(
        episode,
        turns=tuple(turns),
        timelines=forest.timelines(),
        unique_tokens=forest.unique_tokens,
        agent_rewards={agent: reward for agent, reward in episode.agent_rewards.items() if agent in agents},
        turn_rewards={place[turn]: reward for turn, reward in episode.turn_rewards.items() if turn in place},
        no_credit=frozenset(place[turn] for turn in episode.no_credit if turn in place),
    )

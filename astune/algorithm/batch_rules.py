"""Rules over the groups of a step, before their rewards are compared: what is shaped, and what is left out.

    overlong     an answer that comes near its limit costs its episode a part of the reward    DAPO, arXiv 2503.14476
    efficiency   among right answers those with fewer turns get a little more                  AgentRL
    balance      right and wrong answers of a group are kept in about equal numbers            AgentRL
    sharing      what each agent of an episode is paid (`astune.algorithm.agent_reward`)

What the judge said stays as it is recorded; only what is learned from changes. Another rule of DAPO, dynamic sampling,
plays further tasks: `astune/training/run.py`.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from astune.algorithm.advantage import RIGHT
from astune.config.schema import AstuneConfig
from astune.support.statistics import exceeds
from astune.types import Episode, Group, Turn

AgentReward = Literal["own", "same", "difference", "leave_one_out"]
REDRAWN = "redrawn/"
"""Before an agent's name in `Episode.metrics`: the reward with its answers drawn anew (`astune.rollout.redrawn`)."""
NOT_REPLAYED = "not_replayed"
"""Why an episode is left out that did not go the same way twice, or whose other attempt nobody judged."""
BALANCED = "balanced"
"""Why an episode is left out that there were too many of its kind of."""
MORE_WRONG, MORE_RIGHT = 1, 2
"""How many more of the commoner kind are kept than there are of the other (AgentRL's `balance_sample`)."""


@dataclass(frozen=True)
class Ruled:
    """The groups of a step as they are learned from; the episodes that are left out, each with its reason; figures of
    the rules that are on."""

    groups: list[Group]
    left_out: list[tuple[str, Episode]] = field(default_factory=list)
    metrics: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class BatchRules:
    """The rules of `astune.algorithm`. `context_length` is the model's, None where it is not known."""

    max_tokens: int = 1024
    context_length: int | None = None
    overlong_buffer: int = 0
    overlong_penalty: float = 1.0
    efficiency_bonus: float = 0.0
    balance: bool = False
    seed: int = 0
    agent_reward: AgentReward = "own"

    @classmethod
    def of(cls, config: AstuneConfig, context_length: int | None) -> BatchRules:
        algorithm = config.algorithm
        return cls(
            config.rollout.max_tokens,
            context_length,
            algorithm.overlong_buffer,
            algorithm.overlong_penalty,
            algorithm.efficiency_bonus,
            algorithm.balance,
            config.seed,
            algorithm.agent_reward,
        )

    def __call__(self, groups: Sequence[Group]) -> Ruled:
        """Share out first: what an episode costs or gains besides, all its agents do. Balance before ranks, which are
        among those that are kept."""
        ruled = leave_unreplayed(groups) if self.agent_reward == "leave_one_out" else Ruled(list(groups))
        if self.agent_reward != "own":
            ruled = replace(ruled, groups=[share_out(group, self.agent_reward) for group in ruled.groups])
        if self.balance:
            ruled = self._balance(ruled)
        if self.overlong_buffer:
            ruled = self._with_penalty(ruled)
        if self.efficiency_bonus:
            ruled = self._with_bonus(ruled)
        return ruled

    def _balance(self, ruled: Ruled) -> Ruled:
        groups = []
        left_out = list(ruled.left_out)
        for group in ruled.groups:
            name = group.episodes[0].episode_id if group.episodes else ""
            kept = choose_balanced(group, f"{self.seed}/balance/{name}")
            left_out += [(BALANCED, each) for place, each in enumerate(group.episodes) if place not in kept]
            episodes = tuple(each for place, each in enumerate(group.episodes) if place in kept)
            groups.append(replace(group, episodes=episodes))
        return Ruled(groups, left_out, ruled.metrics | {"balance/left_out": float(len(left_out))})

    def _with_penalty(self, ruled: Ruled) -> Ruled:
        parts = [[self._overlong(episode) for episode in group.episodes] for group in ruled.groups]
        shaped = [
            shift_rewards(group, [-self.overlong_penalty * part for part in row])
            for group, row in zip(ruled.groups, parts, strict=True)
        ]
        judged = [
            part
            for group, row in zip(ruled.groups, parts, strict=True)
            for part, episode in zip(row, group.episodes, strict=True)
            if episode.verdict is not None
        ]
        metrics = {"overlong/episodes": float(sum(part > 0 for part in judged))}
        if judged:
            metrics["overlong/penalty_mean"] = self.overlong_penalty * math.fsum(judged) / len(judged)
        return replace(ruled, groups=shaped, metrics=ruled.metrics | metrics)

    def _overlong(self, episode: Episode) -> float:
        """The part of the penalty that the longest of the episode's answers costs."""
        return max(
            (overlong(turn, self.overlong_buffer, self.max_tokens, self.context_length) for turn in episode.turns),
            default=0.0,
        )

    def _with_bonus(self, ruled: Ruled) -> Ruled:
        shifts = [efficiency(group, self.efficiency_bonus) for group in ruled.groups]
        shaped = [shift_rewards(group, row) for group, row in zip(ruled.groups, shifts, strict=True)]
        metrics = {"efficiency/ranked": float(sum(bool(shift) for row in shifts for shift in row))}
        return replace(ruled, groups=shaped, metrics=ruled.metrics | metrics)


def share_out(group: Group, how: AgentReward) -> Group:
    """Say what the agents of each judged episode are paid.

        own           its own reward, else the episode's
        same          the episode's
        difference    the first, less the mean of the trained agents of the episode: they sum to 0
        leave_one_out the episode's, less what that was with the agent's answers drawn anew

    With `difference` an agent that is the only one of its episode that is trained has nobody to differ from, and is
    paid as with `own`.
    """
    return replace(group, episodes=tuple(_share_episode(episode, how) for episode in group.episodes))


def _share_episode(episode: Episode, how: AgentReward) -> Episode:
    if episode.verdict is None or how == "own":
        return episode
    if how == "same":
        return replace(episode, agent_rewards={})
    team = list_trained(episode.turns)
    if how == "leave_one_out":
        gained = {agent: _subtract(episode.verdict.reward, episode.metrics[REDRAWN + agent]) for agent in team}
        return replace(episode, agent_rewards=gained)
    if len(team) < 2:
        return episode
    paid = {agent: episode.agent_rewards.get(agent, episode.verdict.reward) for agent in team}
    mean = math.fsum(paid.values()) / len(team)
    differences = {agent: _subtract(reward, mean) for agent, reward in paid.items()}
    return replace(episode, agent_rewards={**episode.agent_rewards, **differences})


def list_trained(turns: Iterable[Turn]) -> list[str]:
    """List the agents with a turn that is trained."""
    return sorted({turn.agent for turn in turns if turn.trainable})


def leave_unreplayed(groups: Sequence[Group]) -> Ruled:
    """Leave out judged episodes of which it is not known what an agent gained."""

    def is_known(episode: Episode) -> bool:
        return episode.verdict is None or all(
            REDRAWN + agent in episode.metrics for agent in list_trained(episode.turns)
        )

    lost = [(NOT_REPLAYED, each) for group in groups for each in group.episodes if not is_known(each)]
    return Ruled([replace(group, episodes=tuple(filter(is_known, group.episodes))) for group in groups], lost)


def _subtract(reward: float, mean: float) -> float:
    """The difference; 0 if it is no more than rounding leaves, which would be taken for signal beside other zeros."""
    return reward - mean if exceeds(reward, mean) or exceeds(mean, reward) else 0.0


def leave_out_all(groups: Sequence[Group], reason: str) -> Ruled:
    """Nothing is learned from."""
    return Ruled([], [(reason, episode) for group in groups for episode in group.episodes])


def is_right(episode: Episode) -> bool | None:
    """True for a right answer, by its verdict, else by its reward; None if nobody judged it."""
    if episode.verdict is None:
        return None
    return exceeds(episode.verdict.reward, RIGHT) if episode.verdict.passed is None else episode.verdict.passed


def overlong(turn: Turn, buffer: int, max_tokens: int, context_length: int | None) -> float:
    """0 to 1: how far an answer reaches into the last `buffer` tokens before a limit, the nearer of `max_tokens` of its
    own and `context_length` with its prompt; 1 for one that was cut off (DAPO, section 3.4, equation 13).

    >>> [overlong(Turn("a", (1,), (2,) * n, (0.0,) * n, 0, "stop"), 4, 10, None) for n in (6, 7, 10)]
    [0.0, 0.25, 1.0]
    """
    if turn.finish_reason == "length":
        return 1.0
    left = max_tokens - len(turn.output_ids)
    if context_length is not None:
        left = min(left, context_length - len(turn.prompt_ids) - len(turn.output_ids))
    return min(max((buffer - left) / buffer, 0.0), 1.0)


def choose_balanced(group: Group, seed: str) -> set[int]:
    """The places of the episodes that are kept: of the wrong ones at most one more than there are right ones, of the
    right ones at most two more than there are wrong ones. Which ones is drawn from `seed`. Those that nobody judged
    stay, as they count for nothing."""
    places: dict[bool | None, list[int]] = {True: [], False: [], None: []}
    for place, episode in enumerate(group.episodes):
        places[is_right(episode)].append(place)
    fewer = min(len(places[True]), len(places[False]))
    draw = random.Random(seed)
    kept = set(places[None])
    for right, more in ((False, MORE_WRONG), (True, MORE_RIGHT)):
        kept |= set(draw.sample(places[right], min(len(places[right]), fewer + more)))
    return kept


def efficiency(group: Group, bonus: float) -> list[float]:
    """Say by how much each episode's reward is shifted: among the right ones from `bonus` for the fewest turns down to
    `-bonus` for the most, in equal steps by rank, ties by their mean rank; 0 for the others and where only one is
    right. The shifts sum to 0 (AgentRL's `efficient_rewarding`, which also ranks wrong ones, the other way round)."""
    right = [place for place, episode in enumerate(group.episodes) if is_right(episode)]
    shifts = [0.0] * len(group.episodes)
    if len(right) < 2:
        return shifts
    turns = [len(group.episodes[place].turns) for place in right]
    for place, own in zip(right, turns, strict=True):
        fewer, same = sum(other < own for other in turns), turns.count(own)
        rank = fewer + (same - 1) / 2
        shifts[place] = bonus * (1.0 - 2.0 * rank / (len(right) - 1))
    return shifts


def shift_rewards(group: Group, shifts: Sequence[float]) -> Group:
    """Shift the rewards of the judged episodes of a group, and with them those of their agents."""
    return replace(
        group,
        episodes=tuple(
            _shift_episode(episode, shift) if shift else episode
            for episode, shift in zip(group.episodes, shifts, strict=True)
        ),
    )


def _shift_episode(episode: Episode, shift: float) -> Episode:
    if episode.verdict is None:
        return episode
    verdict = replace(episode.verdict, reward=episode.verdict.reward + shift)
    own = {agent: reward + shift for agent, reward in episode.agent_rewards.items()}
    return replace(episode, verdict=verdict, agent_rewards=own)

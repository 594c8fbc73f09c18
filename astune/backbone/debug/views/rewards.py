"""Put into words the rewards that a workflow gave single agents and turns (`tuner.reward`, `tuner.reward_turn`)."""

from __future__ import annotations

from astune.types import Episode, Group


def describe_rewards(episode: Episode) -> str:
    """`seller +1.5, buyer -1, turn 3 (seller) +2`; "" if there are none."""
    parts = [f"{agent} {reward:+g}" for agent, reward in sorted(episode.agent_rewards.items())]
    parts += [
        f"turn {number + 1} ({episode.turns[number].agent}) {reward:+g}"
        for number, reward in sorted(episode.turn_rewards.items())
    ]
    return ", ".join(parts)


def describe_turn_reward(episode: Episode, number: int) -> str:
    """The rewards that a turn is credited for: `1.5 (agent) +2 (turn)`, `1` where only its episode has a reward."""
    agent, added = episode.turns[number].agent, episode.turn_rewards.get(number)
    reward = episode.reward_of(agent)
    if reward is None:
        return "-"
    own = " (agent)" if agent in episode.agent_rewards else ""
    return f"{reward:g}{own}" + ("" if added is None else f" {added:+g} (turn)")


def has_own_rewards(group: Group) -> bool:
    return any(episode.agent_rewards or episode.turn_rewards for episode in group.episodes)

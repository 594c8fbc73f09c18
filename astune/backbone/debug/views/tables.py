"""Make the tables of a debug run: training rows, episodes, and what a training step would make of a group."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from rich.table import Table

from astune.algorithm.receipt import NO_SIGNAL, why_left_out, why_unjudged
from astune.support.terminal import Text, make_table
from astune.types import Episode, Group, Sample, Timeline


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


def make_timelines_table(timelines: Sequence[Timeline]) -> Table:
    """The rows that training would see; `fork` says why a row does not continue an earlier one."""
    table = make_table("training row", "turns", "tokens", "trained", "fork", left=("training row", "fork"))
    for line in timelines:
        cells = (f"{len(line.spans)}", f"{len(line.token_ids):,}", f"{line.trained_tokens:,}")
        table.add_row(line.agent, *cells, line.fork or "-")
    return table


def make_credit_table(group: Group, samples: Sequence[Sample]) -> Table:
    """One line per attempt: its advantages (from least to greatest where turns differ), its part in the loss, and why
    tokens have none."""
    names = ("attempt", "reward", "advantage", "in the loss", "sampled", "trained", "left out")
    table = make_table(*names, left=("left out",))
    for number, episode in enumerate(group.episodes):
        mine = [sample for sample in samples if sample.episode_id == episode.episode_id]
        advantages = {
            f"{advantage:+.3f}"
            for sample in mine
            for advantage, weight in zip(sample.advantages, sample.weights, strict=True)
            if weight
        }
        reward = "-" if episode.reward is None else f"{episode.reward:g}"
        share = math.fsum(sample.weight_sum for sample in mine)
        sampled = sum(len(turn.output_ids) for turn in episode.turns)
        left_out = count_left_out(episode, bool(mine))
        cells = (reward, " to ".join(_find_ends(advantages)) or "-", f"{100 * share:.1f} %", f"{sampled:,}")
        trained = f"{sampled - left_out.total():,}"
        why = ", ".join(f"{reason} {count:,}" for reason, count in left_out.items())
        table.add_row(str(number), *cells, trained, why or "-")
    return table


def make_weights_table(group: Group, samples: Sequence[Sample]) -> Table:
    """One line per turn: what each of its tokens counts, or why it does not; its reward where single agents or turns
    have some."""
    with_rewards = has_own_rewards(group)
    names = ("attempt", "turn", "tokens", *(["reward"] if with_rewards else []), "advantage", "weight/token")
    table = make_table(*names, "agent", "left out", left=("agent", "left out"))
    for number, episode in enumerate(group.episodes):
        mine = [sample for sample in samples if sample.episode_id == episode.episode_id]
        for place, turn in enumerate(episode.turns):
            found = [
                (advantage, weight)
                for sample in mine
                for span, advantage, weight in zip(
                    sample.timeline.spans, sample.advantages, sample.weights, strict=True
                )
                if span.turn == place and weight
            ]
            why = "" if found else why_left_out(turn, _explain_left_out(episode, trained=False)) or ""
            advantages = ", ".join(f"{advantage:+.3f}" for advantage, _ in found) or "-"
            weights = ", ".join(f"{weight:.2e}" for _, weight in found) or "-"
            reward = [describe_turn_reward(episode, place)] if with_rewards else []
            cells = (str(number), str(place + 1), f"{len(turn.output_ids):,}", *reward, advantages, weights)
            table.add_row(*cells, turn.agent, Text(why, style="yellow"))
    return table


def _find_ends(values: set[str]) -> list[str]:
    """The least and the greatest of numbers as text; one if they are equal."""
    return sorted({min(values, key=float), max(values, key=float)}, key=float) if values else []


def count_left_out(episode: Episode, trained: bool) -> Counter[str]:
    """Sampled tokens of an attempt that carry no loss, by reason."""
    counts: Counter[str] = Counter()
    for turn in episode.turns:
        if (why := why_left_out(turn, _explain_left_out(episode, trained))) is not None:
            counts[why] += len(turn.output_ids)
    return counts


def _explain_left_out(episode: Episode, trained: bool) -> str | None:
    """Name the reason for which the episode is left out as a whole."""
    return None if trained else why_unjudged(episode) if episode.verdict is None else NO_SIGNAL


def make_summary_table(episodes: Sequence[Episode]) -> Table:
    names = ("episode", "reward", "turns", "sampled", "trained", "seconds", "end")
    table = make_table(*names, left=("episode", "end"))
    for episode in episodes:
        reward = "-" if episode.reward is None else f"{episode.reward:g}"
        end = episode.stop_reason.value if episode.error is None else f"{episode.error.stage}: {episode.error.kind}"
        sampled = sum(len(turn.output_ids) for turn in episode.turns)
        trained = sum(line.trained_tokens for line in episode.timelines)
        counts = (f"{len(episode.turns)}", f"{sampled:,}", f"{trained:,}", f"{episode.metrics['seconds']:.2f}")
        style = "" if episode.error is None else "red"
        table.add_row(episode.episode_id, reward, *counts, Text(end, style=style))
    return table

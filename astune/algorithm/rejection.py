"""Rejection sampling (RAFT, arXiv 2304.06767): of what was played, only what is right is learned from, all of it alike.

Of each task at most `most` right attempts are kept, those with the greatest reward first, and of attempts that say the
same, token by token, only the first. What is left out is counted by its reason.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from astune.algorithm.batch_rules import Ruled, is_right
from astune.types import Episode, Group

WRONG, REPEATED, SURPLUS = "wrong", "repeated", "surplus"
"""Why a judged episode is not learned from."""


def only_right(ruled: Ruled, most: int | None) -> Ruled:
    """What is left to imitate, group by group; episodes that nobody judged stay, and are left out as such. Rewards of
    single agents and turns say nothing here, so that every answer counts alike."""
    groups, left_out = [], list(ruled.left_out)
    for group in ruled.groups:
        reasons = _reasons(group, most)
        left_out += [(why, each) for why, each in zip(reasons, group.episodes, strict=True) if why]
        kept = [each for why, each in zip(reasons, group.episodes, strict=True) if not why]
        groups.append(replace(group, episodes=tuple(replace(e, agent_rewards={}, turn_rewards={}) for e in kept)))
    counts = Counter(why for why, _ in left_out[len(ruled.left_out) :])
    judged = [[each for each in group.episodes if each.verdict is not None] for group in groups]
    figures = {"kept": sum(map(len, judged)), "tasks": sum(map(bool, judged))}
    figures |= {why: counts[why] for why in (WRONG, REPEATED, SURPLUS)}
    metrics = {f"rejection/{name}": float(value) for name, value in figures.items()}
    return Ruled(groups, left_out, ruled.metrics | metrics)


def _reasons(group: Group, most: int | None) -> list[str]:
    """Why each episode is left out; "" if it is not."""
    reasons = ["" if each.verdict is None else WRONG for each in group.episodes]
    right = [place for place, each in enumerate(group.episodes) if is_right(each)]
    said: set[tuple[tuple[int, ...], ...]] = set()
    kept = 0
    for place in sorted(right, key=lambda place: -_reward(group.episodes[place])):
        answers = tuple(tuple(turn.output_ids) for turn in group.episodes[place].turns)
        full = most is not None and kept >= most
        reasons[place] = REPEATED if answers in said else SURPLUS if full else ""
        kept += not reasons[place]
        said.add(answers)
    return reasons


def _reward(episode: Episode) -> float:
    return episode.verdict.reward if episode.verdict is not None else 0.0

"""`rft`: rejection sampling (RAFT, arXiv 2304.06767): of what was played, only what is right is learned from, all of it
alike.

Of each task at most `keep_per_task` right attempts are kept, those with the greatest reward first, and of attempts that
say the same, token by token, only the first. Everything that is left out is counted by its reason.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from astune.algorithm.batch_rules import Ruled, is_right
from astune.algorithm.method import Method
from astune.algorithm.step_advantage import Imitation, StepEstimator
from astune.support.statistics import without_noise
from astune.types import Group

WRONG, REPEATED, SURPLUS = "wrong", "repeated", "surplus"
"""Why a judged episode is not learned from."""


class Rft(Method):
    plays = True
    loss = "likelihood"
    keys = frozenset({"credit", "keep_per_task", "loss_aggregation", "trained_agents"})

    def estimator(self) -> StepEstimator:
        return Imitation(self.algorithm)

    def choose(self, ruled: Ruled) -> Ruled:
        """The attempts to imitate, group by group; episodes that nobody judged stay, and are left out as such. Rewards
        of single agents and turns say nothing here, so that every answer counts alike."""
        groups, left_out = [], list(ruled.left_out)
        for group in ruled.groups:
            reasons = self._reasons(group)
            left_out += [(why, each) for why, each in zip(reasons, group.episodes, strict=True) if why]
            kept = [each for why, each in zip(reasons, group.episodes, strict=True) if not why]
            groups.append(replace(group, episodes=tuple(replace(e, agent_rewards={}, turn_rewards={}) for e in kept)))
        counts = Counter(why for why, _ in left_out[len(ruled.left_out) :])
        judged = [[each for each in group.episodes if each.verdict is not None] for group in groups]
        figures = {"kept": sum(map(len, judged)), "tasks": sum(map(bool, judged))}
        figures |= {why: counts[why] for why in (WRONG, REPEATED, SURPLUS)}
        metrics = {f"rejection/{name}": float(value) for name, value in figures.items()}
        return Ruled(groups, left_out, ruled.metrics | metrics)

    def _reasons(self, group: Group) -> list[str]:
        """The reason why each episode is left out; "" if it is not."""
        most = self.algorithm.keep_per_task
        reasons = ["" if each.verdict is None else WRONG for each in group.episodes]
        right = [place for place, each in enumerate(group.episodes) if is_right(each)]
        said: set[tuple[tuple[int, ...], ...]] = set()
        kept = 0
        rewards = without_noise([each.verdict.reward if each.verdict else 0.0 for each in group.episodes])
        for place in sorted(right, key=lambda place: -rewards[place]):
            answers = tuple(tuple(turn.output_ids) for turn in group.episodes[place].turns)
            full = most is not None and kept >= most
            reasons[place] = REPEATED if answers in said else SURPLUS if full else ""
            kept += not reasons[place]
            said.add(answers)
        return reasons

"""The pools of a curriculum: what the policy did on each task, what there is left to learn, and whose turn it is.

    new       never played
    learning  some attempts were better than others
    mastered  next to none was wrong
    hopeless  next to none was right

With p the chance that an attempt is right, two attempts at a task differ with a chance of 2 p (1 - p): that is what a
group has to teach, and of the tasks that are being learned those come first that seem to have the most of it (Thompson
sampling). What is retired, mastered or hopeless, is looked at again when it was left alone the longest.
"""

from __future__ import annotations

import json
import math
import random
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from astune.algorithm.batch_rules import is_right
from astune.config.trainer import CurriculumConfig
from astune.errors import RunFolderError
from astune.support.statistics import exceeds
from astune.types import Group

CURRICULUM_FILE = "curriculum.json"
"""Beside the weights of a checkpoint."""
POOLS = ("new", "learning", "mastered", "hopeless")


class TaskRecord(NamedTuple):
    """What the policy did on a task: attempts that were right, that were wrong, and all, which those are of that nobody
    could judge too. Earlier ones count less; `step` is the one that played it last."""

    task_id: str
    right: float
    wrong: float
    attempts: float
    step: int

    @property
    def pool(self) -> str:
        if self.right >= 1 and self.wrong >= 1:
            return "learning"
        return "mastered" if self.right > self.wrong else "hopeless"

    def guess_to_learn(self, draw: random.Random) -> float:
        """Guess what a group has to teach: p (1 - p) with a p out of the Beta distribution that the attempts leave of a
        flat one, so that a task of which little is known may be anything; less where attempts got no verdict."""
        chance = draw.betavariate(self.right + 1, self.wrong + 1)
        return chance * (1 - chance) * ((self.right + self.wrong) / self.attempts) ** 2

    def continue_with(self, newer: TaskRecord, fade: float) -> TaskRecord:
        """The record after the task was played again; what was known counts `fade` of what it did."""
        right, wrong, attempts = (fade * old + new for old, new in zip(self[1:4], newer[1:4], strict=True))
        return TaskRecord(newer.task_id, right, wrong, attempts, newer.step)


def record_group(group: Group, step: int) -> TaskRecord:
    """The record that a group makes. Where all attempts are right, or none is, and their rewards differ all the same,
    those above the mean count as right."""
    judged = [each for each in group.episodes if each.verdict is not None]
    right = [bool(is_right(each)) for each in judged]
    rewards = [each.verdict.reward for each in judged if each.verdict is not None]
    if judged and len(set(right)) == 1 and exceeds(max(rewards), min(rewards)):
        mean = math.fsum(rewards) / len(rewards)
        right = [reward > mean for reward in rewards]
    return TaskRecord(group.task.task_id, sum(right), len(right) - sum(right), len(group.episodes), step)


@dataclass
class Memory:
    """The records of the tasks, by their numbers. The steps before the `ahead` newest are summed up in `records`; those
    are kept apart, each in the order in which its tasks were handed out."""

    fade: float
    ahead: int = 0
    records: dict[int, TaskRecord] = field(default_factory=dict)
    recent: dict[int, list[tuple[int, TaskRecord]]] = field(default_factory=dict)

    def add(self, step: int, played: list[tuple[int, TaskRecord]]) -> None:
        """Take note of a step that is about to count."""
        self.records = self.before(step - self.ahead)
        self.recent = {done: rows for done, rows in self.recent.items() if done >= step - self.ahead}
        self.recent[step] = played

    def before(self, step: float = math.inf) -> dict[int, TaskRecord]:
        """The records before that step; it must not be older than those that are kept apart."""
        records = dict(self.records)
        for done in sorted(done for done in self.recent if done < step):
            for index, newer in self.recent[done]:
                older = records.get(index)
                records[index] = newer if older is None else older.continue_with(newer, self.fade)
        return records

    def save(self, directory: Path, step: int) -> None:
        """Write what is known before that step, which is the next to be trained."""
        records = [[index, *record] for index, record in self.records.items()]
        recent = [[done, index, *record] for done in self.recent if done < step for index, record in self.recent[done]]
        state = {"fade": self.fade, "records": records, "recent": recent}
        (directory / CURRICULUM_FILE).write_text(json.dumps(state), encoding="utf-8")

    @classmethod
    def load(cls, directory: Path) -> Memory:
        """Read what `save` wrote. Raises RunFolderError where that is broken or not there."""
        try:
            state = json.loads((directory / CURRICULUM_FILE).read_text(encoding="utf-8"))
            memory = cls(state["fade"], records={index: TaskRecord(*rest) for index, *rest in state["records"]})
            for done, index, *rest in state["recent"]:
                memory.recent.setdefault(done, []).append((index, TaskRecord(*rest)))
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise RunFolderError(f"{directory} has nothing of astune.trainer.curriculum: {error}") from error
        return memory


def count_pools(records: Mapping[int, TaskRecord], tasks: int) -> dict[str, float]:
    """The figures of a step: how many of all the `tasks` are in each pool."""
    counts = Counter(record.pool for record in records.values())
    counts["new"] = tasks - len(records)
    return {f"curriculum/{pool}": float(counts[pool]) for pool in POOLS}


@dataclass(frozen=True)
class Draw:
    """The draw of one step, which is `number` of its schedule, for so many `places`."""

    keys: CurriculumConfig
    places: int
    number: int
    seed: int

    def order(self, records: Mapping[int, TaskRecord], new: Sequence[int], waiting: Collection[int]) -> list[int]:
        """All tasks by their numbers, those first whose turn it is: the share of new ones, in their order; that of
        those left alone the longest; those that are being learned, by a guess; then what is left of the new and of
        those left alone. `waiting` are in the hands of other steps, and last."""
        draw = random.Random(f"{self.seed}/curriculum/{self.number}")
        alone = sorted((one for one in records if one not in waiting), key=lambda one: (records[one].step, one))
        guesses = {one: records[one].guess_to_learn(draw) for one in alone if records[one].pool == "learning"}
        learning = sorted(guesses, key=lambda one: (-guesses[one], one))
        unseen = [one for one in new if one not in records and one not in waiting]
        first, again = self._share(self.keys.new), self._share(self.keys.look_again)
        ordered = (*unseen[:first], *alone[:again], *learning, *unseen[first:], *alone[again:], *sorted(waiting))
        return list(dict.fromkeys(ordered))

    def _share(self, part: float) -> int:
        """Places for a part of all: over the steps they add up to it."""
        return int((self.number + 1) * part * self.places) - int(self.number * part * self.places)

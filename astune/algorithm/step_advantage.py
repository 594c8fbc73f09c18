"""Advantage estimators that look at a whole step, and the one form that all estimators have.

What is compared is a population: the outcomes of all episodes of a step, or the rewards of one agent, or those of one
agent's turns. An estimator is given a population group by group and gives one advantage for every reward. A plain
function of one group's rewards (`advantage.py`, or a plug-in) becomes an estimator by `PerGroup`.

    estimator = load_estimator(config.algorithm)
    estimator(OUTCOMES, [Rewards(task, (1.0, 0.0)), Rewards(other, (0.0, 0.0))])     # [[1.0, -1.0], [0.0, 0.0]]

A plug-in that looks at more than one group is a subclass of `StepEstimator`.
"""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from astune.algorithm.advantage import ADVANTAGES, STD_FLOOR, AdvantageFunction, dr_grpo, rloo
from astune.config.algorithm import AlgorithmConfig
from astune.errors import RunFolderError, TrainingError
from astune.plugins import load_plugin
from astune.support.statistics import exceeds, without_noise
from astune.support.user_code import place_of
from astune.support.user_values import figure, show_value, text_of
from astune.types import Task

OUTCOMES = "outcome"
"""The population of the episodes' own rewards; the others are named after their agent."""
STATE_FILE = "advantage.json"


@dataclass(frozen=True)
class Rewards:
    """The rewards of one group in one population; those that differ by rounding are made equal. `tokens` are the
    trained tokens that each is about, `turns` the trained turns; both default to one."""

    task: Task
    values: tuple[float, ...]
    tokens: tuple[int, ...] = ()
    turns: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "values", tuple(without_noise(self.values)))
        for name in ("tokens", "turns"):
            if not getattr(self, name):
                object.__setattr__(self, name, (1,) * len(self.values))


class StepEstimator(ABC):
    """Gives advantages to a whole step. `__call__` changes nothing, so it may be asked again; `observe` is told once of
    every step that counts, and what it keeps is saved and loaded with the checkpoints."""

    for_critic = False
    """True if a critic makes the advantages of these: every judged episode is trained, whatever it is given here."""

    def __init__(self, config: AlgorithmConfig) -> None:
        self.config = config

    @abstractmethod
    def __call__(self, population: str, groups: Sequence[Rewards]) -> list[list[float]]:
        """One finite number for every reward, group by group."""

    def observe(self, populations: Mapping[str, Sequence[Rewards]]) -> None:  # noqa: B027  most keep nothing
        """Take note of the rewards of a step that is done."""

    def save(self, directory: Path) -> None:  # noqa: B027
        """Write what `load` needs to go on bit for bit."""

    def load(self, directory: Path) -> None:  # noqa: B027
        """Go on from what `save` wrote. Raises RunFolderError where that is broken."""


class Imitation(StepEstimator):
    """1 for everything: rewards say nothing of what is learned."""

    def __call__(self, population: str, groups: Sequence[Rewards]) -> list[list[float]]:
        return [[1.0] * len(group.values) for group in groups]


class PerGroup(StepEstimator):
    """A function of the rewards of one group, over the groups of a step one by one."""

    def __init__(self, function: AdvantageFunction) -> None:
        self.function = function

    def __call__(self, population: str, groups: Sequence[Rewards]) -> list[list[float]]:
        return [self._apply(group) for group in groups]

    def _apply(self, group: Rewards) -> list[float]:
        """Ask the function. Raises TrainingError where it does not give one finite number per reward."""
        if not group.values:
            return []
        place, task_id = f"astune.algorithm.advantage: {self.function!r}", group.task.task_id
        try:
            given: object = self.function([float(reward) for reward in group.values])
            advantages = [figure(value) for value in given] if isinstance(given, Iterable) else []
        except Exception as error:
            raise TrainingError(
                f"{place} raised {type(error).__name__}: {text_of(error)}, at the rewards of task {task_id!r} "
                f"({place_of(error)})"
            ) from error
        found = [value for value in advantages if value is not None]
        if not any(exceeds(abs(value), 0.0) for value in found):  # equal rewards less their mean, by rounding
            found = [0.0] * len(found)
        if len(advantages) != len(group.values) or len(found) != len(group.values):
            raise TrainingError(
                f"{place} gave {show_value(given)} for the {len(group.values)} rewards of task {task_id!r}; expected "
                "one finite number for each"
            )
        return found


class StepWiseGrpo(StepEstimator):
    """Trinity's `step_wise_grpo`: what an episode earned at its end, compared within its group, goes to all its turns.
    With `astune.algorithm.step_norm` it is divided by the number of its turns.

    (reward - mean) / (std + 1e-6) with the standard deviation of a sample, n - 1. Without step_norm that is `grpo` but
    for the n - 1. With it and `loss_aggregation: turn_mean`, every episode counts the same, and in it every turn, be it
    long or short; `turn_mean` alone lets an episode of many turns count more.
    """

    def __call__(self, population: str, groups: Sequence[Rewards]) -> list[list[float]]:
        return [self._group(group) for group in groups]

    def _group(self, group: Rewards) -> list[float]:
        centred = dr_grpo(group.values) if group.values else []
        others = len(centred) - 1
        std = math.sqrt(math.fsum(value * value for value in centred) / others) if others > 0 else 0.0
        if std < STD_FLOOR:
            return [0.0] * len(centred)
        return [
            value / (std + 1e-6) / (max(turns, 1) if self.config.step_norm else 1)
            for value, turns in zip(centred, group.turns, strict=True)
        ]


class ReinforcePP(StepEstimator):
    """REINFORCE++ (arXiv 2501.03262): rewards less their mean over the step, in units of their standard deviation.

    Both are over the trained tokens of the step, of which each has the reward of its episode, as in the paper and in
    OpenRLHF and verl; so a long episode counts more in them. A penalty by KL divergence, which the paper takes off the
    reward token by token, is a regulariser here and not in them.
    """

    def __call__(self, population: str, groups: Sequence[Rewards]) -> list[list[float]]:
        return over_tokens([self._own(group) for group in groups], [group.tokens for group in groups])

    def _own(self, group: Rewards) -> list[float]:
        return list(group.values)


class ReinforcePPBaseline(ReinforcePP):
    """REINFORCE++ with baseline (the same paper): the mean of the group is taken off first."""

    def _own(self, group: Rewards) -> list[float]:
        return dr_grpo(group.values) if group.values else []


def over_tokens(values: Sequence[Sequence[float]], tokens: Sequence[Sequence[int]]) -> list[list[float]]:
    """Values less their mean, in units of their standard deviation, both over tokens: a value with three tokens counts
    three times. All 0 where they differ by nothing, or have no token.

    >>> over_tokens([[1.0], [0.0, 0.0]], [[1], [2, 1]])
    [[1.73...], [-0.57..., -0.57...]]
    """
    equal = iter(without_noise([value for row in values for value in row]))
    values = [[next(equal) for _ in row] for row in values]
    flat = [
        (value, count)
        for row, counts in zip(values, tokens, strict=True)
        for value, count in zip(row, counts, strict=True)
    ]
    total = sum(count for _, count in flat)
    if not total or len({value for value, _ in flat}) == 1:
        return [[0.0] * len(row) for row in values]
    mean = math.fsum(value * count for value, count in flat) / total
    std = math.sqrt(math.fsum(count * (value - mean) ** 2 for value, count in flat) / total)
    return [[0.0 if std < STD_FLOOR else (value - mean) / std for value in row] for row in values]


@dataclass
class _Mean:
    """An exponential mean as two sums, so that the first steps count in full: its value is `sum / weight`."""

    sum: float = 0.0
    weight: float = 0.0


class RunningMean(StepEstimator):
    """Reward minus the mean reward of tasks of its kind in earlier steps: for attempts that have no siblings.

    The baseline of REINFORCE (Williams 1992), one for each kind: the metadata column `astune.algorithm.baseline_by`,
    else the type of environment. A step counts `1 - baseline_decay` of the whole, those before it the rest. A kind that
    no earlier step had is compared with the others of its kind in its first step, and a lone one gets 0.
    """

    def __init__(self, config: AlgorithmConfig) -> None:
        super().__init__(config)
        self._means: dict[tuple[str, str], _Mean] = {}
        """By population and kind of task."""

    def __call__(self, population: str, groups: Sequence[Rewards]) -> list[list[float]]:
        kinds = [self._kind(group.task) for group in groups]
        first: dict[str, list[float]] = {}
        for kind, group in zip(kinds, groups, strict=True):
            if (population, kind) not in self._means:
                first.setdefault(kind, []).extend(group.values)
        left = {kind: iter(rloo(values)) for kind, values in first.items() if values}
        return [
            [next(left[kind]) if kind in left else self._above(population, kind, value) for value in group.values]
            for kind, group in zip(kinds, groups, strict=True)
        ]

    def observe(self, populations: Mapping[str, Sequence[Rewards]]) -> None:
        decay = self.config.baseline_decay
        for population, groups in populations.items():
            seen: dict[str, list[float]] = {}
            for group in groups:
                seen.setdefault(self._kind(group.task), []).extend(group.values)
            for kind, values in seen.items():
                if values:
                    mean = self._means.setdefault((population, kind), _Mean())
                    mean.sum = decay * mean.sum + (1.0 - decay) * math.fsum(values) / len(values)
                    mean.weight = decay * mean.weight + (1.0 - decay)

    def save(self, directory: Path) -> None:
        rows = [[*key, mean.sum, mean.weight] for key, mean in self._means.items()]
        (directory / STATE_FILE).write_text(json.dumps(rows), encoding="utf-8")

    def load(self, directory: Path) -> None:
        try:
            rows = json.loads((directory / STATE_FILE).read_text(encoding="utf-8"))
            self._means = {(str(name), str(kind)): _Mean(float(s), float(w)) for name, kind, s, w in rows}
        except (OSError, ValueError, TypeError) as error:
            raise RunFolderError(
                f"{directory} has no baselines of astune.algorithm.advantage 'running_mean' to go on from: {error}"
            ) from error

    def _above(self, population: str, kind: str, value: float) -> float:
        mean = self._means[population, kind]
        baseline = mean.sum / mean.weight
        return value - baseline if exceeds(value, baseline) or exceeds(baseline, value) else 0.0

    def _kind(self, task: Task) -> str:
        column = self.config.baseline_by
        if column is None:
            return task.env_type or ""
        if column not in task.metadata:
            raise TrainingError(
                f"astune.algorithm.baseline_by: task {task.task_id!r} has no column {column!r} in its metadata; it has "
                f"{', '.join(task.metadata) or 'none'} (astune.task_reader.fields.metadata says which are kept)"
            )
        return str(task.metadata[column])


class ForCritic(StepEstimator):
    """Rewards as they are: a critic makes the advantages of them, in the learner (`backbone/losses/critic.py`)."""

    for_critic = True

    def __call__(self, population: str, groups: Sequence[Rewards]) -> list[list[float]]:
        return [[float(value) for value in group.values] for group in groups]


Advantage = AdvantageFunction | StepEstimator
"""What gives advantages: a function of one group's rewards, or an estimator."""


def as_estimator(advantage: Advantage) -> StepEstimator:
    return advantage if isinstance(advantage, StepEstimator) else PerGroup(advantage)


def load_estimator(config: AlgorithmConfig) -> StepEstimator:
    """Load the estimator of `astune.algorithm.advantage`. Raises PluginError for a name that there is not."""
    found = load_plugin(config.advantage, kind="advantage", builtin=ADVANTAGES)
    return found(config) if isinstance(found, type) and issubclass(found, StepEstimator) else PerGroup(found)

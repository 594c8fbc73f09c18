"""The groups of a step: its tasks, and in dynamic sampling further tasks for those that teach nothing."""

from __future__ import annotations

from itertools import islice

from astune.algorithm import BatchRules
from astune.algorithm.credit import credit_groups
from astune.algorithm.samples import has_signal
from astune.training.rollout_setup import sampling_for
from astune.training.run import TrainingRun, roll_out
from astune.training.schedule import TaskSchedule
from astune.types import Group, Task


async def play_groups(run: TrainingRun, step: int, rules: BatchRules) -> tuple[list[Group], dict[str, float]]:
    """Play the tasks of step `step`, counted from 0. As often as `astune.algorithm.dynamic_sampling` says, for every
    group without signal another task is played (DAPO, arXiv 2503.14476, section 3.2); a step may end with fewer groups
    that teach something than it has tasks, and says so.

    Which tasks these are depends on the number of the step and on what was played, so a step that is done again, after
    a stop, gets the same. All groups are returned; those without signal are left out of the update as ever.
    """
    assert isinstance(run.schedule, TaskSchedule)
    tasks = run.schedule.tasks(step)
    groups = await _play(run, step, tasks, "rollout")
    most = run.config.algorithm.dynamic_sampling
    if not most:
        return groups, {}
    further, rounds = run.schedule.further(step), 0
    missing = len(tasks) - _count_teaching(run, rules, groups)
    while missing and rounds < most and (more := list(islice(further, missing))):
        rounds += 1
        groups += await _play(run, step, more, f"rollout of {len(more)} further tasks")
        missing = len(tasks) - _count_teaching(run, rules, groups)
    figures = {"rounds": rounds, "further_tasks": len(groups) - len(tasks), "missing_groups": missing}
    return groups, {f"dynamic_sampling/{name}": float(value) for name, value in figures.items()}


async def _play(run: TrainingRun, step: int, tasks: list[Task], phase: str) -> list[Group]:
    sampling = sampling_for(run.config, "sampled")
    return await roll_out(run, tasks, run.config.rollout.num_repeat, sampling, phase, f"train/{step + 1}", step)


def _count_teaching(run: TrainingRun, rules: BatchRules, groups: list[Group]) -> int:
    """Count the groups that have signal, as they are learned from."""
    return sum(map(has_signal, credit_groups(rules(groups).groups, run.advantage)))

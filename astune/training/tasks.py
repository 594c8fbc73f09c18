"""Read the tasks of a run, and check before it begins that they can be played and judged."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator

from astune.config.rules.beside import unread_judge_keys
from astune.config.schema import AstuneConfig
from astune.errors import ConfigError
from astune.rollout.environment import check_environments
from astune.support.terminal import Console
from astune.task_judge import TaskJudges
from astune.task_judge.registry import import_registered
from astune.task_judge.task_judges import judge_named_by
from astune.task_reader.task_reader_base import SPLITS
from astune.task_reader.task_sets import TaskSets, read_task_sets
from astune.types import Task

logger = logging.getLogger(__name__)


def read_tasks(config: AstuneConfig) -> TaskSets:
    """Read all tasks of a run and check them: each has a judge if it names one, and a service if it has an
    environment. What is left out or may be wrong is logged."""
    kinds = _Kinds()
    with Console(stderr=True).status("reading tasks"):  # shows itself on a terminal only
        sets = read_task_sets(config.task_reader, kinds.add, config.evaluation.sets)
    kinds.check(config)
    if problems := [f"{key}: {what}" for key, what in kinds.unread_judge_keys(config)]:
        raise ConfigError("\n".join(problems))
    for warning in sets.warnings:
        logger.warning(warning)
    for split in SPLITS:
        if skipped := sets.of(split).skipped:
            logger.warning(
                "%s bad %s records are left out, the first: %s (`astune tasks preview` lists all)",
                f"{len(skipped):,}",
                split,
                skipped[0],
            )
    return sets


def check_tasks(tasks: Iterable[Task], config: AstuneConfig) -> None:
    """Check that tasks can be played and judged as they ask for. Raises TaskError, PluginError or ConfigError."""
    kinds = _Kinds()
    for task in tasks:
        kinds.add(task)
    kinds.check(config)


def judge_keys_that_none_reads(tasks: Iterable[Task], config: AstuneConfig) -> Iterator[tuple[str, str]]:
    """Find what a run with these tasks refuses of `astune.task_judge`, as no judge reads it: its key, and why."""
    kinds = _Kinds()
    for task in tasks:
        kinds.add(task)
    return kinds.unread_judge_keys(config)


class _Kinds:
    """The first task of each kind: what a task asks for decides whether it can be played and judged."""

    def __init__(self) -> None:
        self._first: dict[tuple[str | None, ...], Task] = {}

    def add(self, task: Task) -> None:
        self._first.setdefault((task.env_type, *judge_named_by(task)), task)

    def check(self, config: AstuneConfig) -> None:
        tasks = self._first.values()
        judges = TaskJudges(config.task_judge)
        import_registered(judges.specs(tasks), config.rollout.agentscope_learn_protocol)
        judges.check(tasks)
        check_environments(tasks, config.task_reader.env_service)

    def unread_judge_keys(self, config: AstuneConfig) -> Iterator[tuple[str, str]]:
        """Find what is set of `astune.task_judge` and read by no judge of these tasks: its key, and why."""
        named = TaskJudges(config.task_judge).specs(self._first.values())
        judges = {*named, *(each.judge for each in config.task_judge.judges)}
        return unread_judge_keys(config.task_judge, judges, named=bool(named))

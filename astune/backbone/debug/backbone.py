"""The debug backbone: the same tasks, workflow, judge and model as in training, in one thread, without time limits."""

from __future__ import annotations

import asyncio
import bdb
import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from rich.console import Console

from astune.algorithm import ADVANTAGES, AdvantageFunction, check_episode, check_step, to_samples
from astune.backbone.debug.screen import Screen
from astune.backbone.debug.showing_policy import ShowingPolicy
from astune.backbone.parts import read_tasks, rollout_setup, sampling_for, weighting_for
from astune.config.load import LoadedConfig
from astune.config.schema import AstuneConfig, Config
from astune.context_tracker.chat_format import ChatFormat
from astune.errors import TaskError
from astune.monitor import EpisodeLog, RunDir
from astune.plugins import load_plugin
from astune.rollout.episode import run_episode
from astune.rollout.group import episode_seed
from astune.rollout.setup import RolloutSetup
from astune.types import Episode, Group, Policy, RunReport, Task

NO_LIMIT = 7 * 24 * 3600.0
"""Seconds that no debugging session takes."""

MakePolicy = Callable[[AstuneConfig], tuple[Policy, ChatFormat]]


def local_policy(config: AstuneConfig) -> tuple[Policy, ChatFormat]:
    """The model of `astune.model`, in this process."""
    from astune.backbone.local.setup import load_policy

    _, sampler, chat_format = load_policy(config)
    return sampler, chat_format


class DebugBackbone:
    """Runs `astune.debug.num_tasks` tasks, `num_repeat` attempts at each, and shows every model call as it happens.

    `breakpoint()` in the workflow or the judge stops in the terminal: nothing else runs, no bar is drawn, and no
    time limit is counted. Quitting the debugger ends the run. The episodes are kept in `runs/<project>/<name>-debug`.
    """

    name: ClassVar[str] = "debug"
    honours: ClassVar[frozenset[str]] = frozenset({"astune"})
    ignored_sections: ClassVar[frozenset[str]] = frozenset(
        {
            "astune.algorithm.clip_high",
            "astune.algorithm.clip_low",
            "astune.algorithm.loss",
            "astune.evaluation",
            "astune.monitor",
            "astune.resume",
            "astune.rollout.episode_timeout",
            "astune.rollout.max_concurrent",
            "astune.rollout.num_repeat",
            "astune.task_judge.timeout",
            "astune.trainer",
        }
    )

    def __init__(self, console: Console | None = None, make_policy: MakePolicy = local_policy) -> None:
        self._screen = Screen(console or Console(highlight=False))
        self._make_policy = make_policy

    def run(self, loaded: LoadedConfig) -> RunReport:
        config = _without_time_limits(loaded.config.astune)
        tasks = _tasks(config)
        advantage = load_plugin(config.algorithm.advantage, kind="advantage", builtin=ADVANTAGES)
        policy, chat_format = self._make_policy(config)
        showing = ShowingPolicy(policy, chat_format, self._screen)
        setup = rollout_setup(config, showing, chat_format)
        run_dir = RunDir.open(_named_debug(loaded.config), resume=False)
        self._screen.run_started(config, run_dir.path, len(tasks))
        finished = False
        with EpisodeLog(run_dir) as log, contextlib.suppress(KeyboardInterrupt, bdb.BdbQuit):
            session = _Session(config, setup, showing, self._screen, log, advantage)
            asyncio.run(session.play(tasks))
            finished = True
        self._screen.run_finished(session.episodes)
        summary = {"episodes": len(session.episodes)}
        return RunReport(run_dir.path, 0, "completed" if finished else "interrupted", summary)


@dataclass
class _Session:
    """The episodes of one debug run. Each is checked and kept as soon as it ends."""

    config: AstuneConfig
    setup: RolloutSetup
    showing: ShowingPolicy
    screen: Screen
    log: EpisodeLog
    advantage: AdvantageFunction
    episodes: list[Episode] = field(default_factory=list)

    async def play(self, tasks: Sequence[Task]) -> None:
        """One after another. Raises `BdbQuit` if the user quit the debugger, `InvariantError` for a fault of ASTune."""
        for task in tasks:
            names = [f"debug/{task.task_id}/{number}" for number in range(self.config.debug.num_repeat)]
            group = Group(task, tuple([await self._attempt(task, name) for name in names]))
            samples, receipt = to_samples([group], self.advantage, weighting_for(self.config))
            check_step([group], samples, receipt)
            if len(group.episodes) > 1:
                self.screen.group_done(group, samples)

    async def _attempt(self, task: Task, episode_id: str) -> Episode:
        self.screen.episode_started(episode_id, task)
        self.showing.episode_started()
        episode = await run_episode(
            task,
            self.setup,
            episode_id=episode_id,
            seed=episode_seed(self.config.seed, episode_id),
            sampling=sampling_for(self.config, "sampled"),
        )
        if episode.error is not None and episode.error.kind == bdb.BdbQuit.__name__:
            raise bdb.BdbQuit
        self.episodes.append(episode)
        self.log.write(episode, step=0, phase="debug")
        self.screen.episode_done(episode)
        check_episode(episode)
        return episode


def _tasks(config: AstuneConfig) -> list[Task]:
    tasks = read_tasks(config, config.debug.split)[: config.debug.num_tasks]
    if not tasks:
        raise TaskError(f"astune.debug.split: there are no {config.debug.split} tasks; see astune.task_reader")
    return tasks


def _without_time_limits(config: AstuneConfig) -> AstuneConfig:
    """Someone who looks around in a debugger must not run into a timeout, of the judge's own neither."""
    rollout = config.rollout.model_copy(update={"episode_timeout": NO_LIMIT})
    judge = config.task_judge.model_copy(update={"timeout": NO_LIMIT})
    return config.model_copy(update={"rollout": rollout, "task_judge": judge})


def _named_debug(config: Config) -> Config:
    """The config whose run folder is `<name>-debug`, so that debug runs never mix with training runs."""
    settings = config.astune
    name = f"{settings.experiment_name or 'run'}-debug"
    return config.model_copy(update={"astune": settings.model_copy(update={"experiment_name": name})})

"""The debug backbone: the same tasks, workflow, judge and model as in training, in one thread, without time limits."""

from __future__ import annotations

import asyncio
import bdb
import contextlib
import os
import pdb
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from types import FrameType
from typing import ClassVar, Literal

from astune.algorithm.method import method_of
from astune.backbone.base import UPDATE_SECTIONS, Backbone
from astune.backbone.debug.debug_run import DebugRun, make_update_view
from astune.backbone.debug.plan import Attempts, find_recorded_clock, plan_attempts
from astune.backbone.debug.sources.debug_model import DebugModel, choose_model
from astune.backbone.debug.studio import studio
from astune.backbone.debug.terminal import Terminal
from astune.backbone.debug.views.screen import Screen
from astune.config.clock import with_clock
from astune.config.load import LoadedConfig
from astune.config.rules.models import configs_of_trained
from astune.config.schema import AstuneConfig, Config
from astune.errors import ConfigError, CtrlC, SetupError
from astune.monitor import EpisodeLog, RunDir
from astune.monitor.causes import cause_of
from astune.support.concurrency import run_and_leave
from astune.support.file_kinds import other_kind
from astune.support.signals import on_ctrl_c
from astune.support.terminal import Console
from astune.training.rollout_setup import environment_service, rollout_setup
from astune.training.run_store import begin_run, open_run_store
from astune.types import Episode, RunReport

NO_LIMIT = 7 * 24 * 3600.0
"""Seconds: a week, longer than anyone sits in a debugger."""
PIPED_WIDTH = 120
"""Columns of a screen that is no terminal."""


class DebugBackbone(Backbone):
    """Runs a few tasks, one attempt after another, and shows every model call, tool result and verdict as it happens;
    with `astune.debug.step` it stops at each and takes commands.

    `breakpoint()` in the workflow or the judge stops in the terminal: nothing else runs, no bar is drawn, and no
    time limit is counted. Quitting ends the run. The episodes are kept in `runs/<project>/<name>-debug`.
    """

    name: ClassVar[str] = "debug"
    honours: ClassVar[frozenset[str]] = frozenset({"astune"})
    ignored_sections: ClassVar[frozenset[str]] = UPDATE_SECTIONS | {
        "astune.allow_changes",
        "astune.evaluation",
        "astune.monitor.check_invariants",
        "astune.monitor.mlflow",
        "astune.monitor.progress",
        "astune.monitor.swanlab",
        "astune.monitor.tracker_episodes",
        "astune.monitor.trackers",
        "astune.monitor.trackio",
        "astune.monitor.wandb",
        "astune.online",
        "astune.resume",
        "astune.rollout.episode_timeout",
        "astune.rollout.max_concurrent",
        "astune.rollout.num_repeat",
        "astune.rollout.workers",
        "astune.synchronizer",
        "astune.task_judge.timeout",
        "trinity",
        "verl",
    }

    def __init__(
        self, console: Console | None = None, terminal: Terminal | None = None, model: DebugModel | None = None
    ) -> None:
        """`model` answers in place of the configured one."""
        self._screen = Screen(console or _make_console())
        self._terminal = terminal
        self._model = model

    def run(self, loaded: LoadedConfig) -> RunReport:
        loaded = with_clock(loaded, find_recorded_clock(loaded.config.astune))
        with environment_service(_lift_time_limits(loaded.config.astune)) as config:
            return self._run(loaded, config)

    def _run(self, loaded: LoadedConfig, config: AstuneConfig) -> RunReport:
        terminal = self._terminal or Terminal(self._screen.console, _read_commands(config))
        advantages = {name: method_of(own.algorithm).estimator() for name, own in configs_of_trained(config).items()}
        groups = plan_attempts(config)
        model = self._model or choose_model(config, terminal)
        setup = rollout_setup(config, model.policy, model.chat_format)
        show_update = make_update_view(config, model, self._screen.console) if config.debug.with_update else None
        run = DebugRun(config, setup, model, self._screen, terminal, advantages, show_update)
        settings = _name_debug(loaded.config)
        with contextlib.ExitStack() as stack:
            store = open_run_store(config, stack)
            run_dir = stack.enter_context(RunDir.open(settings, resume=False))
            begin_run(store, settings, run_dir, new=True)
            log = stack.enter_context(EpisodeLog(run_dir, store))
            self._screen.run_started(config, model.name, run_dir.path, _describe(groups, config))
            finished = self._play_groups(run, groups, run_dir, log)
            log.sync()
        self._screen.run_finished(run.episodes)
        summary = {"episodes": len(run.episodes)}
        return RunReport(run_dir.path, 0, _find_status(finished, run.episodes), summary)

    def _play_groups(self, run: DebugRun, groups: Sequence[Attempts], run_dir: RunDir, log: EpisodeLog) -> bool:
        """True if all were played, False if Ctrl-C or the end of pdb ended it before."""
        config, name = run.config, run_dir.path.name
        studio_id = f"{config.project_name}/{name}/{int(time.time())}"
        with (
            studio(config.debug.studio_url, project=config.project_name, name=name, run_id=studio_id) as studio_run,
            on_ctrl_c(partial(_handle_ctrl_c, run)),
            contextlib.suppress(KeyboardInterrupt, bdb.BdbQuit, asyncio.CancelledError),
        ):
            try:
                run_and_leave(run.play(groups, log, studio_run))
                return True
            except SetupError:
                run_dir.discard()  # a run that never began leaves nothing behind
                raise
        return False


def _find_status(finished: bool, episodes: Sequence[Episode]) -> Literal["completed", "interrupted", "failed"]:
    """Failed if no episode could be judged."""
    if not finished:
        return "interrupted"
    return "failed" if episodes and all(cause_of(episode) is not None for episode in episodes) else "completed"


def _make_console() -> Console:
    """A console as wide as the terminal; in a file or a pipe wide enough for the tables."""
    console = Console()
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = PIPED_WIDTH
    return console


def _handle_ctrl_c(run: DebugRun) -> None:
    """End the run and keep the episodes so far. The second Ctrl-C breaks off at once; in pdb it only asks for another
    command."""
    if run.stopping or not run.running or _is_in_pdb(sys._getframe()):
        raise CtrlC
    run.stop()


def _is_in_pdb(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename == pdb.__file__:
            return True
        frame = frame.f_back
    return False


def _read_commands(config: AstuneConfig) -> list[str]:
    if config.debug.commands is None:
        return []
    path = Path(config.debug.commands)
    if wrong := other_kind(path, "commands of the debugger, one in a line"):
        raise ConfigError(f"astune.debug.commands: {wrong}")
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"astune.debug.commands: cannot read {path}: {error}") from error
    return [line for line in lines if not line.lstrip().startswith("#")]


def _describe(groups: Sequence[Attempts], config: AstuneConfig) -> str:
    episodes = sum(len(group.recordings) for group in groups)
    count = f"{episodes} episode{'s' * (episodes != 1)}"
    if groups[0].recordings[0] is not None:
        return f"{count} from a recording"
    of = f"{len(groups)} of the {config.debug.split} tasks, astune.debug.num_repeat={config.debug.num_repeat}"
    return f"{count} ({of})"


def _lift_time_limits(config: AstuneConfig) -> AstuneConfig:
    """Lift the limits of episodes and judges, which a person in a debugger would run into."""
    rollout = config.rollout.model_copy(update={"episode_timeout": NO_LIMIT})
    judge = config.task_judge.model_copy(update={"timeout": NO_LIMIT})
    return config.model_copy(update={"rollout": rollout, "task_judge": judge})


def _name_debug(config: Config) -> Config:
    """Change the name of the run folder to `<name>-debug`, so that debug runs never mix with training runs."""
    settings = config.astune
    name = (settings.experiment_name or "run").removesuffix("-debug") + "-debug"
    return config.model_copy(update={"astune": settings.model_copy(update={"experiment_name": name})})

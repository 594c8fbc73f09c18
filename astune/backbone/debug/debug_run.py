"""Play the episodes of a debug run one after another; check and keep each as soon as it ends."""

from __future__ import annotations

import asyncio
import bdb
import contextlib
import math
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from astune.algorithm import BatchRules, StepEstimator, check_episode, check_step, to_samples
from astune.backbone.debug.observer import DebugObserver
from astune.backbone.debug.plan import Attempts
from astune.backbone.debug.sources.debug_model import DebugModel
from astune.backbone.debug.stops.stepper import Stepper
from astune.backbone.debug.stops.stop import Branch
from astune.backbone.debug.studio import Studio
from astune.backbone.debug.terminal import Terminal
from astune.backbone.debug.views.screen import Screen, shorten_path
from astune.backbone.debug.views.update import show_update
from astune.config.rules.models import configs_of_trained
from astune.config.schema import AstuneConfig
from astune.errors import ConfigError
from astune.monitor import EpisodeLog
from astune.monitor.blocking import LoopWatch
from astune.monitor.tool_failures import ToolFailures
from astune.recordings.recording import Recording
from astune.recordings.replay import PATIENCE, EpisodeReplay, replay_difference
from astune.rollout.group import run_group
from astune.rollout.own_turns import list_own
from astune.rollout.setup import RolloutSetup
from astune.support.terminal import Console
from astune.training.rollout_setup import sampling_for, weighting_for
from astune.types import Episode, Group, Sample

ShowUpdate = Callable[[Sequence[Sample], Group], Awaitable[None]]
"""Shows what one optimizer step over the samples of a group would do."""


@dataclass
class DebugRun:
    """One debug run: its parts, and the episodes that are done."""

    config: AstuneConfig
    setup: RolloutSetup
    model: DebugModel
    screen: Screen
    terminal: Terminal
    advantages: Mapping[str, StepEstimator]
    """The estimator of each model that would be trained, by its name."""
    show_update: ShowUpdate | None
    episodes: list[Episode] = field(default_factory=list)
    tools: ToolFailures = field(default_factory=ToolFailures)
    stopping: bool = False
    """True once the run was told to stop."""
    running: bool = False

    async def play(self, groups: Iterable[Attempts], log: EpisodeLog, studio: Studio | None) -> None:
        """Play all attempts. Raises `BdbQuit` if the user quit pdb, CancelledError if the run was stopped, both with
        the episodes so far kept; `InvariantError` for a fault of ASTune, `SetupError` before the first episode."""
        self.running = True
        self._loop, self._main = asyncio.get_running_loop(), asyncio.current_task()
        self._log = log
        self._stepper = Stepper(self.terminal, self.screen, self.stop, stops=_has_stops(self.config))
        self._observer = DebugObserver(self.screen, self._stepper, self.model.source, studio)
        self.setup = replace(self.setup, observer=self._observer)
        async with self.setup.share():
            await self._play(groups)

    async def _play(self, groups: Iterable[Attempts]) -> None:
        watch = LoopWatch(self.screen.note)
        for attempts in groups:
            with watch:
                group = await self._play_group(attempts)
            self._warn(self.tools.end_phase())
            for name, own in configs_of_trained(self.config).items():
                await self._show_lesson(name, own, list_own([group], name))

    async def _show_lesson(self, name: str, config: AstuneConfig, groups: list[Group]) -> None:
        """Show what the model would learn from a group, its own part of it."""
        rules = BatchRules.of(config, self.setup.models.find_length(name, self.setup.policy.context_length))
        if rules.agent_reward == "leave_one_out":
            rules = replace(rules, agent_reward="same")
            self.screen.note("agent_reward: nothing is played again here, so agents are paid the episode's reward")
        ruled = rules(groups)
        samples, receipt = to_samples(ruled.groups, self.advantages[name], weighting_for(config), ruled.left_out)
        check_step(groups, samples, receipt)
        if len(groups[0].episodes) > 1:
            self.screen.group_done(groups[0], samples, name)
        if self.show_update is not None:
            await self.show_update(samples, groups[0])

    def _warn(self, warnings: Iterable[str]) -> None:
        for warning in warnings:
            self.screen.note(warning)

    def stop(self) -> None:
        """Ends the run; may be called from a signal handler."""
        self.stopping = True
        assert self._main is not None
        self._loop.call_soon_threadsafe(self._main.cancel)  # wakes the loop, which may be waiting in select

    async def _play_group(self, attempts: Attempts) -> Group:
        """The attempts with their verdicts, shown and kept. Those that wait for a judge of groups when the run is
        stopped are kept as they are. There are no stops around such a judge."""
        kept = len(self.episodes)
        self._observer.episodes.clear()
        try:
            async with contextlib.aclosing(self._give_names(attempts)) as names:
                return await run_group(
                    attempts.task,
                    len(attempts.recordings),
                    self.setup,
                    seed=self.config.seed,
                    sampling=sampling_for(self.config, "sampled"),
                    on_episode=self._finish,
                    in_turn=names,
                )
        except (asyncio.CancelledError, bdb.BdbQuit):
            for episode in self._observer.episodes[len(self.episodes) - kept :]:
                self._finish(episode)
            raise

    async def _give_names(self, attempts: Attempts) -> AsyncGenerator[str, None]:
        """Give the names of the attempts at a task, each followed by the names of its branches. An episode is prepared
        before its name is given, and over when the next name is asked for."""
        group_judge = self.setup.group_judge(attempts.task, len(attempts.recordings))
        for number, recording in enumerate(attempts.recordings):
            name = f"debug/{attempts.task.task_id}/{number}" if recording is None else recording.episode.episode_id
            waiting: list[Branch | Recording | None] = [recording]
            played: dict[str, Episode] = {}
            while waiting:
                start = waiting.pop(0)
                this = f"{name}-branch{len(played)}" if isinstance(start, Branch) else name
                branch = start.call if isinstance(start, Branch) else -1
                self._observer.begin(self._make_replay(start, played), branch)
                if start is None:
                    self.model.episode_started(attempts.task.task_id)
                self.screen.episode_started(this, attempts.task)
                yield this
                episode = played[this] = self._observer.episodes[-1]
                # Who quits pdb means the run; to the episode it was an error of the workflow like any other.
                if episode.error is not None and episode.error.kind == bdb.BdbQuit.__name__:
                    raise bdb.BdbQuit
                if group_judge is None:
                    await self._observer.at_verdict(episode)
                if isinstance(start, Branch):
                    self.screen.show_branch(played[start.episode_id], episode)
                elif start is not None:
                    self.screen.show_replay(replay_difference(start, episode, self.setup))
                waiting += self._stepper.branches
                self._stepper.branches.clear()

    def _make_replay(self, start: Branch | Recording | None, played: dict[str, Episode]) -> EpisodeReplay | None:
        if start is None:
            return None
        patience = math.inf if _has_stops(self.config) else PATIENCE
        if isinstance(start, Recording):
            return EpisodeReplay(start.episode, patience=patience)
        parent = played[start.episode_id]
        answers = {start.call: start.answer}
        return EpisodeReplay(parent, until=start.call, answers=answers, patience=patience)

    def _finish(self, episode: Episode) -> None:
        self.episodes.append(episode)
        path = self._log.write(episode, step=0, phase="debug")
        self.screen.episode_done(episode, f"{shorten_path(path)}#{len(self.episodes) - 1}")
        self._warn(self.tools.add(episode))
        check_episode(episode)


def _has_stops(config: AstuneConfig) -> bool:
    return config.debug.step or config.debug.commands is not None


def make_update_view(config: AstuneConfig, model: DebugModel, console: Console) -> ShowUpdate:
    """Make the function that takes one optimizer step over a group with the local model, shows what it does and takes
    it back. Raises `ConfigError` if the model has no weights here."""
    if model.loaded is None:
        raise ConfigError(
            f"astune.debug.with_update: {model.name} has no weights here to update; it needs a local model "
            "(leave --model out, or --model tiny)"
        )
    from astune.backbone.local.inspect import UpdateInspector

    loaded, sampler = model.loaded
    inspector = UpdateInspector(loaded, sampler, config)

    async def show(samples: Sequence[Sample], group: Group) -> None:
        show_update(console, await inspector.inspect(samples), samples, group, model.chat_format.pieces)

    return show

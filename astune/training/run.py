"""Everything that a training run holds, and how it plays tasks."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from astune.algorithm import BatchRules, Receipt, StepEstimator
from astune.algorithm.batch_rules import Ruled
from astune.algorithm.credit import credit_groups
from astune.algorithm.method import Method, method_of
from astune.algorithm.receipt import receipt_of
from astune.algorithm.samples import has_signal
from astune.config.rules.models import configs_of_trained, count_turns, figures_of_best, pattern_problems, whose_turn
from astune.config.schema import AstuneConfig
from astune.errors import ConfigError, TrainingError
from astune.monitor.blocking import LoopWatch
from astune.monitor.checkpoint_names import Best
from astune.monitor.episodes import EpisodeLog
from astune.monitor.metrics import MetricsLog
from astune.monitor.progress import Learning, Progress
from astune.monitor.run_dir import RunDir
from astune.rollout.group import Limit, OnEpisode, run_groups
from astune.rollout.own_turns import list_own
from astune.rollout.past_versions import PastVersions
from astune.rollout.redrawn import check_judges, count_again, play_redrawn
from astune.rollout.setup import Quorum, RolloutSetup, draw_none
from astune.training.engine import Engine, Learner, wait_forever
from astune.training.held_out import Evaluation
from astune.training.rollout_setup import sampling_for
from astune.training.schedule import ExampleSchedule, TaskSchedule
from astune.training.stages import Stage
from astune.types import Group, Sample, Sampling, Task

if TYPE_CHECKING:
    from astune.store.runs import RunStore


class Ahead(AbstractAsyncContextManager["Ahead"], Protocol):
    """Rollouts that go on while the model is trained, while it is entered (`astune.training.ahead`)."""

    async def groups(self) -> tuple[list[Group], dict[str, float]]:
        """Wait for the groups of the step that is next, see `play_groups`. Steps that may follow go on, or begin."""

    def between_answers(self) -> AbstractAsyncContextManager[None]:
        """Keep answers from being under way while it is entered, so that weights may change."""

    def show(self, phase: str, number: int, step: int | None) -> OnEpisode:
        """Show that `number` episodes begin, and give what is to be told of each: the display shows the step that is
        waited for."""

    def places(self, step: int | None) -> Limit:
        """The bound of the episodes under way, of all steps and evaluations together; these go first."""


@dataclass
class Pupil:
    """A model that learns, and how it does. `name` is empty where it is the only one of a run.

    `changes` is what `learner.changes` was when the last step was done: as long as it still is, the weights are those
    of that step.
    """

    name: str
    config: AstuneConfig
    learner: Learner
    method: Method
    advantage: StepEstimator
    steps: int
    """The number of steps of its schedule that it learns from."""
    changes: int = 0
    skipped_in_a_row: int = 0

    def folder_in(self, checkpoint: Path) -> Path:
        """The folder that is the model's in a checkpoint of the run: the checkpoint itself where it has no name."""
        return checkpoint / self.name if self.name else checkpoint

    def save(self, checkpoint: Path) -> None:
        """Write what `load` needs to go on bit for bit. Raises OSError where the disk does not take it."""
        folder = self.folder_in(checkpoint)
        folder.mkdir(exist_ok=True)
        self.learner.save(folder)
        self.advantage.save(folder)

    def load(self, checkpoint: Path) -> None:
        """Go on from what `save` wrote. Raises RunFolderError where that is broken or of another model."""
        self.learner.load(self.folder_in(checkpoint))
        self.advantage.load(self.folder_in(checkpoint))

    def apply_rules(self, own: Sequence[Group], setup: RolloutSetup) -> Ruled:
        """Apply the rules over the groups of a step to the model's `own`."""
        return BatchRules.of(self.config, setup.models.find_length(self.name, setup.policy.context_length))(own)


async def publish_all(pupils: Mapping[str, Pupil]) -> dict[str, float]:
    """Make the weights of each model what the policy samples from. Returns the versions under the models' names."""
    versions: dict[str, float] = {}
    for name, pupil in pupils.items():
        versions |= name_figures(name, {"policy_version": await pupil.learner.publish()})
    return versions


def pupils_of(config: AstuneConfig, engine: Engine, steps: range) -> dict[str, Pupil]:
    """The models that learn in these steps, by name. Raises ConfigError for an engine that has other models than the
    configuration."""
    configs, learners = configs_of_trained(config), engine.learners
    if configs.keys() != learners.keys():
        raise ConfigError("astune.models: the engine of this backbone has one model; expected --backbone=local")
    methods = {name: method_of(own.algorithm) for name, own in configs.items()}
    return {
        name: Pupil(
            name, own, learners[name], methods[name], methods[name].estimator(), count_turns(config, name, steps)
        )
        for name, own in configs.items()
    }


def name_figures(name: str, figures: Mapping[str, float]) -> dict[str, float]:
    """The figures of a model under its name, where it has one."""
    return {f"model/{name}/{figure}": value for figure, value in figures.items()} if name else dict(figures)


def receipt_of_untrained(groups: Sequence[Group], frozen: Sequence[str]) -> Receipt:
    """The receipt of what the models said that are never trained."""
    episodes = [episode for name in frozen for group in list_own(groups, name) for episode in group.episodes]
    return receipt_of(episodes, [], [("frozen", episode) for episode in episodes])


def figures_of_receipts(
    receipts: Mapping[str, Receipt], versions: Mapping[str, int], untrained: Receipt
) -> dict[str, float]:
    """The figures of each model under its name, and those of all together. `versions` are those before the update."""
    figures: dict[str, float] = {}
    for name, receipt in receipts.items():
        figures |= name_figures(name, receipt.metrics(versions[name]))
    dated = (receipt.count_from(versions[name]) for name, receipt in receipts.items())
    return figures | sum(dated, start=untrained).metrics(0)


@dataclass
class TrainingRun:
    """Everything a run holds. `step` counts the steps done: a step is done when its episodes and figures are written.

    `pupils` are the models that learn, by name: one without a name, or those of `astune.models`; `past` are the earlier
    versions of them that attempts meet. `evaluated` are the names of the evaluations at `step` that are written. `best`
    are the steps that were best by the figures of `keep_best`, under the same names; `known` are those of these figures
    that an evaluation had. `saved` is the time of the last checkpoint.
    """

    config: AstuneConfig
    run_dir: RunDir
    metrics: MetricsLog
    episodes: EpisodeLog
    progress: Progress
    learning: Learning
    watch: LoopWatch
    setup: RolloutSetup | None
    """None where no episodes are played: examples are learned, and no held-out tasks are configured."""
    pupils: Mapping[str, Pupil]
    past: Sequence[PastVersions]
    schedule: TaskSchedule | ExampleSchedule
    evaluations: Sequence[Evaluation]
    held_out_examples: Sequence[Sample] = ()
    stage: Stage | None = None
    store: RunStore | None = None
    where: Callable[[str], str] = str
    """A key of the configuration with its place (`LoadedConfig.where`)."""
    lost: Callable[[], Awaitable[TrainingError]] = wait_forever
    """See `Engine.lost`."""
    ahead: Ahead | None = None
    """Plays the steps to come while the model is trained; None: they take turns."""
    step: int = 0
    evaluated: set[str] = field(default_factory=set)
    heard: set[tuple[str, str]] = field(default_factory=set)
    """The agents that had a turn since the run began or went on, each with its model."""
    best: Mapping[str, Best] = field(default_factory=dict)
    known: set[str] = field(default_factory=set)
    saved: float = field(default_factory=time.monotonic)

    @property
    def parts(self) -> Sequence[Pupil | PastVersions]:
        """The parts that a checkpoint has of the run."""
        return [*self.pupils.values(), *self.past]

    @property
    def only(self) -> Pupil:
        """The model, where there is one: examples are learned by one alone."""
        (pupil,) = self.pupils.values()
        return pupil

    @property
    def keep_best(self) -> Mapping[str, Sequence[str | None]]:
        """The figures of `figures_of_best`, with stages those of each so far."""
        if self.stage is not None:
            return {"": self.stage.keep_best}
        return {name: (figure,) for name, figure in figures_of_best(self.config).items()}

    @property
    def total_steps(self) -> int:
        return self.schedule.total_steps


async def roll_out(
    run: TrainingRun,
    tasks: Sequence[Task],
    repeat: int,
    sampling: Sampling,
    phase: str,
    label: str,
    step: int | None = None,
) -> list[Group]:
    """Play `repeat` attempts at each task, in the order of `tasks`, and show them on the progress display: those that
    `step` (from 0) is to learn from, or, without one, those of an evaluation, all of which are waited for."""
    assert run.setup is not None, "only a run with tasks plays them"
    number, part = len(tasks) * repeat, run.config.synchronizer.quorum
    quorum = Quorum(number, part, run.config.synchronizer.patience) if step is not None and part < 1.0 else None
    if run.ahead is None:
        run.progress.phase_started(phase, number)
        on_episode: OnEpisode = run.progress.episode_done
        limit = None
    else:
        on_episode, limit = run.ahead.show(phase, number, step), run.ahead.places(step)
    with run.watch:
        return await run_groups(
            tasks,
            repeat,
            replace(
                run.setup,
                judges_alone=step is None,
                quorum=quorum,
                draw_versions=draw_none if step is None else partial(draw_versions, run.past, step),
            ),
            seed=run.config.seed,
            sampling=sampling,
            max_concurrent=run.config.rollout.max_concurrent,
            label=label,
            on_episode=on_episode,
            limit=limit,
        )


def draw_versions(past: Sequence[PastVersions], step: int, seed: int) -> dict[str, str]:
    """Draw for a task of a step a version of each of the models that are earlier versions of another."""
    return {each.name: each.draw(seed, step) for each in past}


def finish_past(run: TrainingRun, groups: Sequence[Group]) -> dict[str, float]:
    """Count who won against earlier versions, and keep new ones. Returns the figures of each under its name."""
    figures: dict[str, float] = {}
    for past in run.past:
        of = run.config.models[past.name].past_of or ""
        version = run.pupils[of].learner.policy_version
        figures |= name_figures(past.name, past.finish_step(run.step, groups, [*run.pupils], version))
    return figures


def record(run: TrainingRun, groups: Sequence[Group], phase: str, step: int) -> None:
    """Write the episodes of `groups` into the run's folder. Trackers are shown the first of each group."""
    for group in groups:
        for episode in group.episodes:
            run.episodes.write(episode, step=step, phase=phase)
    run.metrics.show(step, phase, [group.episodes[0] for group in groups if group.episodes])


def warn_of_idle_models(run: TrainingRun, when: str) -> None:
    """Warn of models that nobody has asked."""
    idle = sorted(run.config.models.keys() - {model for _, model in run.heard})
    if idle and run.heard:
        agents = ", ".join(sorted({agent for agent, _ in run.heard}))
        run.progress.warn(f"astune.models: {when} no agent runs on {', '.join(idle)}. There are: {agents}")


def check_patterns(run: TrainingRun) -> None:
    """Raises ConfigError for a pattern that no agent of the first step matches."""
    for key, said in pattern_problems(run.config, {agent for agent, _ in run.heard}):
        raise ConfigError(f"{run.where(key)}: in the first step {said}")


async def play_groups(run: TrainingRun, step: int) -> tuple[list[Group], dict[str, float]]:
    """Play the tasks of step `step`, counted from 0. As often as `astune.algorithm.dynamic_sampling` says, for every
    group without signal another task is played (DAPO, arXiv 2503.14476, section 3.2); a step may end with fewer groups
    that teach something than it has tasks, and says so.

    Which tasks these are depends on the number of the step and on what was played, so a step that is done again, after
    a stop, gets the same. All groups are returned; those without signal are left out of the update as ever.
    """
    assert isinstance(run.schedule, TaskSchedule)
    tasks = run.schedule.tasks(step)
    told: Counter[str] = Counter()
    groups = await _play(run, step, tasks, "rollout", told)
    most = run.config.algorithm.dynamic_sampling
    if not most:
        return groups, {**told}
    further, rounds = run.schedule.further(step), 0
    missing = len(tasks) - _count_teaching(run, step, groups)
    while missing and rounds < most and (more := list(islice(further, missing))):
        rounds += 1
        groups += await _play(run, step, more, f"rollout of {len(more)} further tasks", told)
        missing = len(tasks) - _count_teaching(run, step, groups)
    figures = {"rounds": rounds, "further_tasks": len(groups) - len(tasks), "missing_groups": missing}
    return groups, {**told, **{f"dynamic_sampling/{name}": float(value) for name, value in figures.items()}}


async def _play(run: TrainingRun, step: int, tasks: list[Task], phase: str, told: Counter[str]) -> list[Group]:
    """Play tasks of a step; those attempts again by which agents are paid, which are recorded and counted in `told`."""
    assert run.setup is not None, "only a run with tasks plays them"
    sampling, repeat = sampling_for(run.config, "sampled"), run.config.rollout.num_repeat
    models = [
        name
        for name in whose_turn(run.config, step)
        if run.pupils[name].config.algorithm.agent_reward == "leave_one_out"
    ]
    if models:
        check_judges(tasks, repeat, run.setup)
    groups = await roll_out(run, tasks, repeat, sampling, phase, f"train/{step + 1}", step)
    if not models:
        return groups
    run.progress.phase_started(f"{phase}, again for each agent", count_again(groups, models))
    with run.watch:
        groups, again = await play_redrawn(
            groups,
            replace(run.setup, draw_versions=partial(draw_versions, run.past, step)),
            models,
            seed=run.config.seed,
            sampling=sampling,
            max_concurrent=run.config.rollout.max_concurrent,
            on_episode=run.progress.episode_done,
        )
    for episode in again:
        run.episodes.write(episode, step=step + 1, phase="redrawn")
        told["redrawn/tokens"] += sum(len(turn.output_ids) for turn in episode.turns)
    told["redrawn/episodes"] += len(again)
    return groups


def _count_teaching(run: TrainingRun, step: int, groups: list[Group]) -> int:
    """Count the groups that have signal for any model that learns from the step, as it learns from them."""
    assert run.setup is not None, "only a run with tasks plays them"
    signals = [
        map(has_signal, credit_groups(pupil.apply_rules(list_own(groups, name), run.setup).groups, pupil.advantage))
        for name, pupil in run.pupils.items()
        if name in whose_turn(run.config, step)
    ]
    return sum(map(any, zip(*signals, strict=True)))

"""The beginning of a run: its parts are put together, or it goes on where one stopped."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

from astune.algorithm.method import method_of
from astune.config.load import LoadedConfig
from astune.config.rules import needs_policy, plays_episodes
from astune.config.rules.models import configs_of_trained, figures_of_best
from astune.config.schema import AstuneConfig
from astune.monitor.blocking import LoopWatch
from astune.monitor.episodes import EpisodeLog
from astune.monitor.metrics import MetricsLog, read_metrics
from astune.monitor.progress import Learning, Progress
from astune.monitor.run_dir import RunDir, at_run_clock
from astune.monitor.summary import report_of
from astune.monitor.trackers import load_trackers, open_trackers
from astune.rollout.past_versions import PastVersions
from astune.support.concurrency import run_and_leave
from astune.training.ahead import RolloutsAhead, put_gate
from astune.training.checkpoints import find_evaluated, go_back, step_of
from astune.training.engine import LoadEngine
from astune.training.held_out import Evaluation, are_examples_left, evaluations_left, evaluations_of
from astune.training.rollout_setup import environment_service
from astune.training.rollout_workers.pool import set_up_rollouts
from astune.training.run import TrainingRun, pupils_of
from astune.training.run_store import begin_run, open_run_store
from astune.training.schedule import ExampleSchedule, TaskSchedule, schedule_tasks
from astune.training.stages import Stage, check_start, prepare_stage
from astune.training.stopping import train_to_the_end
from astune.training.tasks import read_tasks
from astune.types import RunReport, Sample


def run_training(loaded: LoadedConfig, load_engine: LoadEngine) -> RunReport:
    """Run a whole training job on the engine that `load_engine` gives, and leave a complete run folder behind."""
    loaded = at_run_clock(loaded)
    if loaded.stages:
        return run_stages(loaded, load_engine)
    with ExitStack() as stack:
        inputs = read_inputs(loaded.config.astune, stack)
        run_dir = stack.enter_context(RunDir.reopen(loaded.config)) if inputs.config.resume else None
        if run_dir is not None and (report := report_if_finished(run_dir, inputs)) is not None:
            return report
        return train_stage(loaded, inputs, run_dir, load_engine, None)


def run_stages(loaded: LoadedConfig, load_engine: LoadEngine) -> RunReport:
    """Run one stage after the other. All that can be read before the first is read and checked then."""
    configs = [stage.config.astune for stage in loaded.stages]
    steps: list[int] = []
    for config in configs:
        with ExitStack() as stack:
            known = None if config.trainer.examples_of_run else read_inputs(config, stack).schedule.steps
        steps.append(sum(steps[-1:]) + (known or config.trainer.total_steps or 0))
    with ExitStack() as whole:
        run_dir, number, notes = None, 1, list[str]()
        if loaded.config.astune.resume:
            run_dir = whole.enter_context(RunDir.reopen(loaded.config))
            done = step_of(run_dir.take_checkpoint(notes.append))
            number += sum(done > end for end in steps[:-1])
            if number > 1:
                check_start(run_dir, number, steps[number - 2])
        else:
            run_dir = whole.enter_context(RunDir.open(loaded.config, resume=False))
        while True:
            stage = Stage(
                number,
                len(configs),
                tuple(steps[: number - 1]),
                tuple(config.trainer.keep_best for config in configs[:number]),
            )
            with ExitStack() as stack:
                inputs = read_inputs(prepare_stage(configs[number - 1], stage, run_dir), stack)
                inputs.schedule.first = stage.first
                report = train_stage(loaded, inputs, run_dir, load_engine, stage, notes)
            if report.status not in ("completed", "learned_nothing") or number == len(configs):
                return report
            number, notes = number + 1, []


def train_stage(
    loaded: LoadedConfig,
    inputs: Inputs,
    run_dir: RunDir | None,
    load_engine: LoadEngine,
    stage: Stage | None,
    notes: Sequence[str] = (),
) -> RunReport:
    """Train to the end of a run, or of one of its stages; `notes` are shown as it begins."""
    with ExitStack() as stack:
        run = assemble(loaded, inputs, run_dir, load_engine, stack, stage)
        for note in notes:
            run.progress.note(note)
        run.progress.run_started(loaded.config, run.run_dir, run.total_steps)
        status, error = run_and_leave(train_to_the_end(run))
        methods = [each.config.astune.algorithm.method for each in loaded.stages]
        report = report_of(run.run_dir, run.step, status, run.keep_best, methods)
        report = replace(report, error=error)
        run.metrics.close(status)
        run.progress.run_finished(report)
        return report


@dataclass(frozen=True)
class Inputs:
    """The input of a run as read and checked, less the model."""

    config: AstuneConfig
    schedule: TaskSchedule | ExampleSchedule
    evaluations: Sequence[Evaluation]
    held_out_examples: Sequence[Sample] = ()


def read_inputs(config: AstuneConfig, stack: ExitStack) -> Inputs:
    """Read and check what a run needs before its model is loaded, which may take minutes."""
    for own in configs_of_trained(config).values():
        method_of(own.algorithm).estimator()  # a plug-in that there is not is found before the model is loaded
    config = stack.enter_context(environment_service(config))
    plays = plays_episodes(config)
    tasks = read_tasks(config) if needs_policy(config) else None
    evaluations = [] if tasks is None else evaluations_of(config.evaluation, tasks)
    if plays and tasks is not None:
        return Inputs(config, schedule_tasks(tasks.training, config), evaluations)
    examples = ExampleSchedule(config)
    return Inputs(config, examples, evaluations, examples.held_out)


def report_if_finished(run_dir: RunDir, inputs: Inputs) -> RunReport | None:
    """Report a run of which nothing is left to do; None if there is."""
    latest = run_dir.latest_checkpoint()
    step = step_of(latest)
    metrics = read_metrics(run_dir.metrics_path) if run_dir.metrics_path.exists() else []
    total = inputs.schedule.total_steps
    done = find_evaluated(step, metrics)
    left = evaluations_left(inputs.config.evaluation, inputs.evaluations, total, step, done)
    examples_left = inputs.held_out_examples and are_examples_left(inputs.config.evaluation, total, step, done)
    if step < total or left or examples_left or latest is None or run_dir.damage(latest) is not None:
        return None
    with Progress(inputs.config.monitor.progress) as progress:
        progress.note(
            f"{run_dir.path} is finished: all of its {step} steps are done, so nothing is; a greater "
            "astune.trainer.total_steps goes on"
        )
    kept_by = {name: (figure,) for name, figure in figures_of_best(inputs.config).items()}
    return report_of(run_dir, step, "completed", kept_by)


def assemble(
    loaded: LoadedConfig,
    inputs: Inputs,
    run_dir: RunDir | None,
    load_engine: LoadEngine,
    stack: ExitStack,
    stage: Stage | None,
) -> TrainingRun:
    """Put the parts of a run together. `run_dir` is that of a run to go on with. Everything that can be wrong in the
    input is found before the folder of a new one is made."""
    config = inputs.config
    store = open_run_store(config, stack)
    trackers = load_trackers(config.monitor)
    engine = load_engine(config)  # may take minutes, so `read_inputs` found first what is wrong without it
    stack.callback(engine.close)
    pupils = pupils_of(config, engine, range(inputs.schedule.first, inputs.schedule.total_steps))
    gate = None
    if config.synchronizer.style == "async":
        engine, gate = put_gate(config, engine)
    setup = set_up_rollouts(config, engine) if needs_policy(config) else None
    new = run_dir is None
    if run_dir is None:
        run_dir = stack.enter_context(RunDir.open(loaded.config, resume=False))
    else:
        run_dir.save_config(loaded.config)
    progress = stack.enter_context(Progress(config.monitor.progress))
    metrics = MetricsLog(run_dir, open_trackers(trackers, loaded.config, run_dir, progress.warn))
    stack.callback(metrics.close)
    begin_run(store, loaded.config, run_dir, new)
    episodes = stack.enter_context(EpisodeLog(run_dir, store))
    run = TrainingRun(
        config=config,
        run_dir=run_dir,
        metrics=metrics,
        episodes=episodes,
        progress=progress,
        learning=Learning(progress, config.trainer.max_unjudged_steps, config.trainer.max_failed_tool_steps),
        watch=LoopWatch(progress.warn),
        setup=setup,
        pupils=pupils,
        past=[PastVersions(name, config.models[name], places) for name, places in engine.places.items()],
        schedule=inputs.schedule,
        evaluations=inputs.evaluations,
        held_out_examples=inputs.held_out_examples,
        stage=stage,
        store=store,
        where=loaded.where,
        lost=engine.lost,
    )
    if gate is not None:
        run.ahead = RolloutsAhead(run, gate)
    if stage is not None:
        progress.note(f"stage {stage.number} of {stage.count}: {config.algorithm.method}, to step {run.total_steps}")
    if config.resume or (stage is not None and stage.first):
        go_back(run)
    if not inputs.evaluations and not inputs.held_out_examples:
        progress.note("no held-out tasks are configured, so nothing is evaluated")
    return run

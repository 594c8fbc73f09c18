"""Run `--backbone=trinity`: the same configuration on Trinity-RFT and Ray.

The driver converts the configuration, checks what can be checked before the first rollout, joins or starts Ray, and
runs Trinity's launcher in a thread of its own, while it takes events from the mailbox and writes the run folder. How
far the run came is read from what Trinity did, never from its exit: it reports success after its trainer died.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from astune.algorithm import load_estimator
from astune.backbone.base import Backbone
from astune.backbone.trinity.conversion.convert import Converted, convert, not_used, wants_attention
from astune.backbone.trinity.conversion.user_keys import check_trinity_keys
from astune.backbone.trinity.conversion.values import uses_tinker, wants_tinker
from astune.backbone.trinity.driver.recorder import Recorder, go_back
from astune.backbone.trinity.shared.parts import RunParts
from astune.backbone.trinity.versions import require_trinity
from astune.config.load import LoadedConfig
from astune.config.rules.method import rules_of
from astune.errors import ConfigError
from astune.examples.read import read_examples
from astune.monitor.episodes import EpisodeLog
from astune.monitor.metrics import MetricsLog
from astune.monitor.progress import Learning, Progress
from astune.monitor.run_dir import RunDir, at_run_clock
from astune.monitor.summary import report_of
from astune.monitor.trackers import load_trackers, open_trackers
from astune.training.rollout_setup import environment_service
from astune.training.run_store import begin_run, open_run_store
from astune.training.schedule import Schedule, TaskSchedule
from astune.training.tasks import read_tasks
from astune.types import RunReport


class TrinityBackbone(Backbone):
    """Explorer, trainer and weight synchronisation are Trinity's; rollouts, rewards and samples are ours."""

    name: ClassVar[str] = "trinity"
    honours: ClassVar[frozenset[str]] = frozenset({"astune", "trinity"})
    ignored_sections: ClassVar[frozenset[str]] = frozenset({"astune.debug", "astune.online", "verl"})

    def problems(self, loaded: LoadedConfig) -> Iterator[str]:
        """The number of tasks is found later: one step is an epoch here."""
        config = loaded.config.astune
        try:
            convert(loaded, Path(config.runs_dir), num_tasks=config.trainer.tasks_per_step)
        except ConfigError as error:
            yield from str(error).splitlines()

    def require_packages(self, loaded: LoadedConfig) -> None:
        tinker = wants_tinker(loaded)
        require_trinity(tinker=tinker, verl=not tinker, attention=wants_attention(loaded))

    def run(self, loaded: LoadedConfig) -> RunReport:
        # Trinity's loggers of this process take their level when they are imported; actors write logs as usual
        os.environ.setdefault("TRINITY_LOG_LEVEL", "CRITICAL")
        with ExitStack() as stack:
            loaded = with_service(at_run_clock(loaded), stack)
            prepared = prepare(loaded)
            from astune.backbone.trinity.driver.run import open_run

            store = open_run_store(loaded.config.astune, stack)
            run_dir = stack.enter_context(RunDir.open(loaded.config, resume=loaded.config.astune.resume))
            progress = stack.enter_context(Progress(loaded.config.astune.monitor.progress))
            progress.run_started(loaded.config, run_dir, prepared.steps)
            for note in prepared.notes:
                progress.note(note)
            converted = convert(loaded, run_dir.path, num_tasks=prepared.items)
            begin_run(store, loaded.config, run_dir, new=not loaded.config.astune.resume)
            if store is not None:
                progress.note("astune.monitor.store gets the episodes; Trinity weighs samples in processes of its own")
            episodes = stack.enter_context(EpisodeLog(run_dir, store))
            recorder = open_recorder(loaded, run_dir, converted, progress, episodes, stack)
            try:
                run = open_run(loaded, converted, recorder, prepared.steps, stack)
            except ConfigError:
                run_dir.discard()  # a run that never began leaves nothing behind
                raise
            status = run.until_done()
            recorder.metrics.close(status)
            report = report_of(run_dir, recorder.step, status)
            progress.run_finished(report)
            return report


def with_service(loaded: LoadedConfig, stack: ExitStack) -> LoadedConfig:
    """Start the environment service that the configuration says to start, on this machine and until `stack` is closed,
    and give the configuration with its address. Where the run is to join a cluster nothing is started: `convert`
    refuses such a configuration."""
    if loaded.config.trinity.get("cluster", {}).get("ray_address", "local") != "local":
        return loaded
    config = stack.enter_context(environment_service(loaded.config.astune))
    return replace(loaded, config=loaded.config.model_copy(update={"astune": config}))


@dataclass(frozen=True)
class Prepared:
    """Figures of a run whose input is checked. `items` is the number of training tasks, or of examples."""

    steps: int
    items: int
    notes: tuple[str, ...]


def prepare(loaded: LoadedConfig) -> Prepared:
    """Check everything in the input that needs neither Ray nor a folder."""
    load_trackers(loaded.config.astune.monitor)
    prepared = prepare_episodes(loaded) if rules_of(loaded.config.astune.algorithm).plays else prepare_examples(loaded)
    tree = convert(loaded, Path(loaded.config.astune.runs_dir), num_tasks=prepared.items).tree
    tinker = uses_tinker(tree)
    require_trinity(tinker=tinker, verl=not tinker, attention=wants_attention(loaded))
    from trinity.common.config import Config as TrinityConfig

    check_trinity_keys(loaded, TrinityConfig)
    return prepared


def prepare_episodes(loaded: LoadedConfig) -> Prepared:
    config = loaded.config.astune
    load_estimator(config.algorithm)  # a name that there is not is found here, before anything starts
    tasks = read_tasks(config)
    nothing = "no held-out tasks are configured, so nothing is evaluated"
    notes = () if tasks.held_out or tasks.named else (nothing,)
    return Prepared(TaskSchedule(tasks.training, config).total_steps, len(tasks.training), notes)


def prepare_examples(loaded: LoadedConfig) -> Prepared:
    config = loaded.config.astune
    examples = read_examples(config, RunParts(config).chat_format)
    steps = Schedule(examples, config.trainer, config.seed, noun="examples").total_steps
    unused = not_used(loaded)
    notes = (f"not used by method {config.algorithm.method}: {', '.join(unused)}",) if unused else ()
    return Prepared(steps, len(examples), notes)


def open_recorder(
    loaded: LoadedConfig,
    run_dir: RunDir,
    converted: Converted,
    progress: Progress,
    episodes: EpisodeLog,
    stack: ExitStack,
) -> Recorder:
    """The writer of the run folder; a resumed run goes back to its newest checkpoint first."""
    tree, config = converted.tree, loaded.config.astune
    job_dir = Path(tree["checkpoint_root_dir"]) / tree["project"] / tree["name"]
    trackers = open_trackers(load_trackers(config.monitor), loaded.config, run_dir, progress.warn)
    metrics = MetricsLog(run_dir, trackers)
    stack.callback(metrics.close)
    recorder = Recorder(
        run_dir,
        metrics,
        episodes,
        progress,
        Learning(progress, config.trainer.max_unjudged_steps, config.trainer.max_failed_tool_steps),
        trainer="trainer",
        keep_checkpoints=None if uses_tinker(tree) else config.trainer.keep_checkpoints,
        job_dir=job_dir,
    )
    if config.resume:
        go_back(recorder, config.trainer.tasks_per_step)
    return recorder

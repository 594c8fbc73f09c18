"""Held-out tasks played with a checkpoint, without a run: what `astune eval` does.

Every episode is written as it ends, and a task whose attempts are all there is not played again, so nothing is lost
when it is stopped. Attempts have the same seeds whatever the checkpoint, so two of them differ by their weights alone.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Awaitable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from functools import partial
from pathlib import Path

from astune.config.clock import at_clock, now, read_clock
from astune.config.render import changes
from astune.config.schema import AstuneConfig, Config
from astune.context_tracker.model_dir import ADAPTER_CONFIG
from astune.errors import ConfigError, RunFolderError
from astune.monitor.checkpoint_names import find_checkpoint
from astune.monitor.disk import write_whole, writing
from astune.monitor.episodes import EpisodeLog, episodes_path, read_episodes
from astune.monitor.jsonl import keep_lines
from astune.monitor.metrics import MetricsLog
from astune.monitor.progress import Progress
from astune.monitor.run_dir import RunDir, RunLock, runs_folder
from astune.rollout.group import run_groups
from astune.rollout.metrics import evaluation_metrics
from astune.rollout.setup import RolloutSetup
from astune.support.concurrency import run_and_leave
from astune.support.file_kinds import Kind, other_kind
from astune.support.run_log import open_log
from astune.training.engine import Engine, LoadEngine, await_unless_lost
from astune.training.held_out import Evaluation
from astune.training.rollout_setup import sampling_for
from astune.training.rollout_workers.pool import set_up_rollouts
from astune.types import Episode, Group, StopReason

ABOUT = "evaluation.json"
"""The file that says what a folder holds the evaluation of."""


@dataclass(frozen=True)
class Candidate:
    """A model to be evaluated: `checkpoint`, the folder of a run's checkpoint at `step`; else `model`, a folder or a
    hub id; with neither the model of the configuration. `mark` changes with the weights, as far as files tell."""

    name: str
    checkpoint: str | None = None
    model: str | None = None
    step: int = 0
    mark: str = ""


@dataclass(frozen=True)
class About:
    """The content of a folder: of whom, and the tasks and attempts of each evaluation."""

    candidate: Candidate
    tasks: Mapping[str, Sequence[str]]
    attempts: Mapping[str, int]


@dataclass(frozen=True)
class Played:
    """A finished evaluation: its groups by the name of the evaluation ("greedy", "hard/sampled"), in the order of the
    tasks. Episodes are without their turns."""

    folder: Path
    about: About
    groups: Mapping[str, Sequence[Group]]


def candidate_of(text: str, config: AstuneConfig) -> Candidate:
    """Find what `--checkpoint` names: a checkpoint of a run (see `find_checkpoint`), a model, or `none`, the model of
    the configuration."""
    if text == "none":
        return Candidate("base", mark=_mark(Path(config.model.path)))
    path = find_checkpoint(text)
    if path is None:
        folder = Path(text).expanduser()
        if wrong := other_kind(folder, "a checkpoint or the folder of a model", Kind.CHECKPOINT):
            raise ConfigError(f"--checkpoint {wrong}")
        name, model = (folder.name, str(folder.absolute())) if folder.is_dir() else (text, text)
        return Candidate(name, model=model, mark=_mark(folder))
    step = int(path.name[len("step_") :])
    return Candidate(f"{path.parents[1].name}/{path.name}", str(path.absolute()), step=step, mark=_mark(path))


def _mark(folder: Path) -> str:
    """A digest of the names, sizes and times of a folder's files; "" for what is no folder."""
    files = sorted(path for path in folder.glob("*") if path.is_file())
    facts = [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in files]
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:16] if folder.is_dir() else ""


def load_candidate(
    config: AstuneConfig, candidate: Candidate, load_engine: LoadEngine, *, as_model: bool = False
) -> Engine:
    """The engine with the candidate's weights. A checkpoint is loaded by the learner that wrote its like, so whatever
    that writes can be evaluated; or `as_model`, as the folder of one, whoever wrote it."""
    model = candidate.model or (candidate.checkpoint if as_model else None)
    checkpoint = None if candidate.checkpoint is None else Path(candidate.checkpoint)
    if model is not None:
        config = config.model_copy(update={"model": config.model.model_copy(update={"path": model})})
    if checkpoint is not None and (checkpoint / ADAPTER_CONFIG).is_file() and config.model.lora.rank is None:
        raise ConfigError(
            f"{checkpoint} holds an adapter, and astune.model.lora.rank is not set; give the astune.model.lora of the "
            f"run, as in {checkpoint.parents[1] / 'config.yaml'}"
        )
    engine = load_engine(config)
    if checkpoint is not None and not as_model:
        engine.learner.load(checkpoint)
    return engine


def play(
    config: Config,
    ready: AstuneConfig,
    candidate: Candidate,
    evaluations: Sequence[Evaluation],
    load_engine: LoadEngine,
    folder: Path | None,
    *,
    as_model: bool = False,
    beside: Played | None = None,
) -> Played:
    """Play what is not played yet, and write the figures. `ready` is the configuration with what it asks to be started,
    `folder` is where to, by default one of its own beside the runs. `beside` is what it is to be compared with, which a
    new folder has its clock from. Raises TrainingError where a part of the engine is lost on the way."""
    about = About(
        candidate,
        {evaluation.name: [task.task_id for task in evaluation.tasks] for evaluation in evaluations},
        {evaluation.name: evaluation.attempts for evaluation in evaluations},
    )
    clock = None if beside is None else read_clock(RunDir(beside.folder).config_path)
    run_dir = RunDir(_open(config, about, folder, clock or now()))
    ready = at_clock(ready, read_clock(run_dir.config_path) or now())
    lock = RunLock(run_dir.path)
    open_log(run_dir.path, as_json=ready.monitor.log_json)
    try:
        with Progress(ready.monitor.progress) as progress:
            groups = {}
            left = {evaluation.name: _find_left(run_dir, evaluation) for evaluation in evaluations}
            began = time.perf_counter()
            if any(left.values()):
                with closing(load_candidate(ready, candidate, load_engine, as_model=as_model)) as engine:
                    setup = replace(set_up_rollouts(ready, engine), judges_alone=True)
                    progress.run_started(config, run_dir, 0)
                    play_all = _play_all(ready, setup, run_dir, candidate.step, evaluations, left, progress)
                    run_and_leave(_play_with(engine, play_all))
            seconds = time.perf_counter() - began
            for evaluation in evaluations:
                groups[evaluation.name] = list(_read(run_dir, evaluation.name, about))
            _write_figures(run_dir, candidate.step, groups, seconds, progress)
        return Played(run_dir.path, about, groups)
    finally:
        lock.release()


async def _play_with(engine: Engine, play_all: Awaitable[None]) -> None:
    await engine.learner.publish()  # what the learner was given, the policy may not have yet
    await await_unless_lost(play_all, engine.lost())


async def _play_all(
    config: AstuneConfig,
    setup: RolloutSetup,
    run_dir: RunDir,
    step: int,
    evaluations: Sequence[Evaluation],
    left: Mapping[str, Sequence[int]],
    progress: Progress,
) -> None:
    async with setup.open():
        with EpisodeLog(run_dir) as log:

            def record(phase: str, episode: Episode) -> None:
                log.write(episode, step=step, phase=phase)
                progress.episode_done(episode)

            for evaluation in evaluations:
                tasks = [evaluation.tasks[number] for number in left[evaluation.name]]
                progress.phase_started(f"evaluation, {evaluation.name}", len(tasks) * evaluation.attempts)
                await run_groups(
                    tasks,
                    evaluation.attempts,
                    setup,
                    seed=config.seed,
                    sampling=sampling_for(config, evaluation.decoding),
                    max_concurrent=config.rollout.max_concurrent,
                    label=f"eval/{evaluation.name}",
                    on_episode=partial(record, f"eval/{evaluation.name}"),
                )
            log.sync()


def _open(config: Config, about: About, folder: Path | None, clock: datetime) -> Path:
    """The folder to write into: one where the same evaluation was begun, else a new one, at `clock` if none is
    given."""
    text = json.dumps(asdict(about), indent=1, ensure_ascii=True) + "\n"
    name = "".join(sign if sign.isalnum() or sign in "-_." else "_" for sign in about.candidate.name)
    chosen = runs_folder(config) / f"{config.astune.experiment_name or 'run'}-eval" / name if folder is None else folder
    number = 1
    while True:
        path = chosen if number == 1 else chosen.with_name(f"{chosen.name}-{number}")
        run_dir = RunDir(path)
        if not path.exists():
            with writing(path):
                path.mkdir(parents=True)
                run_dir.save_config(config.model_copy(update={"astune": at_clock(config.astune, clock)}))
                write_whole(path / ABOUT, text)  # last: a folder without it is nobody's
            return path
        same = (path / ABOUT).is_file() and (path / ABOUT).read_text() == text
        if same and not changes(run_dir.config_path, config):
            return path
        number += 1


def _find_left(run_dir: RunDir, evaluation: Evaluation) -> list[int]:
    """Find the numbers of the tasks of which not all attempts are written, and drop what is there of those."""
    path = episodes_path(run_dir.episodes_dir, f"eval/{evaluation.name}")
    counts: dict[str, int] = {}
    if path.is_file():
        for record in read_episodes(path):
            if record.episode.stop_reason is not StopReason.CANCELLED:
                task = record.episode.task.task_id
                counts[task] = counts.get(task, 0) + 1
        done = {task for task, count in counts.items() if count == evaluation.attempts}
        keep_lines(path, lambda row: row["task_id"] in done)
    return [n for n, task in enumerate(evaluation.tasks) if counts.get(task.task_id) != evaluation.attempts]


def _read(run_dir: RunDir, name: str, about: About) -> list[Group]:
    """The groups of an evaluation in the order of its tasks. Raises RunFolderError where attempts are missing."""
    path = episodes_path(run_dir.episodes_dir, f"eval/{name}")
    by_task: dict[str, list[Episode]] = {}
    for record in read_episodes(path) if path.is_file() else ():
        episode = replace(record.episode, turns=(), timelines=())
        by_task.setdefault(episode.task.task_id, []).append(episode)
    groups = []
    for task in about.tasks[name]:
        episodes = sorted(by_task.get(task, []), key=lambda episode: episode.episode_id)
        if len(episodes) != about.attempts[name]:
            raise RunFolderError(
                f"{run_dir.path}: {name}: task {task!r} has {len(episodes)} of {about.attempts[name]} attempts; the "
                "command that wrote the folder plays what is missing"
            )
        groups.append(Group(episodes[0].task, tuple(episodes)))
    return groups


def _write_figures(
    run_dir: RunDir, step: int, groups: Mapping[str, Sequence[Group]], seconds: float, progress: Progress
) -> None:
    with writing(run_dir.metrics_path):
        run_dir.metrics_path.unlink(missing_ok=True)
    log = MetricsLog(run_dir, tensorboard=False)
    for name, played in groups.items():
        metrics = evaluation_metrics(played, seconds)
        log.log(step, {f"eval/{name}/{figure}": value for figure, value in metrics.items()})
        progress.evaluation_done(step, name, metrics)
    log.close()


def read_played(folder: Path) -> Played:
    """The evaluation that `play` left in a folder. Raises RunFolderError where there is none, or one that is not
    finished."""
    path = folder / ABOUT
    if wrong := other_kind(folder, "the folder of an evaluation", Kind.PLAYED):
        raise ConfigError(wrong)
    if not path.is_file():
        raise RunFolderError(f"{folder} holds no evaluation: there is no {ABOUT}; `astune eval --checkpoint` writes it")
    try:
        row = json.loads(path.read_text(encoding="utf-8"))
        about = About(Candidate(**row["candidate"]), row["tasks"], row["attempts"])
    except (ValueError, KeyError, TypeError) as error:
        raise RunFolderError(f"{path} is damaged: {type(error).__name__}: {error}") from error
    return Played(folder, about, {name: _read(RunDir(folder), name, about) for name in about.tasks})

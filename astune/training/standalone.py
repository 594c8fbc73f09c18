"""Held-out tasks played with a checkpoint, without a run: what `astune eval` does.

Every episode is written as it ends, and a task whose attempts are all there is not played again, so nothing is lost
when it is stopped. Attempts have the same seeds whatever the checkpoint, so two of them differ by their weights alone.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Awaitable, Collection, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from astune.clients.chat import ChatClient
from astune.config.clock import at_clock, now, read_clock
from astune.config.render import changes
from astune.config.schema import AstuneConfig, Config
from astune.context_tracker.model_dir import load_chat_format, resolve_base_dir
from astune.errors import ConfigError, RunFolderError
from astune.monitor.disk import write_whole, writing
from astune.monitor.episodes import EpisodeLog, episodes_path, read_episodes
from astune.monitor.jsonl import keep_lines, read_lines
from astune.monitor.metrics import MetricsLog
from astune.monitor.progress import Progress
from astune.monitor.run_dir import RunDir, RunLock, runs_folder
from astune.rollout.group import run_groups
from astune.rollout.metrics import evaluation_metrics
from astune.rollout.setup import RolloutSetup
from astune.support.concurrency import run_and_leave
from astune.support.file_kinds import Kind, other_kind
from astune.support.run_log import open_log
from astune.training.candidates import Candidate, load_candidate
from astune.training.engine import Engine, LoadEngine, await_unless_lost
from astune.training.held_out import Evaluation
from astune.training.model_calls import ApiSource, CallLog, TimedCall, keep_calls, read_calls
from astune.training.rollout_setup import NoPolicy, rollout_setup, sampling_for
from astune.training.rollout_workers.pool import set_up_rollouts
from astune.types import Episode, Group, StopReason, Task

T = TypeVar("T")
ABOUT = "evaluation.json"
"""The file that says what a folder holds the evaluation of."""
PART = "part.json"
"""The file that says which tasks were played, where not all were."""
UNKNOWN_CONTEXT_LENGTH = 1_000_000
"""Stands for the context of an API, which nobody tells."""


@dataclass(frozen=True)
class About:
    """The content of a folder: of whom, and the tasks and attempts of each evaluation."""

    candidate: Candidate
    tasks: Mapping[str, Sequence[str]]
    attempts: Mapping[str, int]


@dataclass(frozen=True)
class Played:
    """A finished evaluation: its groups by the name of the evaluation ("greedy", "hard/sampled"), in the order of the
    tasks, those that were played. Episodes are without their turns; `calls` are those of the model, by episode."""

    folder: Path
    about: About
    groups: Mapping[str, Sequence[Group]]
    calls: Mapping[str, Sequence[TimedCall]] = field(default_factory=dict)


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
    part: Mapping[str, Collection[str]] | None = None,
    drawn: Mapping[str, str] | None = None,
) -> Played:
    """Play what is not played yet, and write the figures. `ready` is the configuration with what it asks to be started,
    `folder` is where to, by default one of its own beside the runs. `beside` is what it is to be compared with, which a
    new folder has its clock from. `part` are the tasks to play, by evaluation; None: all. `drawn` are the versions that
    all attempts meet (`AgentModels.drawn`). Raises TrainingError where a part of the engine is lost on the way."""
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
            chosen = [_take(evaluation, part) for evaluation in evaluations]
            done = drop_unfinished(run_dir, {_episodes_of(run_dir, each.name): each.attempts for each in evaluations})
            left = {
                each.name: [task for task in each.tasks if f"eval/{each.name}/{task.task_id}" not in done]
                for each in chosen
            }
            began = time.perf_counter()
            if any(left.values()):
                with ExitStack() as stack:
                    engine = load_player(ready, candidate, load_engine, as_model, stack)
                    setup, calls = set_up_player(ready, candidate, engine, run_dir)
                    setup = replace(setup, draw_versions=lambda seed: drawn or {})
                    stack.enter_context(closing(calls))
                    progress.run_started(config, run_dir, 0)
                    play_all = _play_all(ready, setup, calls, run_dir, candidate.step, chosen, left, progress)
                    run_and_leave(play_with(engine, play_all))
            seconds = time.perf_counter() - began
            _note_part(run_dir, chosen, evaluations)
            groups = {each.name: list(_read(run_dir, each.name, _ids(each), each.attempts)) for each in chosen}
            with writing(run_dir.metrics_path):
                run_dir.metrics_path.unlink(missing_ok=True)
            log = MetricsLog(run_dir)
            for name, played in groups.items():
                metrics = evaluation_metrics(played, seconds)
                log.log(candidate.step, {f"eval/{name}/{figure}": value for figure, value in metrics.items()})
                progress.evaluation_done(candidate.step, name, metrics)
            log.close()
        return Played(run_dir.path, about, groups, read_calls(run_dir.path))
    finally:
        lock.release()


def _take(evaluation: Evaluation, part: Mapping[str, Collection[str]] | None) -> Evaluation:
    if part is None:
        return evaluation
    wanted = part[evaluation.name]
    return evaluation._replace(tasks=[task for task in evaluation.tasks if task.task_id in wanted])


def _ids(evaluation: Evaluation) -> list[str]:
    return [task.task_id for task in evaluation.tasks]


def _note_part(run_dir: RunDir, chosen: Sequence[Evaluation], evaluations: Sequence[Evaluation]) -> None:
    """Say which tasks were played, or that all were."""
    if list(chosen) == list(evaluations):
        (run_dir.path / PART).unlink(missing_ok=True)
    else:
        write_whole(run_dir.path / PART, json.dumps({each.name: _ids(each) for each in chosen}))


def load_player(
    ready: AstuneConfig, candidate: Candidate, load_engine: LoadEngine, as_model: bool, stack: ExitStack
) -> Engine | None:
    """The engine with the candidate's weights; None for an API, which has none."""
    if candidate.needs_engine:
        return stack.enter_context(closing(load_candidate(ready, candidate, load_engine, as_model=as_model)))
    if ready.rollout.workers:
        raise ConfigError(
            f"astune.rollout.workers={ready.rollout.workers}: the episodes of a chat API are played in this process; "
            "set it to 0"
        )
    return None


def set_up_player(
    ready: AstuneConfig, candidate: Candidate, engine: Engine | None, run_dir: RunDir
) -> tuple[RolloutSetup, CallLog]:
    """The parts that play the candidate, and the log of its calls. Those that workers play are not in it."""
    if engine is not None:
        setup, calls = set_up_rollouts(ready, engine), CallLog(run_dir.path, candidate.step)
    else:
        chat_format = load_chat_format(ready.model, resolve_base_dir(ready.model.path, weights=False))
        policy = NoPolicy(ready.model.max_model_len or UNKNOWN_CONTEXT_LENGTH)
        setup = rollout_setup(ready, policy, chat_format)
        if candidate.chat is not None:
            client = ChatClient(candidate.name, candidate.chat, key=candidate.key)
            stand_in = partial(ApiSource, client)
            calls = CallLog(run_dir.path, candidate.step, stand_in, candidate.chat)
        else:
            calls = CallLog(run_dir.path, candidate.step, live=candidate.live)
    return replace(setup, judges_alone=True, observer=calls), calls


async def play_with(engine: Engine | None, work: Awaitable[T]) -> T:
    """Await what plays with an engine, or with none. Raises TrainingError where a part of it is lost on the way."""
    if engine is None:
        return await work
    for learner in engine.learners.values():
        await learner.publish()  # what the learner was given, the policy may not have yet
    return await await_unless_lost(work, engine.lost())


async def _play_all(
    config: AstuneConfig,
    setup: RolloutSetup,
    calls: CallLog,
    run_dir: RunDir,
    step: int,
    evaluations: Sequence[Evaluation],
    left: Mapping[str, Sequence[Task]],
    progress: Progress,
) -> None:
    async with setup.open():
        with EpisodeLog(run_dir) as log:

            def record(phase: str, episode: Episode) -> None:
                log.write(episode, step=step, phase=phase)
                progress.episode_done(episode)

            for evaluation in evaluations:
                tasks = left[evaluation.name]
                progress.phase_started(f"evaluation, {evaluation.name}", len(tasks) * evaluation.attempts)
                calls.sampling = sampling_for(config, evaluation.decoding)
                await run_groups(
                    tasks,
                    evaluation.attempts,
                    setup,
                    seed=config.seed,
                    sampling=calls.sampling,
                    max_concurrent=config.rollout.max_concurrent,
                    label=f"eval/{evaluation.name}",
                    on_episode=partial(record, f"eval/{evaluation.name}"),
                )
            log.sync()


def _open(config: Config, about: About, folder: Path | None, clock: datetime) -> Path:
    """The folder to write into: one where the same evaluation was begun, else a new one, at `clock` if none is
    given."""
    row = {"candidate": about.candidate.to_row(), "tasks": about.tasks, "attempts": about.attempts}
    text = json.dumps(row, indent=1, ensure_ascii=True) + "\n"
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


def _episodes_of(run_dir: RunDir, name: str) -> Path:
    return episodes_path(run_dir.episodes_dir, f"eval/{name}")


def drop_unfinished(run_dir: RunDir, attempts: Mapping[Path, int]) -> set[str]:
    """Drop the episodes and the calls of groups of which not all attempts are there. `attempts` is how many a group has
    in a file of episodes. Returns the names of the groups that are whole, as "eval/greedy/7"."""
    whole, files = set[str](), [path for path in attempts if path.is_file()]
    for path in files:
        rows = (row for row in read_lines(path) if row["stop_reason"] != StopReason.CANCELLED.value)
        whole |= {name for name, count in Counter(map(_group_of, rows)).items() if count == attempts[path]}
    for path in files:
        keep_lines(path, lambda row: _group_of(row) in whole)
    keep_calls(run_dir.path, whole)
    return whole


def _group_of(row: Mapping[str, Any]) -> str:
    return str(row["episode_id"]).rpartition("/")[0]


def read_attempts(path: Path, *, turns: bool = False) -> dict[str, list[Episode]]:
    """The episodes of a file by task, the attempts in their order; with their `turns` only where these are wanted."""
    found: dict[str, list[Episode]] = {}
    for record in read_episodes(path) if path.is_file() else ():
        episode = replace(record.episode, timelines=(), turns=record.episode.turns if turns else ())
        found.setdefault(episode.task.task_id, []).append(episode)
    for episodes in found.values():
        episodes.sort(key=lambda one: int(one.episode_id.rpartition("/")[2]))
    return found


def _read(run_dir: RunDir, name: str, tasks: Sequence[str], attempts: int) -> list[Group]:
    """The groups of an evaluation in the order of `tasks`. Raises RunFolderError where attempts are missing."""
    by_task, groups = read_attempts(_episodes_of(run_dir, name)), []
    for task in tasks:
        episodes = by_task.get(task, [])
        if len(episodes) != attempts:
            raise RunFolderError(
                f"{run_dir.path}: {name}: task {task!r} has {len(episodes)} of {attempts} attempts; the "
                "command that wrote the folder plays what is missing"
            )
        groups.append(Group(episodes[0].task, tuple(episodes)))
    return groups


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
        part = json.loads((folder / PART).read_text(encoding="utf-8")) if (folder / PART).is_file() else about.tasks
    except (ValueError, KeyError, TypeError) as error:
        raise RunFolderError(f"{path} is damaged: {type(error).__name__}: {error}") from error
    groups = {name: _read(RunDir(folder), name, part[name], about.attempts[name]) for name in about.tasks}
    return Played(folder, about, groups, read_calls(folder))

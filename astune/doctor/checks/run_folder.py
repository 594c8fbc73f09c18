"""Can the run write where it is to write, is there room, and can it be resumed if that is asked for?"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from astune.backbone.base import covers
from astune.config.rules.models import configs_of_trained, count_turns, figures_of_best
from astune.doctor.checked_config import CheckedConfig, Missing
from astune.doctor.checks.training import total_steps
from astune.doctor.findings import Finding, fail, ok, skip, warn
from astune.doctor.memory_estimate import count_trained
from astune.errors import ConfigError, StoreError
from astune.monitor.episodes import EpisodeRecord, episode_to_row
from astune.monitor.run_dir import RunDir
from astune.rollout.redrawn import count_again
from astune.support.machine_memory import show_bytes
from astune.types import Group

KEY = "astune.runs_dir"
STORE = "astune.monitor.store"
BYTES_PER_PARAMETER = 12
"""Weights in float32 and two figures of Adam."""
BYTES_PER_TOKEN = 20
"""Size of a token in an episode's file: the id, the log-probability, and the text twice (in the turn and in the
history)."""


def check_run_folder(checked: CheckedConfig) -> Iterator[Finding]:
    config = checked.config
    runs = Path(config.runs_dir).absolute()
    existing = next(folder for folder in (runs, *runs.parents) if folder.exists())
    if not existing.is_dir():
        yield fail(
            f"{existing} is a file, and the run needs a folder there", where=checked.where(KEY), fix="name another"
        )
        return
    if not os.access(existing, os.W_OK | os.X_OK):
        fix = "name a folder of your own, as astune.runs_dir=~/runs, or change its rights"
        yield fail(f"nothing can be written into {existing}", where=checked.where(KEY), fix=fix)
        return
    if config.resume:
        yield from _resume(checked, runs)
    yield from _room(checked, existing)
    yield from _store(checked)
    name = (config.experiment_name or "run") + "-debug" * (config.backbone == "debug")
    old = (
        "a run of that name is there and is kept: the new one gets a number"
        if (runs / config.project_name / name).exists() and not config.resume
        else "nothing is written over"
    )
    yield ok(f"{runs / config.project_name / name}; {old}")


def _resume(checked: CheckedConfig, runs: Path) -> Iterator[Finding]:
    config = checked.config
    try:
        run = RunDir.newest(runs / config.project_name, config.experiment_name or "run")
        yield ok(f"goes on from {run.latest_checkpoint()}")
    except ConfigError as error:
        what, _, fix = str(error).removeprefix("astune.resume: ").partition(". ")
        yield fail(what, where=checked.where("astune.resume"), fix=fix or "start without --resume")


def _store(checked: CheckedConfig) -> Iterator[Finding]:
    """The database that gets episodes too, which is asked but not written to."""
    url = checked.config.monitor.store
    if url is None:
        return
    if checked.offline and not url.startswith("sqlite"):
        yield skip("astune.monitor.store is a server, and this is --offline")
        return
    try:
        from astune.store.database import check_usable, show_url
    except ModuleNotFoundError as error:
        yield fail(f"{STORE} needs {error.name!r}", where=checked.where(STORE), fix="pip install 'astune[online]'")
        return
    try:
        there = check_usable(url) is not None
    except StoreError as error:
        fix = "name a database that can be reached, as sqlite:///runs.db, or null for none"
        yield fail(str(error), where=checked.where(STORE), fix=fix)
        return
    yield ok(f"{show_url(url)} {'is there' if there else 'will be made'}")


def _room(checked: CheckedConfig, folder: Path) -> Iterator[Finding]:
    if covers(checked.backbone.ignored_sections, "astune.trainer"):
        return
    trainer = checked.config.trainer
    free = shutil.disk_usage(folder).free
    # while one more is written, with the last one of each earlier stage
    best = sum(figure is not None for figure in figures_of_best(checked.config).values())
    kept = trainer.keep_checkpoints + best + 1 + max(len(checked.stages()) - 1, 0)
    try:
        sizes = checked.sizes
        trained = configs_of_trained(checked.config).values()
        numbers = sum(count_trained(sizes.get(own.model.path, checked.size), own) for own in trained)
    except Missing:
        return
    checkpoints = float(kept * BYTES_PER_PARAMETER * numbers)
    episodes = sum(_episodes(each) for each in checked.stages() or [checked])
    needed = checkpoints + episodes
    said = (
        f"about {show_bytes(needed)} are needed (checkpoints {kept} x {BYTES_PER_PARAMETER} bytes x "
        f"{numbers:,} trained parameters, one more than are kept while it is written; episodes up to "
        f"{show_bytes(episodes)}), {show_bytes(free)} are free in {folder}"
    )
    fix = "free some, name another disk with astune.runs_dir, or lower astune.trainer.keep_checkpoints"
    if checkpoints > free:
        yield fail(said, where=checked.where(KEY), fix=fix)
    elif needed > free:
        yield warn(said, where=checked.where(KEY), fix=fix)
    else:
        yield ok(said)


def _episodes(checked: CheckedConfig) -> float:
    """Bytes of all episode files, if each answer had half its most tokens: with attempts that are played again for each
    agent (`leave_one_out`)."""
    config = checked.config
    try:
        episode = checked.dry_run.episode
    except Missing:
        return 0.0
    each = len(json.dumps(episode_to_row(EpisodeRecord(0, "train", episode))))
    each += BYTES_PER_TOKEN * max(len(episode.turns), 1) * config.rollout.max_tokens // 2
    steps, group = total_steps(checked), Group(episode.task, (episode,))
    again = sum(
        count_turns(config, name, range(steps)) * count_again([group], [name])
        for name, own in configs_of_trained(config).items()
        if own.algorithm.agent_reward == "leave_one_out"
    )
    trained = (steps + again) * config.trainer.tasks_per_step * config.rollout.num_repeat
    evaluated = sum(_times(checked, e.every) * len(e.tasks) * e.attempts for e in checked.evaluations)
    return float(each * (trained + evaluated))


def _times(checked: CheckedConfig, every: int) -> int:
    """Count how often held-out tasks are played that are due every so many steps."""
    evaluation = checked.config.evaluation
    return evaluation.before + evaluation.after + (total_steps(checked) // every if every else 0)

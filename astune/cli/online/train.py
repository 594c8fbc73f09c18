"""`astune online train`, `commit` and `status`."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from astune.cli.exit_codes import DONE
from astune.cli.online.stored import add_store, opened
from astune.errors import ConfigError
from astune.support.concurrency import run_and_leave
from astune.support.visible import tell

if TYPE_CHECKING:
    from astune.config.load import LoadedConfig
    from astune.online.training.status import ServiceStatus
    from astune.store.commits import CommitRow
    from astune.training.engine import LoadEngine

ACTIONS = ("train", "commit", "status")


def add_parser(subparsers: Any) -> None:
    """The words `train`, `commit` and `status` of `astune online`."""
    train = subparsers.add_parser("train", help="make versions from what users say, until it is stopped")
    train.add_argument("--conf", type=Path, required=True, metavar="X.yaml", help="the service's configuration")
    train.add_argument("--backbone", help="local or trinity; sets astune.backbone")
    train.add_argument("overrides", nargs="*", metavar="key=value", help="replaces a value")
    commit = subparsers.add_parser("commit", help="ask the trainer for a version from what was rated so far")
    commit.add_argument("--task", metavar="ID", help="only answers of this task")
    commit.add_argument("--run", metavar="ID", help="only answers of this run of it")
    status = subparsers.add_parser("status", help="versions, commits, what is rated and waits, who trains")
    for command in (commit, status):
        command.add_argument("--json", action="store_true", help="as one JSON object")
        add_store(command)


def chosen(known: argparse.Namespace) -> Callable[[], int]:
    """The command that was asked for."""
    return partial({"train": _train, "commit": _commit, "status": _status}[known.action], known)


def _train(known: argparse.Namespace) -> int:
    from astune.config.load import load_config
    from astune.online.training.check import check_online

    loaded = load_config(known.conf, known.overrides, backbone=known.backbone, for_run=False)
    check_online(loaded)
    from astune.online.place import online_folder, store_url
    from astune.online.training.log import CommitLog, header, line_of
    from astune.online.training.trainer import Trainer
    from astune.store import open_database

    folder = online_folder(loaded.config)
    with closing(open_database(store_url(loaded.config))) as database, ExitStack() as stack:
        trainer = Trainer(loaded.config, _load_engine(loaded, folder, stack), database, folder)
        log = CommitLog(folder, database, tensorboard=loaded.config.astune.monitor.tensorboard)

        def told(_: CommitRow) -> None:
            for row in log.catch_up():
                tell(line_of(row), flush=True)

        tell(f"training the versions of {folder}\n{header()}", flush=True)
        with closing(log):
            try:
                run_and_leave(trainer.run(told))
            except KeyboardInterrupt:
                tell("stopped; what was rated waits in the store")
    return DONE


def _load_engine(loaded: LoadedConfig, folder: Path, stack: ExitStack) -> LoadEngine:
    """Who trains; what it starts ends with `stack`."""
    if loaded.config.astune.rollout.engine == "vllm":
        raise ConfigError(
            "astune.rollout.engine: got 'vllm', but `astune online` answers with ASTune's own sampler; take the key out"
        )
    if loaded.config.astune.backbone == "local":
        from astune.backbone.local import load_engine

        return load_engine
    from astune.backbone.trinity.online.engine import TrinityEngines

    return stack.enter_context(TrinityEngines(loaded, folder)).load_engine


def _commit(known: argparse.Namespace) -> int:
    with closing(opened(known)) as database:
        from astune.store import audit, commits
        from astune.store.commits import Wanted

        now = time.time()
        with database.writing() as connection:
            number = commits.ask(connection, "hand", now, Wanted(known.task, known.run))
            audit.say(connection, "command", "commit asked", str(number), now=now)
    tell(json.dumps({"commit": number}) if known.json else f"commit {number} waits for the trainer")
    return DONE


def _status(known: argparse.Namespace) -> int:
    with closing(opened(known)) as database:
        from astune.online.training.status import status_of

        found = status_of(database, time.time())
    tell(json.dumps(found.to_json(), indent=1) if known.json else "\n".join(_lines(found)))
    return DONE


def _lines(found: ServiceStatus) -> list[str]:
    from astune.online.training.log import header, line_of

    newest = found.versions[-1] if found.versions else None
    made = "as configured" if newest is None else f"made {_ago(found.now - newest.made)}, {len(found.versions)} in all"
    lines = [f"version   v{0 if newest is None else newest.number}, {made}"]
    lines.append(f"trainer   {found.trainer or 'none is at work'}")
    rated = ", ".join(f"{count} {state}" for state, count in found.feedback.items()) or "none"
    lines.append(f"feedback  {rated}")
    if found.feedback.get("held"):
        lines.append("          held for a look: astune online held")
    lines.append(f"rated     {found.rated} episodes wait for a commit")
    return [*lines, "", header(), *map(line_of, found.commits)] if found.commits else [*lines, "commits   none yet"]


def _ago(seconds: float) -> str:
    for unit, length in (("days", 86400.0), ("hours", 3600.0), ("minutes", 60.0)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit} ago"
    return f"{max(seconds, 0.0):.0f} seconds ago"

"""`astune online train`, `commit` and `status`."""

from __future__ import annotations

import argparse
import time
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING

from astune.cli.endings import DONE
from astune.cli.online.stored import add_store, open_store
from astune.cli.suggesting_parser import Commands, add_conf, add_overrides
from astune.errors import ConfigError
from astune.support.chinese import localize
from astune.support.concurrency import run_and_leave
from astune.support.run_log import file_logger, open_log
from astune.support.visible import tell, tell_json

if TYPE_CHECKING:
    from astune.config.load import LoadedConfig
    from astune.online.store.commits import CommitRow
    from astune.online.store.feedback.following import FollowFigures
    from astune.online.training.log import ServiceStatus
    from astune.training.engine import LoadEngine

committed = file_logger(__name__)


def add_actions(actions: Commands) -> None:
    """The words `train`, `commit` and `status` of `astune online`."""
    train = actions.add_parser("train", help="make versions from what users say, until it is stopped")
    train.set_defaults(execute=_train)
    add_conf(train, "the service's configuration")
    train.add_argument("--backbone", help="local or trinity; sets astune.backbone")
    add_overrides(train)
    commit = actions.add_parser("commit", help="ask the trainer for a version from what was rated so far")
    commit.set_defaults(execute=_commit)
    commit.add_argument("--task", metavar="ID", help="only answers of this task")
    commit.add_argument("--run", metavar="ID", help="only answers of this run of it")
    status = actions.add_parser("status", help="versions, commits, what is rated and waits, who trains")
    status.set_defaults(execute=_status)
    for command in (commit, status):
        command.add_argument("--json", action="store_true", help="as one JSON object")
        add_store(command)


def _train(known: argparse.Namespace) -> int:
    """Raises StoreError for a base that is not there."""
    from astune.config.load import load_config
    from astune.online.training.check import check_online

    loaded = load_config(known.conf, known.overrides, backbone=known.backbone, for_run=False)
    check_online(loaded)
    from astune.online.place import online_folder, store_url
    from astune.online.store.succession import base_of
    from astune.online.training.log import CommitLog, header, line_of
    from astune.online.training.trainer import Trainer
    from astune.store import open_database

    folder = online_folder(loaded.config)
    open_log(folder, as_json=loaded.config.astune.monitor.log_json, role="train")
    with closing(open_database(store_url(loaded.config))) as database, ExitStack() as stack:
        with database.reading() as connection:
            base_of(connection, loaded.config.astune.online)
        trainer = Trainer(loaded.config, _load_engine(loaded, folder, stack), database, folder)
        log = CommitLog(folder, database, loaded.config)

        def tell_commit(_: CommitRow) -> None:
            for row in log.catch_up():
                tell(localize(line_of(row)), flush=True)
                committed.info("%s", line_of(row))

        tell(localize(f"training the versions of {folder}\n{header()}"), flush=True)
        with closing(log):
            try:
                run_and_leave(trainer.run(tell_commit))
            except KeyboardInterrupt:
                tell(localize("stopped; what was rated waits in the store"))
    return DONE


def _load_engine(loaded: LoadedConfig, folder: Path, stack: ExitStack) -> LoadEngine:
    """The engine that trains. Processes that it starts end with `stack`."""
    if loaded.config.astune.rollout.engine == "vllm":
        raise ConfigError(
            "astune.rollout.engine: got 'vllm', but `astune online` answers with ASTune's own sampler; take the key out"
        )
    if loaded.config.astune.backbone == "local":
        from astune.backbone.local.engine import load_engine

        return load_engine
    from astune.backbone.trinity.online.engine import TrinityEngines

    return stack.enter_context(TrinityEngines(loaded, folder)).load_engine


def _commit(known: argparse.Namespace) -> int:
    with closing(open_store(known)) as database:
        from astune.online.store import audit, commits
        from astune.online.store.commits import Wanted

        now = time.time()
        with database.writing() as connection:
            number = commits.ask(connection, "hand", now, Wanted(known.task, known.run))
            audit.say(connection, "command", "commit asked", str(number), now=now)
    tell_json({"commit": number}) if known.json else tell(f"commit {number} waits for the trainer")
    return DONE


def _status(known: argparse.Namespace) -> int:
    with closing(open_store(known)) as database:
        from astune.online.training.log import status_of

        found = status_of(database, time.time())
    tell_json(found.to_json()) if known.json else tell(localize("\n".join(_status_lines(found))))
    return DONE


def _status_lines(found: ServiceStatus) -> list[str]:
    from astune.online.store.releases import describe
    from astune.online.training.log import header, line_of

    newest = found.versions[-1] if found.versions else None
    made = "as configured" if newest is None else f"made {_ago(found.now - newest.made)}, {len(found.versions)} in all"
    number = 0 if newest is None else newest.number
    lines = [f"version   v{number}, {made}"]
    if number != found.champion:
        lines.append(f"champion  v{found.champion}, which answers: astune online versions")
    if found.not_served is not None:
        lines.append(f"          champion is not served, {found.not_served}")
    for server in found.servers:
        held = ", ".join(f"v{number}" for number in server.versions)
        heard = server.state if server.is_there(found.now) else f"gone, last heard of {_ago(found.now - server.heard)}"
        lines.append(f"server    {server.url}, {heard}, with {held}")
    lines.append(f"trainer   {found.trainer or 'none is at work'}")
    if found.release is not None:
        lines.append(f"release   {describe(found.release)}")
        watched = found.releaser or ("nobody watches it" if found.release.is_open else "none is at work")
        lines.append(f"          {watched}")
    rated = ", ".join(f"{count} {state}" for state, count in found.feedback.items()) or "none"
    lines.append(f"feedback  {rated}")
    if found.feedback.get("held"):
        lines.append("          held for a look: astune online held")
    lines += map(_following_line, found.following)
    lines.append(f"rated     {found.rated} episodes wait for a commit{_explain_no_commit(found)}")
    return [*lines, "", header(), *map(line_of, found.commits)] if found.commits else [*lines, "commits   none yet"]


def _following_line(found: FollowFigures) -> str:
    votes = ", ".join(f"{found.votes.get(vote, 0)} {vote}" for vote in ("+1", "-1", "0"))
    kappa = "" if found.kappa is None else f", kappa {found.kappa:.2f}"
    agrees = f"agrees with people on {found.agreed} of {found.compared}{kappa}"
    counts = "" if found.trusted else "; it is not trusted, and held"
    return f"followed  {found.author}: {votes}; {agrees}{counts}"


def _explain_no_commit(found: ServiceStatus) -> str:
    """Say for which reason no commit is made of what waits, where the last one found nothing to learn."""
    last = found.commits[-1] if found.commits else None
    if not found.rated or last is None or last.state != "empty":
        return ""
    return f"; commit {last.number} made no version of what was there: {(last.figures or {}).get('why')}"


def _ago(seconds: float) -> str:
    for unit, length in (("days", 86400.0), ("hours", 3600.0), ("minutes", 60.0)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit} ago"
    return f"{max(seconds, 0.0):.0f} seconds ago"

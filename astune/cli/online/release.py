"""`astune online release` and `gate`."""

from __future__ import annotations

import argparse
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from astune.cli.endings import DONE
from astune.cli.suggesting_parser import Commands, add_conf, add_overrides
from astune.errors import ConfigError
from astune.support.chinese import localize
from astune.support.run_log import file_logger, open_log
from astune.support.visible import tell, tell_json

if TYPE_CHECKING:
    from astune.online.store.releases import Release

log = file_logger(__name__)


def add_actions(actions: Commands) -> None:
    """The words `release` and `gate` of `astune online`."""
    release = actions.add_parser("release", help="bring new versions to the users stage by stage, until it is stopped")
    release.set_defaults(execute=_release)
    gate = actions.add_parser("gate", help="play the held-out tasks with two versions, as a release does first")
    gate.set_defaults(execute=_gate, json=True)
    gate.add_argument("champion", metavar="vN", help="a version: v7, its name or an alias")
    gate.add_argument("challenger", metavar="vM", help="the other one")
    gate.add_argument("--out", type=Path, metavar="FOLDER", help="default: gate/vN-vM in the folder of the service")
    for command in (release, gate):
        add_conf(command, "the service's configuration")
        add_overrides(command)


def _release(known: argparse.Namespace) -> int:
    from astune.config.load import load_config

    config = load_config(known.conf, known.overrides, for_run=False).config
    if config.astune.online.release.strategy != "staged":
        raise ConfigError(
            "astune.online.release.strategy: got 'at_once', by which the trainer makes each version champion and there "
            "is nothing to release; expected 'staged'"
        )
    from astune.online.place import online_folder, store_url
    from astune.online.release.gate import ChildGate
    from astune.online.release.releaser import Releaser
    from astune.online.store.releases import describe
    from astune.store import open_database

    folder = online_folder(config)
    open_log(folder, as_json=config.astune.monitor.log_json, role="release")
    last: list[str] = [""]

    def tell_change(release: Release | None) -> None:
        line = "no version waits for a release" if release is None else f"release {describe(release)}"
        if line != last[0]:
            last[0] = line
            tell(localize(line), flush=True)
            log.info("%s", line)

    gate = ChildGate(["--conf", str(known.conf), *known.overrides], folder, config.astune.online.release.alpha)
    with closing(open_database(store_url(config))) as database:
        tell(localize(f"releasing the versions of {folder}"), flush=True)
        try:
            Releaser(config, database, gate).run(tell_change)
        except KeyboardInterrupt:
            tell(localize("stopped; an open release stays as it is, and its users keep their versions"))
    return DONE


def _gate(known: argparse.Namespace) -> int:
    from astune.api.evaluate import Playing, open_evaluation
    from astune.config.load import load_config
    from astune.online.place import online_folder, store_url, versions_folder
    from astune.online.release.gate import CHALLENGER, CHAMPION, judge_gate
    from astune.online.store.aliases import resolve
    from astune.online.training.checkpoint import check
    from astune.selection.select import engine_for
    from astune.store.database import open_existing
    from astune.training.candidates import Candidate
    from astune.training.standalone import play

    loaded = load_config(known.conf, known.overrides, for_run=False)
    folder = online_folder(loaded.config)
    candidates = []
    with closing(open_existing(store_url(loaded.config))) as database, database.reading() as connection:
        for text in (known.champion, known.challenger):
            version = resolve(connection, text)
            path = None if version.folder is None else versions_folder(folder) / version.folder
            if path is not None:
                check(path, version.sha256)
            checkpoint = None if path is None else str(path)
            candidates.append(Candidate(f"v{version.number}", checkpoint, mark=version.sha256 or ""))
    out: Path = known.out or folder / "gate" / "-".join(each.name for each in candidates)
    rules = loaded.config.astune.online.release
    with open_evaluation(loaded, Playing(limit=rules.gate_tasks or None)) as (ready, evaluations):
        engine, as_model = engine_for(loaded, candidates)
        first = None
        for name, candidate in zip((CHAMPION, CHALLENGER), candidates, strict=True):
            to = out / name
            first = play(loaded.config, ready, candidate, evaluations, engine, to, as_model=as_model, beside=first)
    found = judge_gate(out, rules.alpha)
    tell_json({"verdict": found.verdict, "compared": list(found.lines), "folder": str(out)})
    return DONE

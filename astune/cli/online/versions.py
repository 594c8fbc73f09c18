"""`astune online versions`: the registry of a service."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from astune.cli.endings import DONE
from astune.cli.online.stored import add_store, config_of, open_store
from astune.cli.suggesting_parser import Commands
from astune.errors import ConfigError, explain_missing
from astune.support.concurrency import run_and_leave
from astune.support.visible import tell, tell_json

if TYPE_CHECKING:
    import sqlalchemy as sa

    from astune.config.schema import Config
    from astune.online.store.versions import ModelVersion

VERSION = "v7, an alias as champion, or a name that people gave"
BY_HAND = "by hand"


def add_actions(actions: Commands) -> None:
    """The word `versions` of `astune online`, and the words below it."""
    command = actions.add_parser("versions", help="the versions: which answers, promotion, rollback, names, files")
    words = command.add_subparsers(dest="word", required=True, metavar="WORD", default="list")

    def add(word: str, execute: Callable[[argparse.Namespace], int], text: str, *named: str) -> argparse.ArgumentParser:
        parser: argparse.ArgumentParser = words.add_parser(word, help=text)
        parser.set_defaults(execute=execute)
        for each in named:
            parser.add_argument(each, metavar=each.upper(), help=VERSION)
        return parser

    add("list", _list, "every version, with its aliases (the default: the word may be left out)")
    add("show", _show, "a version: what made it, its parents, its figures", "version")
    add("diff", _diff, "what differs between two: figures, configuration, data", "version", "other")
    add("promote", _promote, "make a version champion: it answers from now on", "version")
    add("hold", _hold, "let no strategy make a version champion", "version")
    back = add("rollback", _roll_back, "go back from a version, and from all that was made from it", "version")
    back.add_argument("--to", metavar="VERSION", help="the version to go back to; by default its parent")
    back.add_argument("--forget", action="store_true", help="never learn again from what it was made from")
    name = add("name", _name, "give a version a name, once", "version")
    name.add_argument("name", metavar="NAME", help="as v1.0")
    bring = add("import", _import, "make a version of a checkpoint of a training run")
    bring.add_argument("run", metavar="RUN", help="runs/project/name, RUN@best, RUN@40, or a checkpoint's folder")
    bring.add_argument("--parent", metavar="VERSION", default="v0", help="what it was made from; by default v0")
    export = add("export", _export, "write a version as a folder for transformers, peft or vLLM", "version")
    export.add_argument("--out", type=Path, required=True, metavar="DIR", help="a new folder")
    export.add_argument("--merged", action="store_true", help="with LoRA: adapter and base as one model")
    prune = add("prune", _prune, "delete the files of the versions that nothing needs")
    prune.add_argument("--keep", type=int, metavar="N", help="the newest N; by default astune.trainer.keep_checkpoints")
    prune.add_argument("--dry-run", action="store_true", help="say what would be deleted, and why the others stay")
    for parser in words.choices.values():
        parser.add_argument("--json", action="store_true", help="as one JSON object")
        add_store(parser)


def _say(known: argparse.Namespace, found: Mapping[str, Any], *lines: str) -> int:
    tell_json(found) if known.json else tell("\n".join(lines))
    return DONE


def _require_conf(known: argparse.Namespace) -> Config:
    """The service's configuration, without which nobody knows where the files of versions are."""
    config = config_of(known)
    if config is None:
        raise ConfigError(f"versions {known.word}: give --conf; the files of versions are in the service's folder")
    return config


def _list(known: argparse.Namespace) -> int:
    with closing(open_store(known)) as database:
        from astune.online.store import aliases, versions

        with database.reading() as connection:
            made, named = versions.every(connection), aliases.every_alias(connection)
    found = {
        "aliases": {alias.name: alias.version for alias in named},
        "versions": [asdict(version) for version in made],
    }
    if known.json:
        return _say(known, found)
    from astune.cli.online.trace import version_table
    from astune.support.terminal import Console

    Console(soft_wrap=True).print(version_table(made, named))
    return DONE


def _show(known: argparse.Namespace) -> int:
    with closing(open_store(known)) as database:
        from astune.cli.online.trace import show
        from astune.online.store import aliases
        from astune.online.store.trace import trace_version

        with database.reading() as connection:
            found = trace_version(connection, aliases.resolve(connection, known.version).number)
    if known.json:
        return _say(known, asdict(found))
    show(found)
    return DONE


def _diff(known: argparse.Namespace) -> int:
    with closing(open_store(known)) as database:
        from astune.online.store import aliases, registry

        with database.reading() as connection:
            first, second = (aliases.resolve(connection, text) for text in (known.version, known.other))
            found = registry.compare(connection, first, second)
    ancestor = "none" if found.ancestor is None else f"v{found.ancestor}"
    data = {None: "not known", True: "the same", False: "differs"}[found.same_data]
    lines = [
        f"v{found.first} and v{found.second}",
        f"common ancestor  {ancestor}, {found.steps} steps apart in the tree",
    ]
    lines.append(f"learned from     {data}")
    for title, values in (("configuration", found.config), ("figures", found.figures)):
        lines += [f"{title}  " + ("" if values else "the same")]
        lines += [f"  {name:<40} {_cell(a):>14}  {_cell(b):>14}" for name, (a, b) in values.items()]
    return _say(known, asdict(found), *lines)


def _cell(value: Any) -> str:
    return "-" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)


def _promote(known: argparse.Namespace) -> int:
    def promote(connection: sa.Connection, version: ModelVersion, now: float) -> None:
        from astune.online.store import succession

        succession.promote(connection, version, why=BY_HAND, now=now)

    version = _change(known, promote, checked=True)
    return _say(known, {"champion": version}, f"champion is v{version}")


def _hold(known: argparse.Namespace) -> int:
    def hold(connection: sa.Connection, version: ModelVersion, now: float) -> None:
        from astune.online.store import succession

        succession.hold(connection, version, role="command", why=f"held {BY_HAND}", now=now)

    version = _change(known, hold)
    return _say(
        known, {"held": version}, f"v{version} is held: only `astune online versions promote` takes it from there"
    )


def _name(known: argparse.Namespace) -> int:
    def give(connection: sa.Connection, version: ModelVersion, now: float) -> None:
        from astune.online.store import registry

        registry.give_name(connection, version, known.name, now=now)

    version = _change(known, give)
    return _say(known, {"version": version, "name": known.name}, f"v{version} is called {known.name}")


def _change(
    known: argparse.Namespace,
    change: Callable[[sa.Connection, ModelVersion, float], None],
    *,
    checked: bool = False,
) -> int:
    """Do something to the version that was named, whose files are `checked` first; its number."""
    config = _require_conf(known) if checked else None
    with closing(open_store(known)) as database:
        from astune.online.store import aliases

        with database.reading() as connection:
            seen, served = aliases.resolve(connection, known.version), aliases.champion(connection).number
        if config is not None:
            _check(config, seen)

        def write(connection: sa.Connection) -> int:
            aliases.expect(connection, aliases.CHAMPION, served)
            change(connection, aliases.resolve(connection, f"v{seen.number}"), time.time())
            return seen.number

        return database.write(write)


def _check(config: Config, version: ModelVersion) -> None:
    """Raises RunFolderError for a version whose files are gone or not as they were written."""
    from astune.online.place import online_folder, versions_folder
    from astune.online.training.checkpoint import check_version

    check_version(versions_folder(online_folder(config)), version)


def _roll_back(known: argparse.Namespace) -> int:
    config = _require_conf(known)
    with closing(open_store(known)) as database:
        from astune.online.store import aliases, succession

        with database.reading() as connection:
            version, served = aliases.resolve(connection, known.version), aliases.champion(connection).number
            to = None if known.to is None else aliases.resolve(connection, known.to)
            target = succession.find_target(connection, version, to)
        if served != target.number:
            _check(config, target)

        def write(connection: sa.Connection) -> succession.RolledBack:
            aliases.expect(connection, aliases.CHAMPION, served)
            said = {"forget": known.forget, "why": BY_HAND, "now": time.time()}
            return succession.roll_back(connection, version, target, role="command", **said)

        done = database.write(write)
    others = ", ".join(f"v{number}" for number in done.away)
    forgot = f"{done.feedback} feedback that they were made from is not learned again" if known.forget else ""
    lines = [f"champion is v{done.champion}", f"rolled back: {others}", *filter(None, [forgot])]
    return _say(known, asdict(done), *lines)


def _import(known: argparse.Namespace) -> int:
    config = _require_conf(known)
    with closing(open_store(known)) as database:
        from astune.online.store import aliases

        with database.reading() as connection:
            parent = aliases.resolve(connection, known.parent)
        with explain_missing("import", "'astune[local,online]'"):
            from astune.backbone.local.engine import load_engine
        from astune.online.training.imports import import_checkpoint

        made = run_and_leave(import_checkpoint(config, database, load_engine, known.run, parent, time.time()))
    advice = f"it answers nobody yet: astune online versions promote v{made.number}"
    return _say(known, asdict(made), f"v{made.number} is {made.origin}, a child of v{parent.number}", advice)


def _export(known: argparse.Namespace) -> int:
    config = _require_conf(known)
    with closing(open_store(known)) as database:
        from astune.online.store import aliases

        with database.reading() as connection:
            version = aliases.resolve(connection, known.version)
    _check(config, version)
    if version.folder is None:
        raise ConfigError(f"v{version.number} is the model as configured: it stands at {config.astune.model.path}")
    from astune.backbone.local.export import export_checkpoint
    from astune.online.place import online_folder, versions_folder

    folder = versions_folder(online_folder(config)) / version.folder
    what = export_checkpoint(folder, known.out, merged=known.merged)
    found = {"version": version.number, "out": str(known.out), "what": what}
    return _say(known, found, f"the {what} of v{version.number} is in {known.out}")


def _prune(known: argparse.Namespace) -> int:
    config = _require_conf(known)
    newest = config.astune.trainer.keep_checkpoints if known.keep is None else known.keep
    if newest < 0:
        raise ConfigError(f"--keep {newest}: expected a number of versions, 0 or more")
    from astune.online.place import keep_file, online_folder, versions_folder

    folder = online_folder(config)
    if keep_file(folder).exists() and not known.dry_run:
        raise ConfigError(f"nothing is deleted while {keep_file(folder)} is there, as somebody makes a backup")
    with closing(open_store(known)) as database:
        from astune.online.store import registry
        from astune.online.training.checkpoint import remove

        def mark(connection: sa.Connection) -> tuple[dict[int, str], list[ModelVersion]]:
            now = time.time()
            kept = registry.find_needed(connection, config.astune.online, newest, now)
            gone = registry.find_unneeded(connection, kept)
            if not known.dry_run:
                registry.mark_pruned(connection, gone, now, "command")
            return kept, gone

        kept, marked = database.write(mark)
    for version in () if known.dry_run else marked:
        remove(versions_folder(folder) / str(version.folder))
    gone = [version.number for version in marked]
    done = "would be deleted" if known.dry_run else "deleted"
    lines = [f"{done}: the files of {', '.join(f'v{number}' for number in gone) or 'no version'}"]
    lines += [f"  v{number:<5} stays: {why}" for number, why in sorted(kept.items())]
    return _say(known, {"pruned": gone, "kept": kept}, *lines)

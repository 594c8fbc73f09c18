"""`astune online trace`, `export` and `delete`: what stands in the store of a service."""

from __future__ import annotations

import argparse
import json
import re
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from astune.errors import ConfigError, MissingDependency
from astune.support.visible import tell

if TYPE_CHECKING:
    from astune.store.database import Database

ACTIONS = ("trace", "export", "delete")
UNITS = {"d": 86400.0, "h": 3600.0, "m": 60.0}


def add_parser(subparsers: Any) -> None:
    """The words `trace`, `export` and `delete` of `astune online`."""
    trace = subparsers.add_parser("trace", help="what became of an answer, or which answers made a version")
    trace.add_argument("id", metavar="MSG_ID|vN", help="an answer as its reply calls it, or a version as v7")
    trace.add_argument("--json", action="store_true", help="everything, as one JSON object")
    delete = subparsers.add_parser("delete", help="delete what a person said, from every table")
    whose = delete.add_mutually_exclusive_group(required=True)
    whose.add_argument("--user", metavar="NAME", help="their conversations, and what they said of others'")
    whose.add_argument("--conversation", metavar="ID", help="one conversation")
    whose.add_argument("--older-than", metavar="30d", help="what nobody went on with for so long: days, h or m")
    delete.add_argument("--json", action="store_true", help="the counts as one JSON object")
    for command in (trace, delete):
        add_store(command)


def add_store(command: argparse.ArgumentParser) -> None:
    """The options that say which store."""
    command.add_argument("--conf", type=Path, metavar="FILE", help="the service's configuration")
    command.add_argument("--store", metavar="URL", help="the database itself: sqlite:///FILE or postgresql://...")
    command.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="over the configuration")


def chosen(known: argparse.Namespace) -> Callable[[], int]:
    """The command that was asked for."""
    return partial({"trace": _trace, "delete": _delete}[known.action], known)


def opened(known: argparse.Namespace) -> Database:
    """The store that the options name. Raises StoreError where there is none."""
    if (known.conf is None) == (known.store is None):
        raise ConfigError(
            "say which store: give --conf, the service's configuration, or --store, the database's address"
        )
    if known.store is not None and known.overrides:
        raise ConfigError(f"{known.overrides[0]!r}: --store reads no configuration that it could change")
    try:
        from astune.store.database import open_existing
    except ModuleNotFoundError as error:
        raise MissingDependency(f"the store needs {error.name!r}: pip install 'astune[online]'") from error
    if known.store is not None:
        return open_existing(known.store)
    from astune.config.load import load_config
    from astune.online.place import store_url

    return open_existing(store_url(load_config(known.conf, known.overrides, for_run=False).config))


def _trace(known: argparse.Namespace) -> int:
    """Raises StoreError for an id that is not there."""
    with closing(opened(known)) as database:
        from astune.cli.online_trace import show
        from astune.store.trace import trace

        with database.reading() as connection:
            found = trace(connection, known.id)
    if known.json:
        tell(json.dumps(asdict(found), indent=1, ensure_ascii=True))
    else:
        show(found)
    return 0


def _delete(known: argparse.Namespace) -> int:
    now = time.time()
    age = None if known.older_than is None else _seconds(known.older_than)
    with closing(opened(known)) as database:
        from astune.store.retention import Whose, delete

        whose = Whose(known.user, known.conversation, None if age is None else now - age)
        done = delete(database, whose, role="command", now=now)
    if known.json:
        tell(json.dumps(asdict(done), indent=1))
        return 0
    tell(
        f"deleted: {done.conversations} conversations with {done.requests} answers, {done.feedback} feedback; "
        f"{done.audit_lines} lines of the audit emptied"
    )
    if done.versions:
        saw = ", ".join(f"v{version}" for version in done.versions)
        heirs = "".join(f", v{version}" for version in done.heirs)
        tell(
            f"versions that were trained from it: {saw}; made from those: {heirs[2:] or 'none'}. They are as they were"
        )
    return 0


def _seconds(text: str) -> float:
    """Of a duration as `30d`.

    >>> _seconds("36h") == _seconds("1.5d")
    True
    """
    parts = re.fullmatch(r"(\d+(?:\.\d+)?)([dhm])", text)
    if parts is None:
        raise ConfigError(f"--older-than {text!r}: expected days, hours or minutes as 30d, 12h or 45m")
    return float(parts[1]) * UNITS[parts[2]]

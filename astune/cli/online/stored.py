"""`astune online trace`, `export` and `delete`: what stands in the store of a service."""

from __future__ import annotations

import argparse
import re
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

from astune.cli.suggesting_parser import Commands
from astune.errors import ConfigError, explain_missing
from astune.support.visible import tell, tell_json

if TYPE_CHECKING:
    import sqlalchemy as sa

    from astune.config.online import FeedbackConfig
    from astune.config.schema import Config
    from astune.online.export import ExportFilter
    from astune.store.database import Database

UNITS = {"d": 86400.0, "h": 3600.0, "m": 60.0}


def add_actions(actions: Commands) -> None:
    """The words `trace`, `export` and `delete` of `astune online`."""
    trace = actions.add_parser("trace", help="what became of an answer, or which answers made a version")
    trace.set_defaults(execute=_trace)
    trace.add_argument("id", metavar="MSG_ID|vN", help="an answer as its reply calls it, or a version as v7")
    trace.add_argument("--json", action="store_true", help="everything, as one JSON object")
    delete = actions.add_parser("delete", help="delete what a person said, from every table")
    delete.set_defaults(execute=_delete)
    whose = delete.add_mutually_exclusive_group(required=True)
    whose.add_argument("--user", metavar="NAME", help="their conversations, and what they said of others'")
    whose.add_argument("--conversation", metavar="ID", action="append", help="a conversation; may be given again")
    whose.add_argument("--older-than", metavar="30d", help="what nobody went on with for so long: days, h or m")
    delete.add_argument(
        "--with-rated", action="store_true", help="with --user: conversations that name nobody and that they rated, too"
    )
    delete.add_argument("--json", action="store_true", help="the counts as one JSON object")
    export = actions.add_parser("export", help="write what was said and rated into a file")
    export.set_defaults(execute=_export)
    export.add_argument(
        "--out",
        type=Path,
        required=True,
        metavar="FILE",
        help="a new .jsonl or .parquet; without a suffix a folder as of a run, for `astune view` (needs --conf)",
    )
    export.add_argument(
        "--as",
        dest="kind",
        choices=("episodes", "preferences", "corrections", "tasks"),
        default="episodes",
        help="episodes as a run has them (the default), or what was compared, or what users corrected, or tasks of "
        "what they asked, with personal data masked, as `astune data from-traces` makes them",
    )
    export.add_argument(
        "--format",
        choices=("record", "dpo", "kto", "trl", "trinity"),
        help="of preferences: everything that is known of a pair, or what a trainer reads; default: dpo",
    )
    export.add_argument(
        "--from",
        dest="sources",
        action="append",
        choices=("human", "judge", "reward"),
        help="of preferences: who preferred; may be given again; default: human",
    )
    export.add_argument(
        "--split",
        type=float,
        metavar="SHARE",
        help="of preferences: this share of the tasks goes into a second file, FILE with .held_out before its suffix",
    )
    export.add_argument(
        "--since", metavar="WHEN", help="answers from then on: 2026-11-22, with T10:30 (UTC), or 7d ago"
    )
    export.add_argument("--until", metavar="WHEN", help="answers before")
    export.add_argument("--rated", action="store_true", help="only what somebody judged")
    export.add_argument("--version", metavar="vN", help="only answers of this version")
    export.add_argument("--user", metavar="NAME", help="only answers to this user")
    for command in (trace, delete, export):
        add_store(command)


def add_store(command: argparse.ArgumentParser) -> None:
    """The options that say which store."""
    command.add_argument("--conf", type=Path, metavar="FILE", help="the service's configuration")
    command.add_argument("--store", metavar="URL", help="the database itself: sqlite:///FILE or postgresql://...")
    command.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="over the configuration")


def open_store(known: argparse.Namespace) -> Database:
    """Open the store that the options name. Raises StoreError where there is none."""
    if (known.conf is None) == (known.store is None):
        raise ConfigError(
            "say which store: give --conf, the service's configuration, or --store, the database's address"
        )
    if known.store is not None and known.overrides:
        raise ConfigError(f"{known.overrides[0]!r}: --store reads no configuration that it could change")
    with explain_missing("the store", "'astune[online]'"):
        from astune.store.database import open_existing
    if known.store is not None:
        return open_existing(known.store)
    from astune.online.place import store_url

    config = config_of(known)
    assert config is not None
    return open_existing(store_url(config))


def config_of(known: argparse.Namespace) -> Config | None:
    """The service's configuration; None where the options name a database alone."""
    from astune.config.load import load_config

    return None if known.conf is None else load_config(known.conf, known.overrides, for_run=False).config


def feedback_rules(config: Config | None) -> FeedbackConfig:
    """The rules of the service for feedback; the default rules where only its database is known."""
    from astune.config.online import FeedbackConfig

    return FeedbackConfig() if config is None else config.astune.online.feedback


def _trace(known: argparse.Namespace) -> int:
    """Raises StoreError for an id that is not there."""
    with closing(open_store(known)) as database:
        from astune.cli.online.trace import show
        from astune.online.store.trace import trace

        with database.reading() as connection:
            found = trace(connection, known.id)
    if known.json:
        tell_json(asdict(found))
    else:
        show(found)
    return 0


def _delete(known: argparse.Namespace) -> int:
    now = time.time()
    age = None if known.older_than is None else _seconds(known.older_than)
    if known.with_rated and known.user is None:
        raise ConfigError("--with-rated goes with --user: it means the conversations that this user rated")
    with closing(open_store(known)) as database:
        from astune.online.store.retention import DeletionScope, delete

        if age is not None and not known.json:
            since = datetime.fromtimestamp(now - age, timezone.utc)
            tell(f"by this machine's clock that is what nobody went on with since {since:%Y-%m-%d %H:%M} UTC")
        whose = DeletionScope(known.user, known.conversation, None if age is None else now - age, known.with_rated)
        done = delete(database, whose, role="command", now=now)
    if known.json:
        tell_json(asdict(done))
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
    if done.kept:
        tell(
            f"kept: {len(done.kept)} conversations that name no user. {done.kept_feedback} of the deleted feedback "
            "were on them, so they may be this user's; from now on nothing says so. To delete them too:\n"
            f"astune online delete {' '.join(f'--conversation {each}' for each in done.kept)}"
            + (f" --conf {known.conf}" if known.conf else " --store ...")
        )
    if done.copies:
        tell(f"as it was before an upgrade the store stands in {', '.join(done.copies)}: delete that, too")
    return 0


def _export(known: argparse.Namespace) -> int:
    now = time.time()
    since, until = (None if text is None else _moment(text, now) for text in (known.since, known.until))
    number = None if known.version is None else re.fullmatch(r"v?(\d{1,9})", known.version)
    if known.version is not None and number is None:
        raise ConfigError(f"--version {known.version!r}: expected a version as v7")
    _check_pair_options(known)
    with closing(open_store(known)) as database:
        from astune.cli.online.export import as_run, new_file
        from astune.online.export import ExportFilter, rows_of

        config = config_of(known)
        rules = feedback_rules(config)
        wanted = ExportFilter(since, until, None if number is None else int(number[1]), known.user)
        left_out: Counter[str] = Counter()

        def leave_out(why: str) -> None:
            left_out.update([why])

        with database.reading() as connection:
            if known.kind == "preferences":
                _export_pairs(known, connection, wanted, rules, leave_out)
            elif known.kind == "tasks":
                _export_tasks(known, connection, wanted, config, leave_out)
            else:
                out = as_run(known.out, config) if known.out.suffix == "" else known.out
                rows = rows_of(connection, known.kind, wanted, rules, rated=known.rated, skipped=leave_out)
                with new_file(out) as write:
                    count = sum(1 for row in rows if write(row) is None)
                tell(f"{count} {known.kind} in {out}")
    for why, times in left_out.items():
        tell(f"left out {times}: {why}")
    return 0


def _check_pair_options(known: argparse.Namespace) -> None:
    given = {"--format": known.format, "--from": known.sources, "--split": known.split}
    wrong = [name for name, value in given.items() if value is not None]
    if known.kind != "preferences" and wrong:
        raise ConfigError(f"{wrong[0]} goes with --as preferences")
    if known.split is not None and not 0 < known.split < 1:
        raise ConfigError(f"--split {known.split:g}: expected a share between 0 and 1, as 0.1")
    if known.kind == "preferences" and known.rated:
        raise ConfigError("--rated goes with episodes: what was compared is rated")


def _export_pairs(
    known: argparse.Namespace,
    connection: sa.Connection,
    wanted: ExportFilter,
    rules: FeedbackConfig,
    skipped: Callable[[str], None],
) -> None:
    """Write pairs into one file, or with `--split` into two."""
    from astune.cli.online.export import new_file
    from astune.online.preference_export import as_rows, is_held_out, pair_records

    share = known.split or 0.0
    outs = [known.out] if known.split is None else [known.out, known.out.with_suffix(f".held_out{known.out.suffix}")]
    counts = [0] * len(outs)
    with ExitStack() as files:
        writes = [files.enter_context(new_file(out)) for out in outs]
        for record in pair_records(connection, wanted, rules, known.sources or ("human",), skipped):
            place = int(is_held_out(record, share))
            for row in as_rows(record, known.format or "dpo", skipped):
                writes[place](row)
                counts[place] += 1
    for count, out in zip(counts, outs, strict=True):
        tell(f"{count} preferences in {out}")


def _export_tasks(
    known: argparse.Namespace,
    connection: sa.Connection,
    wanted: ExportFilter,
    config: Config | None,
    skipped: Callable[[str], None],
) -> None:
    from astune.cli.online.export import new_file
    from astune.config.schema import AstuneConfig
    from astune.data.made import REASONS
    from astune.traces.databases import read_online_store
    from astune.traces.run import TraceJob, harvest_of

    astune = AstuneConfig() if config is None else config.astune
    job = TraceJob("", known.out, unrated=not known.rated)
    harvest = harvest_of(read_online_store(connection, wanted, astune.online.feedback), astune, job)
    with new_file(known.out) as write:
        for made in harvest.kept:
            write(made.row())
    tell(f"{len(harvest.kept)} tasks in {known.out}")
    for one in harvest.dropped:
        skipped(REASONS[one.reason])


def _moment(text: str, now: float) -> float:
    """Seconds since 1970 of a date and time, UTC unless it says otherwise, or of an age.

    >>> _moment("1970-01-02", 0.0), _moment("1970-01-02T00:00:01", 0.0), _moment("2d", 172801.0)
    (86400.0, 86401.0, 1.0)
    """
    try:
        return now - _seconds(text)
    except ConfigError:
        pass
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise ConfigError(f"{text!r}: expected a date as 2026-11-22 or 2026-11-22T10:30, or an age as 7d") from error
    return (moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)).timestamp()


def _seconds(text: str) -> float:
    """Read a duration such as `30d` as seconds.

    >>> _seconds("36h") == _seconds("1.5d")
    True
    """
    parts = re.fullmatch(r"(\d+(?:\.\d+)?)([dhm])", text)
    if parts is None:
        raise ConfigError(f"{text!r}: expected days, hours or minutes as 30d, 12h or 45m")
    return float(parts[1]) * UNITS[parts[2]]

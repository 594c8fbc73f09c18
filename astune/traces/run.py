"""Read traces from where they are, and make of them what can be learned from.

A file, packed by gzip or not, has a JSON object in each line, or is one, or a list of them: a chat log, or OTLP JSON.

    {"messages": [{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "5", "thumb": "down"}]}
"""

from __future__ import annotations

import asyncio
import gzip
import json
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from astune.config.schema import AstuneConfig
from astune.data.documents import list_files
from astune.data.made import check_own
from astune.data.run import read_tasks
from astune.data.screen import Lengths, TaskScreen
from astune.errors import StoreError, TaskError
from astune.online.export import ExportFilter
from astune.online.follow.rules import RulesOfFollowing
from astune.online.follow.verdict import make_follow_judge
from astune.store.database import open_existing
from astune.support.file_kinds import Kind, kind_of_path
from astune.traces.convert import TraceHarvest, convert
from astune.traces.databases import is_agent_service, read_agent_service, read_online_store
from astune.traces.record import (
    BROKEN,
    ReadingRules,
    TracedConversation,
    Unread,
    UnreadableTrace,
    messages_of,
    read_conversation,
)
from astune.traces.spans import is_otlp, read_spans

SUFFIXES = (".jsonl", ".json", ".ndjson")
DRIVERS = {"sqlite": "sqlite", "postgresql": "postgresql+psycopg"}
"""Those of ASTune's own, in the place of the service's."""
Found = Iterator[TracedConversation | Unread]


@dataclass(frozen=True)
class TraceJob:
    """Where traces are and what is to come of them."""

    source: str
    out: Path
    rules: ReadingRules = field(default_factory=ReadingRules)
    held_out: Path | None = None
    unrated: bool = False
    dry_run: bool = False
    """No model is asked: rules say what followed tells."""


def make_from_traces(job: TraceJob, config: AstuneConfig) -> TraceHarvest:
    """All that comes of a source; nothing is written yet. Raises TaskError where it has nothing that can be read, and
    ConfigError for a file that is somebody else's."""
    check_own(job.out)
    with _open(job, config) as found:
        harvest = harvest_of(found, config, job)
    if not harvest.exchanges:
        said = [f"\n  {one.made.lineage['trace']['place']}: {one.detail}" for one in harvest.dropped[:3]]
        raise TaskError(f"{job.source}: no conversation could be read{''.join(said)}")
    return harvest


def harvest_of(found: Iterable[TracedConversation | Unread], config: AstuneConfig, job: TraceJob) -> TraceHarvest:
    """All that comes of conversations. To the held-out tasks of the configuration nothing may be close."""
    training, held_out = read_tasks(config, job.held_out, training_needed=False)
    follow = config.online.feedback.follow
    by_rules = follow.judge is None or job.dry_run
    judge = make_follow_judge(follow.model_copy(update={"judge": "rules"}) if by_rules else follow)
    assert judge is not None, "one is named"
    harvest = TraceHarvest(job.out, 0)
    screen = TaskScreen(training, held_out, Lengths(1, 1))
    asyncio.run(convert(found, judge, RulesOfFollowing(follow), screen, harvest, unrated=job.unrated))
    return harvest


@contextmanager
def _open(job: TraceJob, config: AstuneConfig) -> Iterator[Found]:
    path, is_address = Path(job.source), "://" in job.source
    try:
        if not is_address and not path.exists():
            raise TaskError(f"{path}: there is no such file or folder, and it is no address of a database")
        if is_address or kind_of_path(path) is Kind.DATABASE:
            with _open_database(job.source if is_address else f"sqlite:///{path}", config, job.rules) as found:
                yield found
        else:
            yield _read_files(path, job.rules)
    except (sa.exc.SQLAlchemyError, ImportError) as error:
        raise StoreError(f"{job.source.rpartition('@')[2]}: cannot be read: {error}") from error


@contextmanager
def _open_database(address: str, config: AstuneConfig, rules: ReadingRules) -> Iterator[Found]:
    url = sa.engine.make_url(address)
    if url.get_backend_name() == "sqlite" and not Path(url.database or "").is_file():
        raise TaskError(f"{address}: there is no such database")
    url = url.set(drivername=DRIVERS.get(url.get_backend_name(), url.drivername))
    engine = sa.create_engine(url, hide_parameters=True)
    try:
        inspector = sa.inspect(engine)
        tables = set(inspector.get_table_names())
        if {"requests", "turns", "conversations"} <= tables:
            with closing(open_existing(address)) as database, database.reading() as connection:
                yield read_online_store(connection, ExportFilter(), config.online.feedback)
        elif is_agent_service(inspector):
            with engine.connect() as connection:
                yield read_agent_service(connection, rules)
        else:
            raise TaskError(
                f"{url.render_as_string()}: has neither the tables of ASTune's online service nor those of "
                f"AgentScope's agent service; it has {', '.join(sorted(tables)) or 'none'}"
            )
    finally:
        engine.dispose()


def _read_files(source: Path, rules: ReadingRules) -> Found:
    """Spans of all files belong together; each line of a chat log is a conversation."""
    found = [source] if source.is_file() else list_files(source)
    files = [file for file in found if file == source or file.name.removesuffix(".gz").endswith(SUFFIXES)]
    if not files:
        raise TaskError(f"{source}: no files of traces; expected {', '.join(SUFFIXES)}, or one of them with .gz")
    spans: list[tuple[str, Mapping[str, Any]]] = []
    for place, row in (line for file in files for line in _read_rows(file)):
        if isinstance(row, Mapping) and is_otlp(row):
            spans.append((place, row))
            continue
        try:
            if isinstance(row, str):
                raise UnreadableTrace("not JSON")
            rows = [(f"{place}[{number}]", each) for number, each in enumerate(messages_of(row))]
            name = next((str(row[key]) for key in ("conversation_id", "session_id", "id") if row.get(key)), place)
            yield read_conversation("chat log", name, rows, row, rules)
        except BROKEN as error:
            yield Unread(place, str(error))
    yield from read_spans(spans, rules)


def _read_rows(path: Path) -> Iterator[tuple[str, Any]]:
    """The objects of a file, each with its place; a line that is no JSON as its text."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            text = file.read().decode("utf-8-sig")
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise TaskError(f"{path}: cannot be read: {error}") from error
    try:
        whole = json.loads(text)
        lines = whole if isinstance(whole, list) else [whole]
    except (ValueError, RecursionError):
        lines = [_parse(line) for line in text.split("\n")]  # JSON may hold other signs that end a line
    for number, line in enumerate(lines, start=1):
        if line != "":
            yield f"{path.name}:{number}", line


def _parse(line: str) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return line.strip()

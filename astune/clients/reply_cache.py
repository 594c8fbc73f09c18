"""Replies of chat models, kept in a file so that none is paid twice."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from astune.clients.usage import Usage
from astune.errors import ConfigError

BUSY_SECONDS = 30.0
_TABLE = (
    "CREATE TABLE IF NOT EXISTS astune_replies (key TEXT PRIMARY KEY, content TEXT NOT NULL, model TEXT NOT NULL,"
    " calls INTEGER NOT NULL, prompt_tokens INTEGER NOT NULL, completion_tokens INTEGER NOT NULL, cost REAL)"
    " WITHOUT ROWID"
)


@dataclass(frozen=True)
class CachedReply:
    """A reply that could be used, the model that gave it, and what was paid for it."""

    content: str
    model: str
    paid: Usage


def cache_key(request: Any) -> str:
    """The digest of everything a reply depends on: equal for equal values, whatever the order of keys."""
    canonical = json.dumps(request, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return hashlib.sha256(canonical.encode()).hexdigest()


class ReplyCache:
    """One SQLite file, opened for each operation: processes and threads may share it.

    `setting` is the key of the configuration that names the file. Raises ConfigError if the file is damaged or cannot
    be read and written.
    """

    def __init__(self, path: Path, *, setting: str) -> None:
        self._path = path
        self._setting = setting

    def get(self, key: str) -> CachedReply | None:
        columns = "content, model, calls, prompt_tokens, completion_tokens, cost"
        with self._open() as database:
            row = database.execute(f"SELECT {columns} FROM astune_replies WHERE key = ?", (key,)).fetchone()
        if row is None:
            return None
        content, model, calls, prompt_tokens, completion_tokens, cost = row
        paid = Usage(calls=calls, prompt_tokens=prompt_tokens, completion_tokens=completion_tokens, cost=cost)
        return CachedReply(content, model, paid)

    def put(self, key: str, reply: CachedReply) -> None:
        paid = reply.paid
        row = (key, reply.content, reply.model, paid.calls, paid.prompt_tokens, paid.completion_tokens, paid.cost)
        with self._open() as database:
            database.execute("INSERT OR REPLACE INTO astune_replies VALUES (?, ?, ?, ?, ?, ?, ?)", row)

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        place = f"{self._setting}: {self._path.absolute()}"
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with closing(sqlite3.connect(self._path, timeout=BUSY_SECONDS, isolation_level=None)) as database:
                database.execute("PRAGMA synchronous = NORMAL")
                database.execute(_TABLE)
                yield database
        except (OSError, sqlite3.OperationalError) as error:
            raise ConfigError(f"{place} cannot be used as a cache of replies: {error}") from error
        except sqlite3.DatabaseError as error:
            raise ConfigError(
                f"{place} is no cache of replies, or damaged ({error}); delete it: replies are asked for anew"
            ) from error

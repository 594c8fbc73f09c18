"""A folder of bodies that wait to be sent, one file each; the next process sends those that are left."""

from __future__ import annotations

import json
import os
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from astune.errors import OnlineError
from astune.online.wire import (
    COMMIT_PATH,
    FEEDBACK_PATH,
    RECORDS_PATH,
    Body,
    Commit,
    ConversationRecord,
    Feedback,
    read_wire,
)

KINDS: dict[str, type[Body]] = {FEEDBACK_PATH: Feedback, RECORDS_PATH: ConversationRecord, COMMIT_PATH: Commit}


@dataclass(eq=False)
class OutboxEntry:
    """A body for a path of the service. `file` holds it in the spool; None if it is only in memory."""

    path: str
    body: Body
    file: Path | None = None
    superseded: bool = False
    """True if a later entry replaces it."""

    @property
    def about(self) -> tuple[str, str | None] | None:
        """The conversation whose record this is, of which only the last record counts; None for other bodies."""
        body = self.body
        return (body.conversation_id, body.run_id) if isinstance(body, ConversationRecord) else None


class Spool:
    """A folder of entries. A file is whole or not there: it is written beside and renamed.

    Entries are read in the order in which they were written. A file that is no entry is left alone and listed in
    `broken`. One process at a time should use a folder: two would send each entry twice, which is safe for feedback.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.broken: list[str] = []
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OnlineError(f"spool folder {folder} cannot be made: {error.strerror or error}") from None
        self._number = max((_number(file) for file in folder.glob("*.json")), default=0)

    def write(self, entry: OutboxEntry) -> None:
        """Raises OSError: the disk is full, the folder is gone."""
        self._number += 1
        file = self.folder / f"{self._number:012d}-{uuid.uuid4().hex[:8]}.json"
        beside = file.with_suffix(".part")
        with beside.open("w", encoding="utf-8") as out:
            json.dump({"path": entry.path, "body": entry.body.to_json()}, out)
            out.flush()
            os.fsync(out.fileno())
        beside.rename(file)
        entry.file = file

    def remove(self, entry: OutboxEntry) -> None:
        if entry.file is not None:
            entry.file.unlink(missing_ok=True)
            entry.file = None

    def read(self) -> list[OutboxEntry]:
        """Read all entries in the folder."""
        found = []
        for file in sorted(self.folder.glob("*.json")):
            try:
                content: Any = json.loads(file.read_text(encoding="utf-8"))
                kind = KINDS[content["path"]]
                found.append(OutboxEntry(content["path"], read_wire(kind, content["body"]), file))
            except (OSError, ValueError, LookupError, TypeError, OnlineError) as error:
                self.broken.append(f"{file}: {error}")
        return found


def _number(file: Path) -> int:
    head = file.name.partition("-")[0]
    return int(head) if head.isdecimal() else 0

"""Bodies that wait to be sent, as one file each: what a process leaves unsent, the next one sends."""

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
class Letter:
    """A body for a path of the service. `file` is where it lies, None if only in memory."""

    path: str
    body: Body
    file: Path | None = None
    superseded: bool = False
    """A later letter says the same and more."""

    @property
    def about(self) -> tuple[str, str | None] | None:
        """The conversation whose record this is: the last record of one counts. None for all else."""
        body = self.body
        return (body.conversation_id, body.run_id) if isinstance(body, ConversationRecord) else None


class Spool:
    """A folder of letters. A file is whole or not there: it is written beside and renamed.

    Letters are read in the order in which they were written. A file that is no letter is left alone and said to be
    `broken`. One process at a time should use a folder: two would send each letter twice, which feedback may be.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.broken: list[str] = []
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OnlineError(f"spool folder {folder} cannot be made: {error.strerror or error}") from None
        self._number = max((_number(file) for file in folder.glob("*.json")), default=0)

    def write(self, letter: Letter) -> None:
        """Raises OSError: the disk is full, the folder is gone."""
        self._number += 1
        file = self.folder / f"{self._number:012d}-{uuid.uuid4().hex[:8]}.json"
        beside = file.with_suffix(".part")
        with beside.open("w", encoding="utf-8") as out:
            json.dump({"path": letter.path, "body": letter.body.to_json()}, out)
            out.flush()
            os.fsync(out.fileno())
        beside.rename(file)
        letter.file = file

    def remove(self, letter: Letter) -> None:
        if letter.file is not None:
            letter.file.unlink(missing_ok=True)
            letter.file = None

    def read(self) -> list[Letter]:
        """The letters that are there."""
        found = []
        for file in sorted(self.folder.glob("*.json")):
            try:
                content: Any = json.loads(file.read_text(encoding="utf-8"))
                kind = KINDS[content["path"]]
                found.append(Letter(content["path"], read_wire(kind, content["body"]), file))
            except (OSError, ValueError, LookupError, TypeError, OnlineError) as error:
                self.broken.append(f"{file}: {error}")
        return found


def _number(file: Path) -> int:
    head = file.name.partition("-")[0]
    return int(head) if head.isdecimal() else 0

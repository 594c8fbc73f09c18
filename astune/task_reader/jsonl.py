"""Tasks from JSON Lines files: one object per line, UTF-8, `.jsonl` or `.jsonl.gz`."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from astune.config.tasks import TaskReaderConfig
from astune.errors import TaskError, nearest
from astune.task_reader.rows import tasks_from_rows
from astune.task_reader.task_reader_base import Split
from astune.types import Task


class TaskReaderJsonl:
    """Reads `astune.task_reader.jsonl.<split>.file_path`. Blank lines and a byte order mark are skipped.

    >>> TaskReaderJsonl(TaskReaderConfig(jsonl={"training": {"file_path": "train.jsonl"}})).read("training")
    [Task(task_id=...), ...]
    """

    def __init__(self, config: TaskReaderConfig) -> None:
        self._config = config

    def read(self, split: Split) -> list[Task]:
        files, limits = self._config.jsonl, (self._config.max_training_tasks, self._config.max_validation_tasks)
        file, limit = (files.training, limits[0]) if split == "training" else (files.validation, limits[1])
        if file.file_path is None:
            if split == "validation":
                return []
            raise TaskError("astune.task_reader.jsonl.training.file_path is not set: there is nothing to train on")
        tasks = tasks_from_rows(read_jsonl(Path(file.file_path)), self._config.fields, limit)
        if not tasks:
            raise TaskError(f"{file.file_path}: no tasks, the file is empty")
        return tasks


def read_jsonl(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields `("path:line", object)` line by line. Raises `TaskError` that names path, line and column."""
    for place, line in numbered_lines(path):
        yield place, parse_line(line, place)


def numbered_lines(path: Path) -> Iterator[tuple[str, bytes]]:
    """Yields `("path:line", line)`, blank lines left out. Raises `TaskError` for a file that cannot be read."""
    if not path.is_file():
        raise TaskError(_not_a_file(path))
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as lines:
            for number, line in enumerate(lines, start=1):
                if number == 1:
                    line = line.removeprefix(b"\xef\xbb\xbf")
                if line.strip():
                    yield f"{path}:{number}", line
    except (OSError, EOFError, zlib.error) as error:
        raise TaskError(f"{path}: cannot be read: {error}") from error


def parse_line(line: bytes, place: str) -> dict[str, Any]:
    """The object in one line. Raises `TaskError` that begins with `place`."""
    try:
        text = line.decode("utf-8").rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise TaskError(f"{place}: byte {error.start + 1} is not UTF-8") from error
    try:
        value = json.loads(text, parse_constant=_reject_constant)
    except json.JSONDecodeError as error:
        excerpt = text[max(0, error.pos - 30) : error.pos + 30]
        raise TaskError(f"{place}:{error.colno}: broken JSON, {error.msg}, near {excerpt!r}{_hint(text)}") from error
    except (ValueError, RecursionError) as error:
        raise TaskError(f"{place}: broken JSON, {error}") from error
    if not isinstance(value, dict):
        raise TaskError(f"{place}: expected an object, found a {type(value).__name__}{_hint(text)}")
    return value


def _reject_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON value")


def _hint(text: str) -> str:
    return "; JSON Lines has one object per line, not one array" if text.startswith("[") else ""


def _not_a_file(path: Path) -> str:
    if path.is_dir():
        return f"{path}: is a folder, expected a JSON Lines file"
    if not path.parent.is_dir():
        return f"{path}: file not found, there is no folder {path.parent}"
    return f"{path}: file not found.{nearest(path.name, sorted(entry.name for entry in path.parent.iterdir()))}"

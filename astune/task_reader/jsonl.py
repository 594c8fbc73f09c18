"""Tasks from JSON Lines files: one object per line, UTF-8, `.jsonl` or `.jsonl.gz`."""

from __future__ import annotations

import gzip
import json
import os
import re
import weakref
import zlib
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from io import BufferedIOBase
from itertools import accumulate, islice
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any

from astune.config.tasks import CSV_SUFFIXES
from astune.errors import TaskError, nearest
from astune.support.file_kinds import LINES, other_kind
from astune.task_reader.table_reader import SourceError, TableReader
from astune.task_reader.task_reader_base import Row, Rows, Split

BATCH = 1 << 20
"""Bytes whose lines are looked for at a time."""
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
TABLE_SUFFIXES = (".json", ".parquet", *CSV_SUFFIXES)
"""Files that the package `datasets` reads; all others are taken for JSON Lines."""


class TaskReaderJsonl(TableReader):
    """Reads `astune.task_reader.jsonl.<split>.file_path`. Blank lines and a byte order mark are skipped.

    >>> from astune.config.tasks import TaskReaderConfig
    >>> _ = Path("train.jsonl").write_text('{"query": "6 * 7?", "answer": "42"}')
    >>> TaskReaderJsonl(TaskReaderConfig(jsonl={"training": {"file_path": "train.jsonl"}})).read("training")[0]
    Task(task_id='...', query='6 * 7?', messages=(), answer='42', ...)
    """

    def rows(self, split: Split) -> Rows | None:
        files = self.config.jsonl
        name = (files.training if split == "training" else files.validation).file_path
        if name is None:
            if split == "validation":
                return None
            raise TaskError("astune.task_reader.jsonl.training.file_path is not set: there is nothing to train on")
        path = Path(name)
        if not path.is_file():
            raise TaskError(_not_a_file(path))
        if path.suffix in TABLE_SUFFIXES:
            from astune.task_reader.huggingface import local_rows

            return local_rows(path, self.config.csv)
        rows = JsonlRows(path)
        if not rows.has(0):
            raise TaskError(f"{path}: no tasks, the file is empty")
        return rows


class JsonlRows:
    """The lines of a file, parsed when they are asked for. Blank lines and a byte order mark are no rows.

    Where lines begin is found out as far as somebody looks, and 8 bytes are kept of each. A `.gz` file is unpacked as
    far, to a temporary file without a name. Raises `SourceError` where the file cannot be read or its lines are others
    than before (more may be added, or another file take its place), and `TaskError` where a line is no object.
    """

    def __init__(self, path: Path) -> None:
        self._name = str(path)
        self._starts = array("Q", [0])
        """The byte at which row i begins; the last entry is for the row after those that are known."""
        self._blanks = array("Q")
        """For each blank line the number of rows before it."""
        self._ended = False
        self._checksum = 0
        files = ExitStack()
        weakref.finalize(self, files.close)
        try:
            self._lines = files.enter_context(_open(path))
        except OSError as error:
            raise self._unreadable(error) from error
        self._written = self._last_written()
        self._unpacked: IO[bytes] | None = None
        if path.suffix == ".gz":
            self._unpacked = files.enter_context(TemporaryFile(buffering=0))  # noqa: SIM115  closed with self

    def __len__(self) -> int:
        while not self._ended:
            self._find_more()
        return len(self._starts) - 1

    def has(self, index: int) -> bool:
        """True if there is a row `index`; reads no further than it takes to know."""
        while index >= len(self._starts) - 1 and not self._ended:
            self._find_more()
        return index < len(self._starts) - 1

    def __getitem__(self, index: int) -> Row:
        if not self.has(index):
            raise IndexError(f"{self._name} has {len(self)} rows, none {index}")
        if self._unpacked is None and self._last_written() != self._written:
            self._check_unchanged()
        start = self._starts[index]
        file = self._lines if self._unpacked is None else self._unpacked
        line = os.pread(file.fileno(), self._starts[index + 1] - start, start)
        return parse_line(line, self.place(index))

    def place(self, index: int) -> str:
        return f"{self._name}:{index + 1 + (bisect_right(self._blanks, index) if self._blanks else 0)}"

    def _find_more(self) -> None:
        """Looks for the lines of the next megabyte."""
        try:
            lines = self._lines.readlines(BATCH)
        except (OSError, EOFError, zlib.error) as error:
            raise self._unreadable(error) from error
        batch = b"".join(lines)
        self._checksum = zlib.crc32(batch, self._checksum)
        if self._unpacked is not None:
            self._unpacked.write(batch)
        self._ended = not lines
        starts = self._starts
        if starts[-1] == 0 and lines and lines[0].startswith(BYTE_ORDER_MARK):
            starts[0] = len(BYTE_ORDER_MARK)
            lines[0] = lines[0].removeprefix(BYTE_ORDER_MARK)
        if all(map(bytes.strip, lines)):
            starts.extend(islice(accumulate(map(len, lines), initial=starts[-1]), 1, None))
            return
        for line in lines:
            if line.strip():
                starts.append(starts[-1] + len(line))
            else:  # belongs to the row before, or, before the first, to none
                starts[-1] += len(line)
                self._blanks.append(len(starts) - 1)

    def _last_written(self) -> int:
        return os.fstat(self._lines.fileno()).st_mtime_ns

    def _check_unchanged(self) -> None:
        """Check that the part of the file in which rows are known is unchanged; lines may have been added to it."""
        self._written = self._last_written()
        checksum, end = 0, self._starts[-1]
        for start in range(0, end, BATCH):
            checksum = zlib.crc32(os.pread(self._lines.fileno(), min(BATCH, end - start), start), checksum)
        if checksum != self._checksum:
            raise SourceError(f"{self._name}: was changed while its tasks were in use; start again")

    def _unreadable(self, error: Exception) -> SourceError:
        return SourceError(f"{self._name}: cannot be read: {error}")


def read_jsonl(path: Path, cut_off: Callable[[TaskError], None] | None = None) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields `("path:line", object)` line by line, blank lines left out. Raises `TaskError` that names path, line and
    column; `cut_off` gets that of a last line that is broken and ends without a newline."""
    if not path.is_file():
        raise TaskError(_not_a_file(path))
    try:
        with _open(path) as lines:
            for number, line in enumerate(lines, start=1):
                if number == 1:
                    line = line.removeprefix(BYTE_ORDER_MARK)
                if not line.strip():
                    continue
                try:
                    row = parse_line(line, f"{path}:{number}")
                except TaskError as error:
                    if cut_off is None or line.endswith(b"\n"):
                        raise
                    cut_off(error)
                    return
                yield f"{path}:{number}", row
    except (OSError, EOFError, zlib.error) as error:
        raise TaskError(f"{path}: cannot be read: {error}") from error


def _open(path: Path) -> BufferedIOBase:
    if wrong := other_kind(path, "tasks or examples in JSON Lines", *LINES):
        raise TaskError(wrong)
    return gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb")


def parse_line(line: bytes, place: str) -> dict[str, Any]:
    """The object in one line. Raises `TaskError` that begins with `place`."""
    try:
        text = line.decode("utf-8").rstrip(" \t\r\n\v\f")
    except UnicodeDecodeError as error:
        raise TaskError(f"{place}: byte {error.start + 1} is not UTF-8") from error
    try:
        value = _DECODER.decode(text)
    except json.JSONDecodeError as error:
        excerpt = text[max(0, error.pos - 30) : error.pos + 30]
        raise TaskError(f"{place}:{error.colno}: broken JSON, {error.msg}, near {excerpt!r}{_hint(text)}") from error
    except (ValueError, RecursionError) as error:
        raise TaskError(f"{place}: broken JSON, {error}") from error
    if _HALF_PAIR.search(text):
        _check_characters(value, place)
    if not isinstance(value, dict):
        raise TaskError(f"{place}: expected an object, found a {type(value).__name__}{_hint(text)}")
    return value


def _reject_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON value")


_HALF_PAIR = re.compile(r"\\u[dD][89a-fA-F]")
"""Escapes that make a character only in pairs."""


def _check_characters(value: Any, place: str) -> None:
    try:
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError as error:
        around = error.object[max(0, error.start - 30) : error.end + 30]
        raise TaskError(
            f"{place}: {error.object[error.start]!r} is half of a surrogate pair and no character, near {around!r}"
        ) from error


_DECODER = json.JSONDecoder(parse_constant=_reject_constant)


def _hint(text: str) -> str:
    return "; JSON Lines has one object per line, not one array" if text.startswith("[") else ""


def _not_a_file(path: Path) -> str:
    if path.is_dir():
        expected = "a JSON Lines file"
        return other_kind(path, expected) or f"{path}: is a folder, expected {expected}"
    if not path.parent.is_dir():
        return f"{path}: file not found, there is no folder {path.parent}"
    return f"{path}: file not found.{nearest(path.name, sorted(entry.name for entry in path.parent.iterdir()))}"

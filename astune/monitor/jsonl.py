"""JSON Lines files that a run appends to: one object per line, strict JSON, UTF-8, each line written as a whole.

A process that is killed leaves at most one unfinished line, at the end and without its newline; readers skip it and
`keep_lines` removes it. A disk that is full leaves none. A lone surrogate is written as its JSON escape, so any `str`
survives.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping
from numbers import Integral, Real
from pathlib import Path
from typing import Any

from astune.errors import RunFolderError
from astune.monitor.disk import sync, writing
from astune.ropes import Messages
from astune.support.user_values import text_of

DEEPEST = 100
"""Levels of lists and mappings inside each other that are kept; what is deeper is written as a text."""
MOST_ITEMS = 200_000
"""Of an answer or a task's row, so that a small object that holds another a million times does not fill the disk."""
LONGEST_INTEGER = 8192
"""Bits; Python refuses to write or read much longer ones in decimal."""
READING = (ValueError, RecursionError)
"""What reading JSON raises: no UTF-8, no JSON, too deep, integers that are too long."""


def plain(value: Any) -> Any:
    """`value` as strict JSON has it: tuples become lists, NaN and infinities None, anything unknown its text. Never
    raises, whatever a class makes of being read."""
    return _Plain(None).of(value, ())


def plain_foreign(value: Any) -> Any:
    """The same for what somebody else's code made, which may hold itself, or the same thing many times."""
    return _Plain(MOST_ITEMS).of(value, ())


class _Plain:
    def __init__(self, most: int | None) -> None:
        self._left = most

    def of(self, value: Any, around: tuple[int, ...]) -> Any:
        """`around` are the ids of the lists and mappings that hold `value`."""
        if value is None or isinstance(value, (str, bool)):
            return value
        if type(value) is float:
            return value if math.isfinite(value) else None
        if isinstance(value, (int, float, Integral, Real)):
            return _plain_number(value)
        if isinstance(value, (Mapping, list, tuple, Messages)):
            if id(value) in around:
                return f"<{type(value).__name__} that holds itself>"
            if len(around) == DEEPEST:
                return f"<{type(value).__name__} more than {DEEPEST} levels deep>"
            try:
                return self._items(value, (*around, id(value)))
            except Exception as error:
                return f"<{type(value).__name__}, of which {type(error).__name__} was raised instead of its items>"
        return text_of(value)

    def _items(self, value: Any, around: tuple[int, ...]) -> Any:
        if self._left is not None:
            if len(value) > self._left:
                return f"<{type(value).__name__} in an object of more than {MOST_ITEMS:,} items>"
            self._left -= len(value)
        if isinstance(value, Mapping):
            return {text_of(key): self.of(item, around) for key, item in value.items()}
        kinds = set(map(type, value))
        if kinds == {float} and all(map(math.isfinite, value)):  # most of what a run writes is lists of numbers
            return list(value)
        if kinds == {int} and max(max(value), -min(value)).bit_length() <= LONGEST_INTEGER:
            return list(value)
        return [self.of(item, around) for item in value]


def _plain_number(value: Any) -> Any:
    if isinstance(value, (int, Integral)):
        whole = int(value)
        return whole if whole.bit_length() <= LONGEST_INTEGER else hex(whole)
    try:
        number = float(value)
    except (OverflowError, ValueError):
        return text_of(value)
    return number if math.isfinite(number) else None


class LineFile:
    """A file to append objects to. Raises `RunFolderError` where the disk does not take them; the file then ends with
    the last whole line."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("ab", buffering=0)

    def append(self, row: Mapping[str, Any]) -> None:
        self.append_plain(plain(row))

    def append_plain(self, row: Mapping[str, Any]) -> None:
        """`append` of what `plain` has made, which takes as long as writing."""
        text = json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n"
        data = memoryview(text.encode("utf-8", errors="backslashreplace"))
        with writing(self.path):
            end = self._file.seek(0, os.SEEK_END)
            try:
                while data:
                    data = data[self._file.write(data) :]
            except OSError:
                with contextlib.suppress(OSError):  # a device has no end
                    self._file.truncate(end)
                raise

    def sync(self) -> None:
        """Waits until all lines are on the disk."""
        with writing(self.path):
            os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> LineFile:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The objects of the file in order, each with its `step`. A broken line that is not the unfinished last one is a
    `RunFolderError`."""
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.endswith(b"\n"):
                return
            try:
                row = json.loads(line)
            except READING as error:
                raise line_error(path, number, f"not JSON ({error})") from error
            if not isinstance(row, dict):
                raise line_error(path, number, f"expected a JSON object, found {type(row).__name__}")
            if not isinstance(row.get("step"), int):
                raise line_error(path, number, "expected a 'step', a whole number")
            yield row


def line_error(path: Path, number: int, what: str) -> RunFolderError:
    return RunFolderError(
        f"{path}, line {number}: {what}. Something else than the run has changed the file, or its disk has: delete "
        f"that line (sed -i {number}d {path.name}), or put the file back as it was"
    )


def keep_lines(path: Path, keep: Callable[[dict[str, Any]], bool]) -> None:
    """Drops the lines that `keep` does not want. The file is replaced in one step: a crash leaves the old one."""
    new = path.with_name(path.name + ".new")
    new.unlink(missing_ok=True)
    with LineFile(new) as file:
        for row in read_lines(path):
            if keep(row):
                file.append(row)
        file.sync()
    os.replace(new, path)
    sync(path.parent)

"""JSON Lines files that a run appends to: one object per line, strict JSON, UTF-8, each line flushed as a whole.

A process that is killed leaves at most one unfinished line, at the end and without its newline; readers skip it and
`keep_lines` removes it. A lone surrogate is written as its JSON escape, so any `str` survives.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TextIO

from astune.errors import AstuneError


def plain(value: Any) -> Any:
    """`value` as strict JSON has it: tuples become lists, NaN and infinities None, anything unknown its text."""
    if value is None or isinstance(value, (str, bool, int)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return str(value)


def open_for_append(path: Path) -> TextIO:
    path.parent.mkdir(parents=True, exist_ok=True)
    return path.open("a", encoding="utf-8", errors="backslashreplace", newline="\n")


def append_line(file: TextIO, row: Mapping[str, Any]) -> None:
    file.write(json.dumps(plain(row), ensure_ascii=False, allow_nan=False) + "\n")
    file.flush()


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The objects of the file in order. A broken line that is not the unfinished last one is an `AstuneError`."""
    with path.open(encoding="utf-8", newline="\n") as file:
        for number, line in enumerate(file, start=1):
            if not line.endswith("\n"):
                return
            try:
                row = json.loads(line)
            except json.JSONDecodeError as error:
                raise AstuneError(f"{path}, line {number}: not JSON ({error.msg} at column {error.colno})") from error
            if not isinstance(row, dict):
                raise AstuneError(f"{path}, line {number}: expected a JSON object, found {type(row).__name__}")
            yield row


def keep_lines(path: Path, keep: Callable[[dict[str, Any]], bool]) -> None:
    """Drops the lines that `keep` does not want. The file is replaced in one step: a crash leaves the old one."""
    new = path.with_name(path.name + ".new")
    new.unlink(missing_ok=True)
    with open_for_append(new) as file:
        for row in read_lines(path):
            if keep(row):
                append_line(file, row)
    os.replace(new, path)

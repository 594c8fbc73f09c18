"""Check that a CSV file has the separator and the encoding that are configured.

>>> _ = Path("tasks.csv").write_text("query;answer")
>>> csv_options(Path("tasks.csv"), CsvConfig(separator="semicolon"))
{'sep': ';', 'encoding': 'utf-8'}
"""

from __future__ import annotations

import codecs
from pathlib import Path

from astune.config.tasks import CSV_SUFFIXES, CsvConfig
from astune.errors import ConfigError, TaskError, nearest

SEPARATORS = {"comma": ",", "semicolon": ";", "tab": "\t", "pipe": "|"}
ENCODINGS = ("utf-8", "utf-8-sig", "utf-16", "utf-32", "latin-1", "cp1252")
MARKS = {
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
"""Byte order marks and their encodings; the longer ones first, as they begin with a shorter one."""
KEY = "astune.task_reader.csv"


def csv_options(path: Path, config: CsvConfig) -> dict[str, str]:
    """Arguments for the reader of CSV; none where the file is no CSV.

    Raises:
        ConfigError: there is no such encoding.
        TaskError: the file has another encoding, a NUL character, or columns separated by something else; with the
            line and what to set.
    """
    if path.suffix not in CSV_SUFFIXES:
        return {}
    separator = SEPARATORS[config.separator or ("tab" if path.suffix == ".tsv" else "comma")]
    header = _check_header(path, config.encoding)
    others = [name for name, other in SEPARATORS.items() if other in header]
    if separator not in header and others:
        raise TaskError(
            f"{path}:1: one column, {header!r:.80}, which looks separated by {SEPARATORS[others[0]]!r}: "
            f"set {KEY}.separator to {others[0]}"
        )
    return {"sep": separator, "encoding": config.encoding}


def _check_header(path: Path, encoding: str) -> str:
    """The first line. The whole file is looked through: what cannot be read is told with its line."""
    try:
        codecs.lookup(encoding)
    except LookupError as error:
        raise ConfigError(
            f"{KEY}.encoding: there is no {encoding!r}.{nearest(encoding, ENCODINGS)} As: {', '.join(ENCODINGS)}"
        ) from error
    with path.open("rb") as file:
        start = file.read(4)
    marked = next((name for mark, name in MARKS.items() if start.startswith(mark)), None)
    if marked is not None and not encoding.startswith(marked):
        raise TaskError(f"{path}: is written in {marked}: set {KEY}.encoding to {marked}")
    header, number = "", 0
    try:
        with path.open(encoding=encoding, newline="\n") as lines:
            for number, line in enumerate(lines, start=1):
                header = header or line.lstrip("\ufeff").strip()
                if "\0" in line:
                    raise TaskError(f"{path}:{number}: a NUL character; is it in another encoding ({KEY}.encoding)?")
    except UnicodeError as error:
        raise TaskError(
            f"{path}:{number + 1} or below is not {encoding}: {error}; set {KEY}.encoding to what the file is written "
            "in, as latin-1 or cp1252"
        ) from error
    return header

"""Write rows into a new file, in lines of JSON or a table of Parquet: `astune online export` and `astune rescore`."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from astune.config.schema import Config
from astune.errors import ConfigError, explain_missing
from astune.monitor.disk import writing
from astune.monitor.jsonl import LineFile, plain
from astune.monitor.run_dir import RunDir

Write = Callable[[Mapping[str, Any]], None]
TOGETHER = 500
"""Rows of a group in Parquet."""
NUMBERS = {"step": "int64", "unique_tokens": "int64", "reward": "float64", "env_score": "float64", "passed": "bool_"}
"""Columns that are no text. What is a list or a mapping stands as JSON."""


def as_run(folder: Path, config: Config | None) -> Path:
    """The file of episodes in a new folder that is laid out as that of a run. Raises ConfigError for one that is there,
    and without a configuration."""
    if config is None:
        raise ConfigError(
            f"--out {folder}: a folder holds the configuration too: give --conf; or name a file, as a.jsonl"
        )
    if folder.exists():
        raise ConfigError(f"--out {folder}: the folder is there already; nothing is written into it")
    run_dir = RunDir(folder)
    with writing(folder):
        folder.mkdir(parents=True)
    run_dir.save_config(config)
    return run_dir.episodes_dir / "online.jsonl"


@contextmanager
def new_file(path: Path) -> Iterator[Write]:
    """A function that writes a row to `path`, which is there once all are written, and not where that fails. Raises
    ConfigError for a file that is there already, or a name that is neither .jsonl nor .parquet."""
    if path.exists():
        raise ConfigError(f"--out {path}: the file is there already; nothing is written over it")
    if path.suffix not in (".jsonl", ".parquet"):
        raise ConfigError(f"--out {path}: expected a name that ends with .jsonl or .parquet")
    new = path.with_name(path.name + ".new")
    try:
        with writing(path):
            new.parent.mkdir(parents=True, exist_ok=True)
            new.unlink(missing_ok=True)
        with _write_lines(new) if path.suffix == ".jsonl" else _table(new) as write:
            yield write
    except BaseException:
        new.unlink(missing_ok=True)
        raise
    os.replace(new, path)


@contextmanager
def _write_lines(path: Path) -> Iterator[Write]:
    with LineFile(path) as file:
        yield file.append
        file.sync()


@contextmanager
def _table(path: Path) -> Iterator[Write]:
    with explain_missing("Parquet", "'astune[huggingface]'"):
        import pyarrow as pa
        import pyarrow.parquet as pq
    waiting: list[dict[str, Any]] = []
    writer = None

    def flush() -> None:
        nonlocal writer
        if writer is None:
            names = waiting[0] if waiting else ()
            writer = pq.ParquetWriter(
                path, pa.schema([(name, getattr(pa, NUMBERS.get(name, "string"))()) for name in names])
            )
        writer.write_table(pa.Table.from_pylist(waiting, schema=writer.schema))
        waiting.clear()

    def write(row: Mapping[str, Any]) -> None:
        waiting.append({name: _cell(value) for name, value in plain(row).items()})
        if len(waiting) == TOGETHER:
            flush()

    try:
        yield write
        flush()
    finally:
        if writer is not None:
            writer.close()


def _cell(value: Any) -> Any:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, (dict, list)) else value

"""Tasks from a Hugging Face data set: a hub id, a local folder or a local file. The only user of `datasets`."""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import httpx

from astune.config.tasks import CSV_SUFFIXES, CsvConfig, HuggingFaceReaderConfig, TaskReaderConfig
from astune.errors import ConfigError, MissingDependency, TaskError, nearest
from astune.support.file_kinds import LINES, Kind, other_kind
from astune.task_reader.csv_file import csv_options
from astune.task_reader.table_reader import TableReader
from astune.task_reader.task_reader_base import Row, Rows, Split

FILE_FORMATS = {".parquet": "parquet", ".arrow": "arrow", ".json": "json", ".jsonl": "json"}
FILE_FORMATS |= dict.fromkeys(CSV_SUFFIXES, "csv")
KEY = "astune.task_reader.huggingface"


class TaskReaderHuggingFace(TableReader):
    """Reads `astune.task_reader.huggingface`. A split may be a slice, such as `train[:90%]`, unless it is streamed.

    >>> _ = Path("tasks.jsonl").write_text('{"question": "6 * 7?", "answer": "42"}')
    >>> config = TaskReaderConfig(type="huggingface", huggingface={"dataset_path": "tasks.jsonl"})
    >>> TaskReaderHuggingFace(config).read("training")[0]
    Task(task_id='...', query='6 * 7?', messages=(), answer='42', ...)
    """

    def __init__(self, config: TaskReaderConfig) -> None:
        super().__init__(config)
        self._source = config.huggingface
        self._limits = {"training": config.max_training_tasks, "validation": config.max_validation_tasks}

    def rows(self, split: Split) -> Rows | None:
        name = self._source.training_split if split == "training" else self._source.validation_split
        if name is None:
            return None
        if self._source.dataset_path is None:
            raise TaskError(f"{KEY}.dataset_path is not set: give a hub id, a local folder or a local file")
        place = f"{self._source.dataset_path}[{name}]"
        if self._source.streaming:
            return TableRows(_first_rows(self._source, split, name, self._limits[split], self.config.csv), place)
        return TableRows(_load(self._source, self._source.dataset_path, name, self.config.csv), place)


@dataclass(frozen=True)
class TableRows:
    """Rows of a data set, which lie in memory-mapped files, or of the part of a stream that was taken."""

    table: Any
    source: str

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, index: int) -> Row:
        try:
            row: Row = self.table[index]
        except (ValueError, OSError) as error:
            raise TaskError(f"{self.place(index)}: cannot be read: {error}") from error
        return {name: without_nulls(value) for name, value in row.items()}

    def place(self, index: int) -> str:
        return f"{self.source} row {index + 1}"

    def nulls_left_out(self, indices: Iterable[int]) -> dict[str, int]:
        """The number of nulls inside objects that are left out of these rows, by their place, as
        `calls[].arguments.city`."""
        table, found = self.table, Counter[str]()
        if not isinstance(table, list):  # a stream's first rows; of a table, columns without objects are not read again
            plain = _datasets().Value
            table = table.select_columns([name for name, kind in table.features.items() if not isinstance(kind, plain)])
            if not table.column_names:
                return {}
        for index in indices:
            for name, value in table[index].items():
                _count_nulls(value, name, found)
        return dict(found)


def without_nulls(value: Any) -> Any:
    """A value of a column without the null entries of objects in it: Arrow gives all objects of a column the same keys,
    and what was filled in cannot be told from what was meant. A column of JSON text is as it was written.

    >>> without_nulls([{"name": "add", "arguments": {"a": 1, "city": None}}, None])
    [{'name': 'add', 'arguments': {'a': 1}}, None]
    """
    if isinstance(value, Mapping):
        return {name: without_nulls(entry) for name, entry in value.items() if entry is not None}
    return [without_nulls(entry) for entry in value] if isinstance(value, list) else value


def _count_nulls(value: Any, place: str, found: Counter[str]) -> None:
    if isinstance(value, Mapping):
        for name, entry in value.items():
            if entry is None:
                found[f"{place}.{name}"] += 1
            _count_nulls(entry, f"{place}.{name}", found)
    for entry in value if isinstance(value, list) else ():
        _count_nulls(entry, f"{place}[]", found)


def local_rows(path: Path, csv: CsvConfig) -> Rows:
    """The rows of a .json, .jsonl, .csv, .tsv, .parquet or .arrow file. Raises `TaskError` that names the file, and
    `MissingDependency` without `datasets`."""
    return TableRows(_load(HuggingFaceReaderConfig(), str(path), "train", csv), str(path))


def rows_of_dataset(value: object, name: str) -> Rows | None:
    """The rows of a `datasets.Dataset`; None for what is no data set. Raises `TaskError` for several splits, and for a
    stream, whose end nobody knows."""
    datasets = sys.modules.get("datasets")  # who holds a data set has imported it
    if datasets is None:
        return None
    if isinstance(value, datasets.Dataset):
        return TableRows(value, name)
    if isinstance(value, datasets.DatasetDict | datasets.IterableDatasetDict):
        raise TaskError(f"{name}: expected one split of the data set, as data[{next(iter(value), 'train')!r}]")
    if isinstance(value, datasets.IterableDataset):
        raise TaskError(f"{name}: a stream has no end that is known; take its first rows, as list(data.take(1000))")
    return None


def _load(source: HuggingFaceReaderConfig, path: str, split: str, csv: CsvConfig) -> Any:
    """The `datasets.Dataset` of one split. A data set that was saved without splits is the split `train`."""
    datasets = _datasets()
    with _explain_errors(path, source.dataset_name):
        if _is_saved(path):
            saved = datasets.load_from_disk(path)
            splits = saved if isinstance(saved, dict) else {"train": saved}
        else:
            builder = _builder(datasets, source, path, csv)
            with _naming_the_file(datasets, builder, path):
                builder.download_and_prepare()
            splits = builder.info.splits
        _check_split(path, split, list(splits))
        try:
            return _part(datasets, splits, split) if _is_saved(path) else builder.as_dataset(split=split)
        except ValueError as error:
            raise TaskError(f"{path}: split {split!r} cannot be read: {error}") from error


def _first_rows(
    source: HuggingFaceReaderConfig, split: Split, name: str, limit: int | None, csv: CsvConfig
) -> Sequence[Row]:
    """The first `limit` rows of a stream: they are kept in memory, and nothing on disk."""
    datasets, path = _datasets(), str(source.dataset_path)
    if limit is None:
        raise ConfigError(f"{KEY}.streaming needs astune.task_reader.max_{split}_tasks: a stream is read only so far")
    if "[" in name or "+" in name:
        raise ConfigError(
            f"{KEY}.{split}_split: expected the name of one split, found {name!r}: a stream has no slices. "
            f"Set streaming: false, or take its first rows with astune.task_reader.max_{split}_tasks"
        )
    if _is_saved(path):  # memory-mapped where it lies
        return list(islice(_load(source, path, name, csv), limit))
    with _explain_errors(path, source.dataset_name):
        builder = _builder(datasets, source, path, csv)
        with _naming_the_file(datasets, builder, path):
            streams = builder.as_streaming_dataset()
            _check_split(path, name, list(streams))
            return list(islice(streams[name], limit))


def _builder(datasets: Any, source: HuggingFaceReaderConfig, path: str, csv: CsvConfig) -> Any:
    file_format = FILE_FORMATS.get(Path(path).suffix)
    if (file_format or path.startswith((".", "/", "~"))) and not Path(path).exists():
        raise TaskError(f"{KEY}.dataset_path: {path} does not exist{_nearest_entry(path)}")
    if Path(path).is_file() and (wrong := other_kind(Path(path), "tasks", Kind.TABLE, *LINES)):
        raise TaskError(wrong)
    for key in ("dataset_name", "revision"):
        if Path(path).is_file() and getattr(source, key) is not None:
            raise ConfigError(f"{KEY}.{key}: {path} is a file, which has no such; take the key out")
    if file_format and Path(path).is_file():
        return datasets.load_dataset_builder(file_format, data_files=path, **csv_options(Path(path), csv))
    return datasets.load_dataset_builder(path, source.dataset_name, revision=source.revision)


def _is_saved(path: str) -> bool:
    """True if `save_to_disk` wrote the folder."""
    return any((Path(path) / name).is_file() for name in ("state.json", "dataset_dict.json"))


def _part(datasets: Any, splits: Mapping[str, Any], split: str) -> Any:
    """The rows of a saved data set that `split` names, which may be a slice or a sum."""
    sizes = {name: len(rows) for name, rows in splits.items()}
    parts = datasets.ReadInstruction.from_spec(split).to_absolute(sizes)
    return datasets.concatenate_datasets([splits[part.splitname].select(range(part.from_, part.to)) for part in parts])


def _check_split(path: str, split: str, known: Sequence[str]) -> None:
    for part in re.split(r"\s*\+\s*", split):
        base = part.partition("[")[0]
        if base not in known:
            raise TaskError(
                f"{path}: no split {base!r}; there are {', '.join(map(repr, known))}.{nearest(base, known)}"
            )


def _datasets() -> Any:
    try:
        import datasets
    except ImportError as error:
        raise MissingDependency(
            "Hugging Face data sets and files other than JSON Lines need the package datasets: "
            'pip install "astune[huggingface]". JSON Lines files need nothing: astune.task_reader.type jsonl'
        ) from error
    return datasets


@contextmanager
def _explain_errors(path: str, name: str | None) -> Iterator[None]:
    """Turn errors of `datasets` into `TaskError`."""
    try:
        yield
    except (ConnectionError, httpx.TransportError) as error:
        raise TaskError(
            f"{path}: the Hugging Face hub cannot be reached ({error}). Without a network, set {KEY}.dataset_path to "
            "a local copy: a folder of parquet or JSON Lines files, or one that save_to_disk wrote"
        ) from error
    except (ValueError, OSError) as error:
        hint = nearest(name, set(re.findall(r"'([^']+)'", str(error))) - {name}) if name else ""
        raise TaskError(f"{path}: {str(error).strip()}{hint}") from error


@contextmanager
def _naming_the_file(datasets: Any, builder: Any, path: str) -> Iterator[None]:
    """Says which of several local files is broken, which `datasets` only logs."""
    try:
        yield
    except (datasets.exceptions.DatasetsError, ValueError) as error:
        if isinstance(error, FileNotFoundError):
            raise
        if isinstance(error.__cause__, OSError):  # the network, or the disk
            raise error.__cause__ from None
        files = [str(file) for each in (builder.config.data_files or {}).values() for file in each]
        for file in files if len(files) > 1 else []:
            if Path(file).is_file() and not _readable(datasets, builder.name, file):
                raise TaskError(f"{file}: cannot be read: {error.__cause__ or error}") from error
        raise TaskError(f"{path}: cannot be read: {str(error.__cause__ or error).strip()}") from error


def _readable(datasets: Any, file_format: str, file: str) -> bool:
    try:
        for _ in datasets.load_dataset_builder(file_format, data_files=file).as_streaming_dataset(split="train"):
            pass
    except ValueError:
        return False
    return True


def _nearest_entry(path: str) -> str:
    parent = Path(path).parent
    names = sorted(entry.name for entry in parent.iterdir()) if parent.is_dir() else []
    return f".{nearest(Path(path).name, names)}"

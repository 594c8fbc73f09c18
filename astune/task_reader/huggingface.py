"""Tasks from a Hugging Face data set: a hub id, a local folder or a local file. The only user of `datasets`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from astune.config.tasks import TaskReaderConfig
from astune.errors import MissingDependency, TaskError, nearest
from astune.task_reader.rows import tasks_from_rows
from astune.task_reader.task_reader_base import Split
from astune.types import Task

FILE_FORMATS = {".parquet": "parquet", ".json": "json", ".jsonl": "json", ".csv": "csv"}


class TaskReaderHuggingFace:
    """Reads `astune.task_reader.huggingface`. A split may be a slice, such as `train[:90%]`.

    >>> huggingface = {"dataset_path": "openai/gsm8k", "dataset_name": "main"}
    >>> TaskReaderHuggingFace(TaskReaderConfig(type="huggingface", huggingface=huggingface)).read("training")
    [Task(task_id=...), ...]
    """

    def __init__(self, config: TaskReaderConfig) -> None:
        self._config = config

    def read(self, split: Split) -> list[Task]:
        source, config = self._config.huggingface, self._config
        name, limit = (
            (source.training_split, config.max_training_tasks)
            if split == "training"
            else (source.validation_split, config.max_validation_tasks)
        )
        if name is None:
            return []
        if source.dataset_path is None:
            raise TaskError("astune.task_reader.huggingface.dataset_path is not set: give a hub id or a local folder")
        dataset = _load(source.dataset_path, source.dataset_name, name)
        rows = ((f"{source.dataset_path}[{name}] row {index}", row) for index, row in enumerate(dataset))
        return tasks_from_rows(rows, config.fields, limit)


def _load(path: str, name: str | None, split: str) -> Any:
    """The rows of one split. Raises `TaskError` for what is not there and `MissingDependency` without `datasets`."""
    try:
        import datasets
    except ImportError as error:
        raise MissingDependency(
            "astune.task_reader.type huggingface needs the package datasets: "
            'pip install "astune[huggingface]". JSON Lines files need nothing: type jsonl'
        ) from error
    file_format = FILE_FORMATS.get(Path(path).suffix)
    if (file_format or path.startswith((".", "/", "~"))) and not Path(path).exists():
        raise TaskError(f"astune.task_reader.huggingface.dataset_path: {path} does not exist{_nearest_entry(path)}")
    try:
        if file_format and Path(path).is_file():
            builder = datasets.load_dataset_builder(file_format, data_files=path)
        else:
            builder = datasets.load_dataset_builder(path, name)
        builder.download_and_prepare()
    except ConnectionError as error:
        raise TaskError(
            f"{path}: the Hugging Face hub cannot be reached ({error}). Without a network, set "
            "astune.task_reader.huggingface.dataset_path to a local copy, a folder of parquet or JSON Lines files"
        ) from error
    except (ValueError, OSError) as error:
        raise TaskError(f"{path}: {error}{_nearest_name(name, str(error))}") from error
    known = list(builder.info.splits)
    for part in re.split(r"\s*\+\s*", split):
        base = part.partition("[")[0]
        if base not in known:
            raise TaskError(
                f"{path}: no split {base!r}; there are {', '.join(map(repr, known))}.{nearest(base, known)}"
            )
    try:
        return builder.as_dataset(split=split)
    except ValueError as error:
        raise TaskError(f"{path}: split {split!r} cannot be read: {error}") from error


def _nearest_entry(path: str) -> str:
    parent = Path(path).parent
    names = sorted(entry.name for entry in parent.iterdir()) if parent.is_dir() else []
    return f".{nearest(Path(path).name, names)}"


def _nearest_name(name: str | None, message: str) -> str:
    """`datasets` lists the names of the subsets there are, in quotes, when it does not find one."""
    return nearest(name, set(re.findall(r"'([^']+)'", message)) - {name}) if name else ""

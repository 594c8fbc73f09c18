"""Sets of held-out tasks that have a name, `astune.evaluation.sets`: each is read as `astune.task_reader` reads its
held-out tasks, but for what the set says otherwise."""

from __future__ import annotations

from astune.config.evaluation import HeldOutSetConfig
from astune.config.tasks import JsonlFile, TaskReaderConfig


def reader_of(reader: TaskReaderConfig, chosen: HeldOutSetConfig) -> TaskReaderConfig:
    """The configuration of a reader whose held-out tasks are those of the set."""
    changed: dict[str, object] = {
        "filter": chosen.filter,
        "max_validation_tasks": chosen.max_tasks,
        "validation_fraction": None,
    }
    if chosen.file_path is not None:
        of_file = {"validation": JsonlFile(file_path=chosen.file_path)}
        changed |= {"type": "jsonl", "jsonl": reader.jsonl.model_copy(update=of_file)}
    elif chosen.split is not None:
        split = {"validation_split": chosen.split}
        changed["huggingface"] = reader.huggingface.model_copy(update=split)
        changed["env_service"] = reader.env_service.model_copy(update=split)
    return reader.model_copy(update=changed)

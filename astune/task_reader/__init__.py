"""Task readers: from a data set to tasks.

sets = task_sets.read_task_sets(config.astune.task_reader)     # selected and checked, what a run takes
tasks = make_reader(config.astune.task_reader).read("training")     # as they are, each made when it is looked at
"""

from __future__ import annotations

from astune.config.tasks import READERS, TaskReaderConfig
from astune.errors import PluginError
from astune.plugins import load_plugin
from astune.task_reader.env_service import TaskReaderEnvService
from astune.task_reader.huggingface import TaskReaderHuggingFace
from astune.task_reader.jsonl import TaskReaderJsonl
from astune.task_reader.reasoning_gym import TaskReaderReasoningGym
from astune.task_reader.task_reader_base import Split, TaskReader

__all__ = [
    "Split",
    "TaskReader",
    "TaskReaderEnvService",
    "TaskReaderHuggingFace",
    "TaskReaderJsonl",
    "TaskReaderReasoningGym",
    "make_reader",
]


def make_reader(config: TaskReaderConfig) -> TaskReader:
    """The reader that `astune.task_reader.type` names, constructed with `config`. Nothing is read yet.

    A plug-in is a class whose constructor takes a `TaskReaderConfig` and that has `read(split)`; a program may give an
    object that has it. Raises `PluginError` where it is neither.
    """
    reader_class = load_plugin(config.type, kind="task reader", builtin=READERS)
    if isinstance(reader_class, TaskReader) and not isinstance(reader_class, type):
        return reader_class
    if not isinstance(reader_class, type):
        raise PluginError(
            f"astune.task_reader.type: {config.type!r} is a {type(reader_class).__name__}, "
            "expected a class with read(split)"
        )
    reader = reader_class(config)
    if not isinstance(reader, TaskReader):
        raise PluginError(
            f"astune.task_reader.type: class {reader_class.__name__!r} has no method read(split) -> Sequence[Task]"
        )
    return reader

from pathlib import Path

import pytest

from astune.config.tasks import TaskReaderConfig, sources_of
from astune.errors import PluginError
from astune.task_reader import TaskReader, TaskReaderEnvService, TaskReaderHuggingFace, TaskReaderJsonl, make_reader
from tests.rows import each_row

PLUGIN = """
from astune import Task

class MyReader:
    def __init__(self, config):
        self.limit = config.max_training_tasks

    def read(self, split):
        return [Task(f"{split}-{n}", "?") for n in range(self.limit)]

class NoReader:
    def __init__(self, config): ...

def function(config): ...
"""


@pytest.fixture
def plugin(tmp_path: Path) -> str:
    path = tmp_path / "readers.py"
    path.write_text(PLUGIN)
    return str(path)


@each_row(
    ("name", "kind"),
    [
        ("jsonl", TaskReaderJsonl),
        ("huggingface", TaskReaderHuggingFace),
        ("TaskReaderJsonl", TaskReaderJsonl),
        ("astune.task_reader.jsonl->TaskReaderJsonl", TaskReaderJsonl),
        ("astune.task_reader.task_reader_base->TaskReaderHuggingFace", TaskReaderHuggingFace),
        ("astune/task_reader/task_reader_base.py:TaskReaderEnvService", TaskReaderEnvService),
    ],
)
def test_the_built_in_readers_have_names_by_which_other_keys_ask_for_them(name: str, kind: type) -> None:
    config = TaskReaderConfig(type=name)
    reader = make_reader(config)
    assert isinstance(reader, kind) and isinstance(reader, TaskReader)
    assert sources_of(config) is not None, "keys of a plug-in would not be checked"


def test_a_class_of_the_user_is_constructed_with_the_config(plugin: str) -> None:
    reader = make_reader(TaskReaderConfig(type=f"{plugin}:MyReader", max_training_tasks=2))
    assert [task.task_id for task in reader.read("training")] == ["training-0", "training-1"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("NoReader", "class 'NoReader' has no method read"),
        ("function", "is a function, expected a class with read"),
    ],
)
def test_what_is_no_reader_is_an_error_that_names_the_key(plugin: str, name: str, message: str) -> None:
    with pytest.raises(PluginError, match=message) as error:
        make_reader(TaskReaderConfig(type=f"{plugin}:{name}"))
    assert "astune.task_reader.type" in str(error.value)


def test_a_mistyped_type_gets_the_nearest_one() -> None:
    with pytest.raises(PluginError, match="Did you mean 'jsonl'"):
        make_reader(TaskReaderConfig(type="jsonlines"))

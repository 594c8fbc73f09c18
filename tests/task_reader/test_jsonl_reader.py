import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from astune.config.tasks import JsonlFile, JsonlReaderConfig, TaskReaderConfig
from astune.errors import TaskError
from astune.task_reader import TaskReaderJsonl
from astune.types import Task

GSM8K = Path(__file__).parents[3] / "shared/data/gsm8k/train_1000.jsonl"


def reader(training: Path | None = None, validation: Path | None = None, **settings: Any) -> TaskReaderJsonl:
    files = [JsonlFile(file_path=None if path is None else str(path)) for path in (training, validation)]
    return TaskReaderJsonl(
        TaskReaderConfig(jsonl=JsonlReaderConfig(training=files[0], validation=files[1]), **settings)
    )


def write(path: Path, *lines: str | bytes, newline: bytes = b"\n") -> Path:
    path.write_bytes(newline.join(line if isinstance(line, bytes) else line.encode() for line in lines))
    return path


def message_of(path: Path) -> str:
    with pytest.raises(TaskError) as error:
        reader(path).read("training")
    return str(error.value)


@pytest.mark.parametrize("newline", [b"\n", b"\r\n"])
def test_blank_lines_and_a_byte_order_mark_are_skipped(tmp_path: Path, newline: bytes) -> None:
    lines = [b'\xef\xbb\xbf{"query": "\xc3\xa4", "id": 1}', "", "  ", '{"query": "b", "id": 2}', ""]
    path = write(tmp_path / "train.jsonl", *lines, newline=newline)
    assert [(task.task_id, task.query) for task in reader(path).read("training")] == [("1", "ä"), ("2", "b")]


def test_each_split_has_its_file_and_its_limit(tmp_path: Path) -> None:
    training = write(tmp_path / "train.jsonl", *(json.dumps({"query": f"t{n}"}) for n in range(5)))
    validation = write(tmp_path / "valid.jsonl", *(json.dumps({"query": f"v{n}"}) for n in range(5)))
    both = reader(training, validation, max_training_tasks=3, max_validation_tasks=2)
    assert [task.query for task in both.read("training")] == ["t0", "t1", "t2"]
    assert [task.query for task in both.read("validation")] == ["v0", "v1"]
    assert len(reader(training, validation).read("training")) == 5


def test_what_comes_after_the_limit_is_not_looked_at(tmp_path: Path) -> None:
    path = write(tmp_path / "train.jsonl", '{"query": "a"}', "broken")
    assert len(reader(path, max_training_tasks=1).read("training")) == 1


def test_without_a_validation_file_there_are_no_validation_tasks(tmp_path: Path) -> None:
    assert reader(write(tmp_path / "train.jsonl", '{"query": "a"}')).read("validation") == []


def test_a_compressed_file_reads_the_same(tmp_path: Path) -> None:
    line = b'{"query": "a", "answer": 72}\n'
    (tmp_path / "train.jsonl.gz").write_bytes(gzip.compress(line))
    plain = write(tmp_path / "train.jsonl", line)
    assert reader(tmp_path / "train.jsonl.gz").read("training") == reader(plain).read("training")


@pytest.mark.skipif(not GSM8K.exists(), reason="the GSM8K sample is not on this machine")
def test_gsm8k_works_as_it_is() -> None:
    tasks: list[Task] = reader(GSM8K).read("training")
    assert len(tasks) == len({task.task_id for task in tasks}) == 1000
    assert tasks[0].query.startswith("Natalia sold clips to 48 of her friends")
    assert all(task.answer and "\n#### " in task.answer for task in tasks)
    assert tasks == reader(GSM8K).read("training")


def test_a_broken_line_is_named_with_line_column_and_excerpt(tmp_path: Path) -> None:
    path = write(tmp_path / "train.jsonl", '{"query": "a"}', "", '{"query": "b" "answer": 1}')
    assert message_of(path) == (
        f'{path}:3:15: broken JSON, Expecting \',\' delimiter, near \'{{"query": "b" "answer": 1}}\''
    )


BAD_FILES = [
    (['{"query": "a"}', "[1, 2]"], ":2: expected an object, found a list; JSON Lines has one object per line"),
    (['"text"'], ":1: expected an object, found a str"),
    (["[", '{"query": "a"}', "]"], ":1:2: broken JSON"),
    (['{"query": "a", "answer": NaN}'], ":1: broken JSON, NaN is no JSON value"),
    (['{"query": "a"}', b'{"query": "\xff"}'], ":2: byte 12 is not UTF-8"),
    (["{" + '"a":[' * 100_000], ":1"),
    (["", "  "], ": no tasks, the file is empty"),
    ([], ": no tasks, the file is empty"),
    (['{"query": "a"}', '{"answer": 1}'], ":2: no query"),
]


@pytest.mark.parametrize(("lines", "message"), BAD_FILES)
def test_a_bad_file_is_an_error_that_names_the_line(tmp_path: Path, lines: list[str], message: str) -> None:
    path = write(tmp_path / "train.jsonl", *lines)
    assert f"{path}{message}" in message_of(path)


def test_a_missing_file_gets_the_nearest_name(tmp_path: Path) -> None:
    write(tmp_path / "train_1000.jsonl", "")
    missing = tmp_path / "train_100.jsonl"
    assert message_of(missing) == f"{missing}: file not found. Did you mean 'train_1000.jsonl'?"


def test_a_missing_folder_and_a_folder_instead_of_a_file_are_named(tmp_path: Path) -> None:
    missing = tmp_path / "nowhere" / "train.jsonl"
    assert message_of(missing) == f"{missing}: file not found, there is no folder {missing.parent}"
    assert message_of(tmp_path) == f"{tmp_path}: is a folder, expected a JSON Lines file"


@pytest.mark.parametrize("content", [b"no gzip", gzip.compress(b'{"query": "a"}\n' * 100)[:40]])
def test_a_broken_archive_is_an_error(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "train.jsonl.gz"
    path.write_bytes(content)
    assert f"{path}: cannot be read: " in message_of(path)


def test_no_training_file_at_all_is_an_error_that_names_the_key() -> None:
    with pytest.raises(TaskError, match=r"astune\.task_reader\.jsonl\.training\.file_path is not set"):
        reader().read("training")

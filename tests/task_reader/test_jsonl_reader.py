import gzip
import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from astune.config.tasks import JsonlFile, JsonlReaderConfig, TaskReaderConfig
from astune.errors import TaskError
from astune.task_reader import TaskReaderJsonl
from astune.task_reader import jsonl as jsonl_module
from astune.task_reader.jsonl import JsonlRows, read_jsonl
from astune.task_reader.table_reader import SourceError
from astune.task_reader.task_sets import TaskSets, read_task_sets
from tests.rows import each_row

GSM8K = Path(__file__).parents[3] / "shared/data/gsm8k/train_1000.jsonl"


def config(training: Path | None = None, validation: Path | None = None, **settings: Any) -> TaskReaderConfig:
    files = [JsonlFile(file_path=None if path is None else str(path)) for path in (training, validation)]
    return TaskReaderConfig(jsonl=JsonlReaderConfig(training=files[0], validation=files[1]), **settings)


def read(training: Path | None = None, validation: Path | None = None, **settings: Any) -> TaskSets:
    return read_task_sets(config(training, validation, **settings))


def write(path: Path, *lines: str | bytes, newline: bytes = b"\n") -> Path:
    path.write_bytes(newline.join(line if isinstance(line, bytes) else line.encode() for line in lines))
    return path


def message_of(path: Path) -> str:
    with pytest.raises(TaskError) as error:
        read(path)
    return str(error.value)


@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz"])
@pytest.mark.parametrize("newline", [b"\n", b"\r\n"])
def test_blank_lines_and_a_byte_order_mark_are_skipped(tmp_path: Path, newline: bytes, suffix: str) -> None:
    lines = [b'\xef\xbb\xbf{"query": "\xc3\xa4", "id": 1}', "", "  ", '{"query": "b", "id": 2}', ""]
    path = write(tmp_path / f"train{suffix}", *lines, newline=newline)
    if suffix == ".jsonl.gz":
        path.write_bytes(gzip.compress(path.read_bytes()))
    tasks = TaskReaderJsonl(config(path)).read("training")
    assert [(task.task_id, task.query) for task in tasks] == [("1", "ä"), ("2", "b")]
    assert [task.place for task in tasks] == [f"{path}:1", f"{path}:4"]


def test_each_split_has_its_file_and_its_limit(tmp_path: Path) -> None:
    training = write(tmp_path / "train.jsonl", *(json.dumps({"query": f"t{n}"}) for n in range(5)))
    validation = write(tmp_path / "valid.jsonl", *(json.dumps({"query": f"v{n}"}) for n in range(5)))
    both = read(training, validation, max_training_tasks=3, max_validation_tasks=2)
    assert [task.query for task in both.training] == ["t0", "t1", "t2"]
    assert [task.query for task in both.held_out] == ["v0", "v1"]
    assert len(read(training, validation).training) == 5


def test_what_comes_after_the_limit_is_not_looked_at(tmp_path: Path) -> None:
    path = write(tmp_path / "train.jsonl", '{"query": "a"}', "broken")
    assert len(read(path, max_training_tasks=1).training) == 1


def test_nothing_is_parsed_before_it_is_looked_at(tmp_path: Path) -> None:
    tasks = TaskReaderJsonl(config(write(tmp_path / "train.jsonl", '{"query": "a"}', "broken", '{"query": "c"}')))
    lazy = tasks.read("training")
    assert len(lazy) == 3
    assert (lazy[2].query, lazy[-3].query) == ("c", "a")
    assert [task.query for task in lazy[::2]] == ["a", "c"]
    with pytest.raises(TaskError, match=":2:1: broken JSON"):
        lazy[1]
    for beyond in (3, -4):
        with pytest.raises(IndexError):
            lazy[beyond]


def test_the_file_is_read_only_as_far_as_somebody_looks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = b"".join(b'{"query": "%d"}\n' % number for number in range(5000))
    packed = gzip.compress(content, compresslevel=1)
    path = tmp_path / "train.jsonl.gz"
    path.write_bytes(packed[:-100])
    monkeypatch.setattr(jsonl_module, "BATCH", 1000)
    lazy = TaskReaderJsonl(config(path)).read("training")
    assert lazy[0].query == "0"
    with pytest.raises(SourceError, match="cannot be read: "):
        len(lazy)
    with pytest.raises(SourceError, match="cannot be read: "):
        read(path, on_bad_record="skip")


@pytest.mark.fault(
    "Input files and settings", "a file of tasks changes during a run", "an error instead of other tasks"
)
def test_a_file_may_grow_or_be_replaced_while_it_is_used_but_not_change(tmp_path: Path) -> None:
    path = write(tmp_path / "train.jsonl", '{"query": "a"}', '{"query": "b"}', "")
    lazy = TaskReaderJsonl(config(path)).read("training")
    assert len(lazy) == 2
    with path.open("a") as file:
        file.write('{"query": "c"}')
    os.utime(path, ns=(1, 1))
    assert [task.query for task in lazy] == ["a", "b"]
    write(tmp_path / "new.jsonl", '{"query": "d"}').replace(path)
    assert [task.query for task in lazy] == ["a", "b"]
    lazy = TaskReaderJsonl(config(path)).read("training")
    write(path, '{"query": "e"}')
    os.utime(path, ns=(2, 2))
    with pytest.raises(SourceError, match="was changed while its tasks were in use"):
        lazy[0]


LINES = st.lists(
    st.sampled_from([b'{"n": 1}', b'{"text": "\xc3\xa4"}', b"", b"  ", b"\t\r", b'{"long": "' + b"x" * 40 + b'"}'])
)


@given(LINES, st.booleans(), st.booleans(), st.integers(1, 80))
def test_rows_and_places_are_those_of_reading_line_by_line(
    tmp_path_factory: pytest.TempPathFactory, lines: list[bytes], mark: bool, ends: bool, batch: int
) -> None:
    content = b"\xef\xbb\xbf" * mark + b"\n".join(lines) + b"\n" * ends
    folder = tmp_path_factory.mktemp("rows")
    for name, data in (("rows.jsonl", content), ("rows.jsonl.gz", gzip.compress(content, compresslevel=1))):
        path = folder / name
        path.write_bytes(data)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(jsonl_module, "BATCH", batch)
            rows = JsonlRows(path)
            found = [(rows.place(index), rows[index]) for index in range(len(rows))]
        assert found == list(read_jsonl(path))


def test_without_a_validation_file_there_are_no_validation_tasks(tmp_path: Path) -> None:
    path = write(tmp_path / "train.jsonl", '{"query": "a"}')
    assert TaskReaderJsonl(config(path)).read("validation") == []
    assert len(read(path).held_out) == 0


@pytest.mark.parametrize("suffix", [".json", ".csv", ".parquet"])
def test_files_of_other_formats_read_the_same(tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    rows = [{"question": f"{number} * 2?", "answer": f"#### {2 * number}"} for number in range(5)]
    path = tmp_path / f"train{suffix}"
    if suffix == ".json":
        path.write_text(json.dumps(rows))
    else:
        getattr(datasets.Dataset.from_list(rows), f"to_{suffix[1:]}")(path)
    plain = write(tmp_path / "train.jsonl", *map(json.dumps, rows))
    assert list(read(path).training) == list(read(plain).training)


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
    (
        ['{"query": "a"}', r'{"query": "a \ud83d b"}'],
        r":2: '\ud83d' is half of a surrogate pair and no character",
    ),
    ([r'{"query": "a", "notes": {"\udc00": 1}}'], r":1: '\udc00' is half of a surrogate pair"),
    (['{"query": "a\0"}'], ":1:13: broken JSON, Invalid control character"),
    (["", "  "], ": no tasks, the file is empty"),
    ([], ": no tasks, the file is empty"),
    (['{"query": "a"}', '{"answer": 1}'], ":2: no query"),
]


@pytest.mark.fault("Input files and settings", "a bad line in a file of tasks", "an error that names file and line")
@each_row(("lines", "message"), BAD_FILES)
def test_a_bad_file_is_an_error_that_names_the_line(tmp_path: Path, lines: list[str], message: str) -> None:
    path = write(tmp_path / "train.jsonl", *lines)
    assert f"{path}{message}" in message_of(path)


@pytest.mark.fault("Input files and settings", "a file of tasks is not there", "an error that names the nearest file")
def test_a_missing_file_gets_the_nearest_name(tmp_path: Path) -> None:
    write(tmp_path / "train_1000.jsonl", "")
    missing = tmp_path / "train_100.jsonl"
    assert message_of(missing) == f"{missing}: file not found. Did you mean 'train_1000.jsonl'?"


def test_a_missing_folder_and_a_folder_instead_of_a_file_are_named(tmp_path: Path) -> None:
    missing = tmp_path / "nowhere" / "train.jsonl"
    assert message_of(missing) == f"{missing}: file not found, there is no folder {missing.parent}"
    assert message_of(tmp_path) == f"{tmp_path}: is a folder, expected a JSON Lines file"


@pytest.mark.fault(
    "Input files and settings", "a compressed file of tasks is broken", "an error; no task is skipped in silence"
)
@pytest.mark.parametrize("content", [b"no gzip", gzip.compress(b'{"query": "a"}\n' * 100, mtime=0)[:40]])
@pytest.mark.parametrize("on_bad_record", ["error", "skip"])
def test_a_broken_archive_is_an_error_and_never_skipped(tmp_path: Path, content: bytes, on_bad_record: str) -> None:
    path = tmp_path / "train.jsonl.gz"
    path.write_bytes(content)
    with pytest.raises(SourceError) as error:
        read(path, on_bad_record=on_bad_record)
    assert f"{path}: cannot be read: " in str(error.value)


def test_no_training_file_at_all_is_an_error_that_names_the_key() -> None:
    with pytest.raises(TaskError, match=r"astune\.task_reader\.jsonl\.training\.file_path is not set"):
        read()


def test_both_halves_of_a_surrogate_pair_are_a_character(tmp_path: Path) -> None:
    path = write(tmp_path / "train.jsonl", r'{"query": "a \ud83d\ude00 b"}')
    assert read(path).training[0].query == "a \U0001f600 b"

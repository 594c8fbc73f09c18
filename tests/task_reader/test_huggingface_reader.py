import json
import os
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, ClassVar

import pytest

from astune.config.tasks import CsvConfig, HuggingFaceReaderConfig, JsonlFile, JsonlReaderConfig, TaskReaderConfig
from astune.errors import ConfigError, MissingDependency, TaskError
from astune.task_reader import Split, TaskReaderHuggingFace, TaskReaderJsonl
from astune.task_reader.huggingface import local_rows
from tests.rows import each_row

ROWS = [{"question": f"{n} * 2?", "answer": f"#### {2 * n}"} for n in range(10)]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A data set of two splits: parquet for training, JSON Lines for test."""
    from datasets import Dataset

    path = tmp_path / "arithmetic"
    (path / "data").mkdir(parents=True)
    Dataset.from_list(ROWS[:6]).to_parquet(path / "data" / "train-00000.parquet")
    Dataset.from_list(ROWS[6:]).to_parquet(path / "data" / "test-00000.parquet")
    return path


def reader(path: object, name: str | None = None, training: str = "train", **source: object) -> TaskReaderHuggingFace:
    huggingface = HuggingFaceReaderConfig(
        dataset_path=str(path), dataset_name=name, training_split=training, validation_split="test", **source
    )
    limits = {"max_training_tasks": 4, "max_validation_tasks": 3}
    return TaskReaderHuggingFace(TaskReaderConfig(type="huggingface", huggingface=huggingface, **limits))


def queries(reader: TaskReaderHuggingFace, split: Split = "training") -> list[str]:
    return [task.query.partition(" ")[0] for task in reader.read(split)]


def message_of(reader: TaskReaderHuggingFace, error: type[Exception] = TaskError) -> str:
    with pytest.raises(error) as raised:
        list(reader.read("training"))
    return str(raised.value)


def test_a_local_folder_has_its_splits(folder: Path) -> None:
    tasks = reader(folder).read("training")
    assert [task.query for task in tasks] == [row["question"] for row in ROWS[:6]]
    assert [task.answer for task in reader(folder).read("validation")] == ["#### 12", "#### 14", "#### 16", "#### 18"]
    assert tasks[-1].query == "5 * 2?" and tasks[2].place == f"{folder}[train] row 3"


def test_made_ids_are_the_same_as_those_of_the_jsonl_reader(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in ROWS))
    jsonl = JsonlReaderConfig(training=JsonlFile(file_path=str(path)))
    assert list(reader(path).read("training")) == list(TaskReaderJsonl(TaskReaderConfig(jsonl=jsonl)).read("training"))


def test_a_split_may_be_a_slice(folder: Path) -> None:
    assert queries(reader(folder, training="train[1:3]")) == ["1", "2"]
    assert queries(reader(folder, training="test[50%:]+train[:1]")) == ["8", "9", "0"]


def test_a_folder_that_save_to_disk_wrote_is_read_where_it_lies(tmp_path: Path) -> None:
    from datasets import Dataset, DatasetDict

    rows = Dataset.from_list(ROWS)
    rows.save_to_disk(tmp_path / "one")
    DatasetDict(train=rows.select(range(6)), test=rows.select(range(6, 10))).save_to_disk(tmp_path / "two")
    assert queries(reader(tmp_path / "one", training="train[:20%]")) == ["0", "1"]
    assert queries(reader(tmp_path / "two", training="test[-2:]+train[:1]")) == ["8", "9", "0"]
    assert queries(reader(tmp_path / "two", training="train[:0]")) == []
    assert queries(reader(tmp_path / "two", streaming=True)) == ["0", "1", "2", "3"]
    assert "no split 'tset'" in message_of(reader(tmp_path / "two", training="tset"))
    assert "split 'train[' cannot be read" in message_of(reader(tmp_path / "two", training="train["))
    assert not (tmp_path / "cache").exists()


def test_a_stream_gives_the_first_rows_and_leaves_no_copy(folder: Path) -> None:
    assert queries(reader(folder, streaming=True)) == ["0", "1", "2", "3"]
    assert queries(reader(folder, streaming=True), "validation") == ["6", "7", "8"]
    assert not [path for path in (folder.parent / "cache").rglob("*") if path.suffix == ".arrow"]


def test_a_stream_has_an_end_and_no_slices(folder: Path) -> None:
    source = HuggingFaceReaderConfig(dataset_path=str(folder), validation_split="test", streaming=True)
    endless = TaskReaderHuggingFace(TaskReaderConfig(huggingface=source, max_training_tasks=1))
    with pytest.raises(ConfigError, match=r"streaming needs astune\.task_reader\.max_validation_tasks"):
        endless.read("validation")
    for training in ("train[:90%]", "train+test"):
        assert (
            f"astune.task_reader.huggingface.training_split: expected the name of one split, found {training!r}"
        ) in message_of(reader(folder, training=training, streaming=True), ConfigError)
    assert "no split 'trian'; there are 'train', 'test'. Did you mean 'train'?" in message_of(
        reader(folder, training="trian", streaming=True)
    )


@pytest.mark.parametrize("streaming", [False, True])
def test_a_broken_file_is_named(folder: Path, streaming: bool) -> None:
    broken = folder / "data" / "train-0.parquet"  # the first of its split
    broken.write_bytes((folder / "data" / "test-00000.parquet").read_bytes()[:-20])
    assert f"{broken}: cannot be read: " in message_of(reader(folder, streaming=streaming))
    for name, text in {"a.json": '{"a": ', "b.csv": "a,b\n1,2\n1,2,3,4\n", "c.arrow": "no", "d.parquet": ""}.items():
        (folder / name).write_text(text)
        assert f"{folder / name}: cannot be read: " in message_of(reader(folder / name, streaming=streaming))


def test_without_a_validation_split_there_are_no_validation_tasks(folder: Path) -> None:
    source = HuggingFaceReaderConfig(dataset_path=str(folder))
    assert TaskReaderHuggingFace(TaskReaderConfig(huggingface=source)).read("validation") == []


@pytest.mark.parametrize("suffix", [".json", ".csv", ".parquet", ".arrow"])
def test_a_file_of_any_format_gives_rows_with_their_places(tmp_path: Path, suffix: str) -> None:
    from datasets import Dataset

    path = tmp_path / f"rows{suffix}"
    if suffix == ".json":
        path.write_text(json.dumps(ROWS))
    elif suffix == ".arrow":
        Dataset.from_list(ROWS).save_to_disk(tmp_path / "saved")
        next((tmp_path / "saved").glob("*.arrow")).rename(path)
    else:
        getattr(Dataset.from_list(ROWS), f"to_{suffix[1:]}")(path)
    rows = local_rows(path, CsvConfig())
    assert [rows[index] for index in range(len(rows))] == ROWS
    assert rows.place(2) == f"{path} row 3"


def test_a_file_that_is_not_there_gets_the_nearest_name(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("a\n1\n")
    with pytest.raises(TaskError, match=r"row\.csv does not exist\. Did you mean 'rows\.csv'\?"):
        local_rows(tmp_path / "row.csv", CsvConfig())


class Hub(BaseHTTPRequestHandler):
    """A hub that has nothing, and remembers what it was asked for."""

    asked: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        self.asked.append(self.path)
        self.send_error(404)

    do_HEAD = do_GET

    def log_message(self, *_: object) -> None: ...


def test_the_revision_is_asked_for_at_the_hub(tmp_path: Path) -> None:
    with HTTPServer(("127.0.0.1", 0), Hub) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        out = read_from_hub(tmp_path, "revision='a1b2c3'", HF_ENDPOINT=f"http://127.0.0.1:{server.server_port}")
        server.shutdown()
    assert any("/datasets/openai/gsm8k/resolve/a1b2c3/" in path for path in Hub.asked), (Hub.asked, out)
    assert out.startswith("TaskError openai/gsm8k: ")


def test_an_unknown_split_lists_what_there_is(folder: Path) -> None:
    assert message_of(reader(folder, training="trian[:10]")) == (
        f"{folder}: no split 'trian'; there are 'train', 'test'. Did you mean 'train'?"
    )
    assert "split 'train[:' cannot be read" in message_of(reader(folder, training="train[:"))


def test_a_split_without_rows_is_an_error(tmp_path: Path) -> None:
    from datasets import Dataset

    path = tmp_path / "rows.parquet"
    Dataset.from_dict({"query": ["a"]}).select([]).to_parquet(path)
    assert f"{path}: split 'train' cannot be read: " in message_of(reader(path))


def test_an_unknown_subset_lists_what_there_is(folder: Path) -> None:
    (folder / "README.md").write_text(
        "---\nconfigs:\n"
        "- config_name: main\n  data_files: data/train-*.parquet\n"
        "- config_name: socratic\n  data_files: data/test-*.parquet\n---\n"
    )
    text = message_of(reader(folder, name="mian"))
    assert "'main', 'socratic'" in text and "Did you mean 'main'?" in text
    assert "['main', 'socratic']" in message_of(reader(folder))
    assert len(reader(folder, name="socratic").read("training")) == 4


def test_a_bad_row_is_named_with_split_and_row(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"text": "a"}\n{"text": "b"}\n')
    assert f"{path}[train] row 1: no query: the row has 'text'" in message_of(reader(path))


def test_a_missing_local_path_gets_the_nearest_name(folder: Path) -> None:
    assert message_of(reader(folder.parent / "arithmetik")) == (
        f"astune.task_reader.huggingface.dataset_path: {folder.parent / 'arithmetik'} does not exist. "
        "Did you mean 'arithmetic'?"
    )


def test_an_empty_folder_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert f"{tmp_path / 'empty'}: " in message_of(reader(tmp_path / "empty"))


def test_no_path_at_all_is_an_error_that_names_the_key() -> None:
    with pytest.raises(TaskError, match=r"astune\.task_reader\.huggingface\.dataset_path is not set"):
        TaskReaderHuggingFace(TaskReaderConfig(type="huggingface")).read("training")


def read_from_hub(home: Path, source: str, **environment: str) -> str:
    code = (
        "from astune.config.tasks import *\n"
        "from astune.task_reader import make_reader\n"
        f"source = HuggingFaceReaderConfig(dataset_path='openai/gsm8k', {source})\n"
        "try:\n"
        "    make_reader(TaskReaderConfig(type='huggingface', huggingface=source)).read('training')\n"
        "except Exception as error:\n"
        "    print(type(error).__name__, error)\n"
    )
    environment = {**os.environ, "HF_HOME": str(home), **environment}
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment).stdout


def test_without_the_hub_the_error_says_how_to_use_a_local_copy(tmp_path: Path) -> None:
    out = read_from_hub(tmp_path, "dataset_name='main'", HF_HUB_OFFLINE="1")
    assert out.startswith("TaskError openai/gsm8k: the Hugging Face hub cannot be reached")
    assert "set astune.task_reader.huggingface.dataset_path to a local copy" in out


def test_without_the_package_the_error_says_what_to_install(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(MissingDependency, match=r'pip install "astune\[huggingface\]"'):
        reader(folder).read("training")


def test_importing_the_readers_loads_no_datasets() -> None:
    code = "import astune.task_reader, sys; print('datasets' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.strip() == "False"


@each_row(
    ("name", "text", "encoding", "config"),
    [
        ("a.csv", "query,answer\nWie groß?,2\n", "utf-8-sig", {}),
        ("a.csv", "query;answer\nWie groß?;2\n", "utf-8", {"separator": "semicolon"}),
        ("a.csv", "query|answer\nWie groß?|2\n", "utf-8", {"separator": "pipe"}),
        ("a.tsv", "query\tanswer\nWie groß?\t2\n", "utf-8", {}),
        ("a.csv", "query\tanswer\nWie groß?\t2\n", "utf-16", {"separator": "tab", "encoding": "utf-16"}),
        ("a.csv", "query,answer\nWie groß?,2\n", "latin-1", {"encoding": "latin-1"}),
    ],
)
def test_a_csv_is_read_as_it_is_written(
    tmp_path: Path, name: str, text: str, encoding: str, config: dict[str, Any]
) -> None:
    (tmp_path / name).write_bytes(text.encode(encoding))
    rows = local_rows(tmp_path / name, CsvConfig(**config))
    assert [rows[index] for index in range(len(rows))] == [{"query": "Wie groß?", "answer": 2}]


@pytest.mark.fault(
    "Input files and settings",
    "A CSV file has another separator or encoding than expected",
    "An error that names the line and the key to set",
)
@each_row(
    ("name", "data", "config", "message"),
    [
        ("a.csv", b"query;answer\nOne, two?;2\n", {}, "a.csv:1: one column, 'query;answer', which looks separated by "
         "';': set astune.task_reader.csv.separator to semicolon"),
        ("a.tsv", b"query,answer\nOne?,2\n", {}, "set astune.task_reader.csv.separator to comma"),
        ("a.csv", b"query|answer\nOne?|2\n", {"separator": "tab"}, "set astune.task_reader.csv.separator to pipe"),
        ("a.csv", "query,answer\nx,2\n".encode("utf-16"), {}, "written in utf-16: set astune.task_reader.csv."),
        ("a.csv", "query,answer\nx,2\n".encode("utf-32"), {}, "written in utf-32: set astune.task_reader.csv."),
        ("a.csv", "query,answer\nx,2\n".encode("utf-16-le"), {}, "a.csv:1: a NUL character; is it in another"),
        ("a.csv", "query,answer\nä,2\n".encode("latin-1"), {}, "set astune.task_reader.csv.encoding to what the"),
        ("a.csv", b"query,answer\na\0b,2\n", {}, "a.csv:2: a NUL character"),
    ],
)  # fmt: skip
def test_a_csv_that_is_written_otherwise_says_what_to_set(
    tmp_path: Path, name: str, data: bytes, config: dict[str, Any], message: str
) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(TaskError) as raised:
        local_rows(tmp_path / name, CsvConfig(**config))
    assert message in str(raised.value)
    assert message in message_of(
        TaskReaderHuggingFace(
            TaskReaderConfig(
                type="huggingface",
                huggingface=HuggingFaceReaderConfig(dataset_path=str(tmp_path / name)),
                csv=CsvConfig(**config),
            )
        )
    )


def test_an_encoding_that_there_is_not_gets_the_nearest_name(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("query\nx\n")
    with pytest.raises(ConfigError, match=r"csv\.encoding: there is no 'latin-I'\. Did you mean 'latin-1'\?"):
        local_rows(tmp_path / "a.csv", CsvConfig(encoding="latin-I"))


CALLS: list[dict[str, Any]] = [
    {"name": "add", "arguments": {"a": 1, "b": 2}},
    {"name": "find", "arguments": {"city": "Rome", "options": [{"x": 1}, {"y": None}]}},
]
WITH_CALLS = [
    {
        "query": "Go on.",
        "expected_tools": [call],
        "messages": [
            {"role": "user", "content": "Begin."},
            {"role": "assistant", "tool_calls": [{"id": "1", "type": "function", "function": call}]},
            {"role": "tool", "tool_call_id": "1", "content": "done"},
        ],
        "note": '{"kept": null}',
    }
    for call in CALLS
]


@pytest.mark.fault(
    "Input files and settings",
    "Arrow fills in null where objects have different keys",
    "read as the keys that are not there",
)
@each_row("form", ["parquet", "arrow", "folder", "json", "stream"])
def test_keys_that_arrow_filled_in_are_not_there(tmp_path: Path, form: str) -> None:
    from datasets import Dataset

    path, options = tmp_path / f"tasks.{form}", {}
    if form in ("arrow", "folder"):
        Dataset.from_list(WITH_CALLS).save_to_disk(path)
        path = next(path.glob("*.arrow")) if form == "arrow" else path
    elif form == "parquet":
        Dataset.from_list(WITH_CALLS).to_parquet(path)
    else:
        path = tmp_path / "tasks.json"
        path.write_text("\n".join(map(json.dumps, WITH_CALLS)))
        options = {"streaming": True} if form == "stream" else {}
    config = HuggingFaceReaderConfig(dataset_path=str(path), **options)
    tasks = TaskReaderHuggingFace(TaskReaderConfig(type="huggingface", huggingface=config, max_training_tasks=2)).read(
        "training"
    )
    bare = [CALLS[0], {"name": "find", "arguments": {"city": "Rome", "options": [{"x": 1}, {}]}}]
    for task, call in zip(tasks, bare, strict=True):
        assert task.metadata["expected_tools"] == [call]
        assert task.messages[1]["tool_calls"][0]["function"] == call
        assert set(task.messages[2]) == {"role", "tool_call_id", "content"}
        assert task.metadata["note"] == '{"kept": null}'

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from astune.config.tasks import HuggingFaceReaderConfig, JsonlFile, JsonlReaderConfig, TaskReaderConfig
from astune.errors import MissingDependency, TaskError
from astune.task_reader import TaskReaderHuggingFace, TaskReaderJsonl

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


def reader(path: object, name: str | None = None, training: str = "train", **settings: object) -> TaskReaderHuggingFace:
    source = HuggingFaceReaderConfig(dataset_path=str(path), dataset_name=name, training_split=training)
    return TaskReaderHuggingFace(TaskReaderConfig(type="huggingface", huggingface=source, **settings))


def message_of(reader: TaskReaderHuggingFace) -> str:
    with pytest.raises(TaskError) as error:
        reader.read("training")
    return str(error.value)


def test_a_local_folder_has_its_splits(folder: Path) -> None:
    source = HuggingFaceReaderConfig(dataset_path=str(folder), validation_split="test")
    both = TaskReaderHuggingFace(TaskReaderConfig(huggingface=source, max_validation_tasks=2))
    assert [task.query for task in both.read("training")] == [row["question"] for row in ROWS[:6]]
    assert [task.answer for task in both.read("validation")] == ["#### 12", "#### 14"]


@pytest.mark.parametrize("suffix", [".jsonl", ".json", ".parquet", ".csv"])
def test_a_local_file_is_a_training_split(tmp_path: Path, suffix: str) -> None:
    from datasets import Dataset

    path = tmp_path / f"rows{suffix}"
    if suffix in (".jsonl", ".json"):
        path.write_text("\n".join(json.dumps(row) for row in ROWS))
    else:
        getattr(Dataset.from_list(ROWS), f"to_{suffix[1:]}")(path)
    assert [dict(task.metadata) for task in reader(path).read("training")] == ROWS


def test_made_ids_are_the_same_as_those_of_the_jsonl_reader(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in ROWS))
    jsonl = JsonlReaderConfig(training=JsonlFile(file_path=str(path)))
    assert reader(path).read("training") == TaskReaderJsonl(TaskReaderConfig(jsonl=jsonl)).read("training")


def test_a_split_may_be_a_slice(folder: Path) -> None:
    assert [task.query for task in reader(folder, training="train[1:3]").read("training")] == ["1 * 2?", "2 * 2?"]
    assert len(reader(folder, training="train+test").read("training")) == 10


def test_without_a_validation_split_there_are_no_validation_tasks(folder: Path) -> None:
    assert reader(folder).read("validation") == []


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
    assert f"{path}[train] row 0: no query: the row has 'text'" in message_of(reader(path))


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


def test_without_the_hub_the_error_says_how_to_use_a_local_copy(tmp_path: Path) -> None:
    code = (
        "from astune.config.schema import *\n"
        "from astune.task_reader import make_reader\n"
        "source = HuggingFaceReaderConfig(dataset_path='openai/gsm8k', dataset_name='main')\n"
        "try:\n"
        "    make_reader(TaskReaderConfig(type='huggingface', huggingface=source)).read('training')\n"
        "except Exception as error:\n"
        "    print(type(error).__name__, error)\n"
    )
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path)}
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert out.stdout.startswith("TaskError openai/gsm8k: the Hugging Face hub cannot be reached")
    assert "set astune.task_reader.huggingface.dataset_path to a local copy" in out.stdout


def test_without_the_package_the_error_says_what_to_install(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(MissingDependency, match=r'pip install "astune\[huggingface\]"'):
        reader(folder).read("training")


def test_importing_the_readers_loads_no_datasets() -> None:
    code = "import astune.task_reader, sys; print('datasets' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.strip() == "False"

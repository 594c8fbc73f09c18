"""The same conversation gives the same tasks, pairs, examples and rewards, wherever it was recorded."""

from __future__ import annotations

import json
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from astune.cli import main
from astune.config.schema import AstuneConfig
from astune.context_tracker.model_dir import load_chat_format, resolve_model_dir
from astune.examples.read import read_examples
from astune.task_reader import make_reader
from tests.traces import story

pytestmark = pytest.mark.skipif(metadata.version("agentscope") < "2", reason="the agent service is of AgentScope 2.x")
SOURCES = {
    "chat log": "chats.jsonl",
    "spans": "spans.jsonl",
    "agent service": "service.db",
    "online store": "online.db",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("story")
    story.write_chat_log(folder / "chats.jsonl")
    story.write_online_store(folder / "online.db")
    story.write_with_agentscope(folder / "spans.jsonl", folder / "service.db")
    return folder


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("source", SOURCES)
def test_a_conversation_becomes_the_same_data_from_each_source(source: str, folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "traced.jsonl"
    assert main(["data", "from-traces", str(folder / SOURCES[source]), "--out", str(out)]) == 0
    tasks = {row["query"]: row for row in rows_of(out)}
    assert {query: row.get("answer") for query, row in tasks.items()} == {
        "What is 4*3? Write to <email-1>": "It is 12.",
        "And 4*4?": "It is 16.",
        "And 4*5?": None,
    }
    assert all(row["lineage"]["trace"]["source"] == source for row in tasks.values())
    assert [one["role"] for one in tasks["And 4*4?"]["messages"]] == ["user", "assistant", "tool", "assistant", "user"]
    (pair,) = rows_of(tmp_path / "traced.pairs.jsonl")
    assert (pair["chosen"]["content"], pair["rejected"]["content"]) == ("It is 16.", "It is 17.")
    liked, corrected = rows_of(tmp_path / "traced.examples.jsonl")
    learned = [message for message in liked["messages"] if message["role"] == "assistant"]
    assert [message.get("weight") for message in learned] == [None, None]
    assert learned[0]["tool_calls"][0]["function"]["name"] == "calculate"
    assert next(one["content"] for one in liked["messages"] if one["role"] == "tool") == "12"
    weights = [message.get("weight") for message in corrected["messages"] if message["role"] == "assistant"]
    assert weights == [0, 0, None] and corrected["messages"][-1]["content"] == "It is 16."
    rewards = rows_of(tmp_path / "traced.rewards.jsonl")
    assert [(row["answer"]["content"], row["good"]) for row in rewards] == [
        ("It is 12.", True),
        ("It is 17.", False),
        ("It is 21.", False),
    ]
    written = "".join(file.read_text() for file in tmp_path.iterdir())
    assert "ana@x.org" not in written and '"email"' in written
    extra = {"spans": ["evaluation"], "agent service": ["nobody asked"]}.get(source, [])
    assert sorted(row["reason"] for row in rows_of(tmp_path / "traced.dropped.jsonl")) == [*extra, "remark"]
    for method, name, count in (("sft", "examples", 2), ("dpo", "pairs", 1), ("kto", "rewards", 3)):
        said = {"algorithm": {"method": method}, "trainer": {"examples": str(tmp_path / f"traced.{name}.jsonl")}}
        config = AstuneConfig.model_validate(said)
        chat_format = load_chat_format(config.model, resolve_model_dir("tiny", weights=False))
        assert len({example.place for example in read_examples(config, chat_format)}) == count
    config = AstuneConfig.model_validate({"task_reader": {"jsonl": {"training": {"file_path": str(out)}}}})
    assert {task.query: task.answer for task in make_reader(config.task_reader).read("training")} == {
        query: row.get("answer") for query, row in tasks.items()
    }


def test_the_online_service_exports_the_same_tasks(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "tasks.jsonl"
    store = f"sqlite:///{folder}/online.db"
    assert main(["online", "export", "--store", store, "--as", "tasks", "--rated", "--out", str(out)]) == 0
    assert [row.get("answer") for row in rows_of(out)] == ["It is 16.", "It is 12.", None]

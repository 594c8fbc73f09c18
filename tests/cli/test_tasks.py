"""`astune tasks preview`: what the reader makes of the data, and what a run would stop at."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from datasets import Dataset

from astune.cli import main
from astune.support.file_kinds import Kind, kind_of

Printed = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(reader: dict[str, Any], **files: list[dict[str, Any]]) -> None:
    Path("job.yaml").write_text(yaml.safe_dump({"astune": {"task_reader": reader}}))
    for name, rows in files.items():
        Path(f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def rows(start: int, count: int) -> list[dict[str, Any]]:
    return [{"id": str(n), "query": f"What is {n} plus 1?", "answer": str(n + 1)} for n in range(start, start + count)]


JSONL = {"jsonl": {"training": {"file_path": "train.jsonl"}, "validation": {"file_path": "held.jsonl"}}}


def test_it_shows_counts_tasks_and_lengths(capsys: Printed) -> None:
    write({**JSONL, "filter": "task_id != '2'"}, train=rows(0, 12), held=rows(100, 3))
    assert main(["tasks", "preview", "--conf", "job.yaml", "--show", "1"]) == 0
    printed = capsys.readouterr().out
    assert "training: 11 tasks, 1 left out by the filter" in printed and "validation: 3 tasks" in printed
    assert "0  train.jsonl:1" in printed and "query: What is 0 plus 1?" in printed and "answer: 1" in printed
    assert "query: What is 1 plus 1?" not in printed, "one of each split is shown"
    assert "length of the question in tokens (all counted)" in printed
    assert printed.endswith("no problems found\n")


def test_it_lists_all_that_is_wrong_and_says_what_a_run_would_stop_at(capsys: Printed) -> None:
    bad = [{"id": "b", "qery": "x"}, {"id": "3", "query": "Again?"}, {"id": "c", "query": " "}]
    write(JSONL, train=[*rows(0, 5), *bad], held=rows(4, 2))
    assert main(["tasks", "preview", "--conf", "job.yaml", "--show", "0"]) == 1
    printed = capsys.readouterr().out
    assert "training: 6 tasks, 2 bad records" in printed
    assert "train.jsonl:6: no query" in printed and "train.jsonl:8: the query" in printed
    assert "train.jsonl:7: task id '3' is already used at train.jsonl:4; it is called '3-2' here" in printed
    assert "held.jsonl:1: 1 of 2 held-out tasks are trained on too, this one as train.jsonl:5" in printed
    assert printed.splitlines()[-1].startswith("a run would stop: train.jsonl:6: no query")


def test_what_the_configuration_forgives_is_told_and_no_failure(capsys: Printed) -> None:
    write({**JSONL, "on_bad_record": "skip", "on_overlap": "warn"}, train=[*rows(0, 5), {"id": "b"}], held=rows(4, 2))
    assert main(["tasks", "preview", "--conf", "job.yaml"]) == 0
    printed = capsys.readouterr().out
    assert "1 bad record" in printed and "trained on too" in printed and "would stop" not in printed


def test_json_has_every_problem(capsys: Printed) -> None:
    write(JSONL, train=[*rows(0, 2), *[{"id": f"b{n}"} for n in range(9)]], held=rows(7, 1))
    assert main(["tasks", "preview", "--conf", "job.yaml", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert kind_of(found) is Kind.PREVIEW
    assert len(found["training"]["skipped"]) == 9 and found["training"]["tasks"] == 2
    assert found["training"]["first"][0]["query"] == "What is 0 plus 1?"
    assert found["validation"]["lengths"]["min"] == found["validation"]["lengths"]["max"] > 0
    assert "train.jsonl:3" in found["a_run_would_stop"]


def test_where_nothing_can_be_read_the_error_is_that_of_a_run(capsys: Printed) -> None:
    write({"jsonl": {"training": {"file_path": "trian.jsonl"}}}, train=rows(0, 2))
    assert main(["tasks", "preview", "--conf", "job.yaml"]) == 2
    assert "Did you mean 'train.jsonl'?" in capsys.readouterr().err


def test_without_a_tokenizer_at_hand_lengths_are_characters(capsys: Printed) -> None:
    write(JSONL, train=rows(0, 2), held=rows(7, 1))
    assert main(["tasks", "preview", "--conf", "job.yaml", "astune.model.path=owner/name"]) == 0
    assert "length of the question in characters (all counted): 17 to 17" in capsys.readouterr().out


def test_a_task_of_an_environment_is_shown_as_the_agent_meets_it(capsys: Printed) -> None:
    service = {"serve": "countdown", "options": {"tasks": 10, "numbers": 3}, "validation_split": "validation"}
    write({"type": "env_service", "env_service": service})
    assert main(["tasks", "preview", "--conf", "job.yaml", "--show", "1"]) == 0
    printed = capsys.readouterr().out
    assert "training: 10 tasks" in printed
    assert "user: Numbers: " in printed and "environment: countdown, tools: combine, give_up" in printed


def test_nulls_that_are_left_out_are_counted_by_their_place(capsys: Printed) -> None:
    calls = [{"name": "add", "arguments": {"a": 1}}, {"name": "find", "arguments": {"city": "Rome"}}]
    made = [{**row, "calls": [call]} for row, call in zip(rows(0, 2), calls, strict=True)]
    write({"jsonl": {"training": {"file_path": "train.parquet"}, "validation": {"file_path": "held.parquet"}}})
    Dataset.from_list(made).to_parquet("train.parquet")
    Dataset.from_list(rows(2, 1)).to_parquet("held.parquet")
    assert main(["tasks", "preview", "--conf", "job.yaml", "--show", "0"]) == 0
    printed = capsys.readouterr().out
    assert printed.count("nulls inside objects that are left out") == 1
    assert ": calls[].arguments.city 1, calls[].arguments.a 1\n" in printed
    assert main(["tasks", "preview", "--conf", "job.yaml", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["training"]["nulls_left_out"] == {"calls[].arguments.city": 1, "calls[].arguments.a": 1}
    assert found["validation"]["nulls_left_out"] == {}

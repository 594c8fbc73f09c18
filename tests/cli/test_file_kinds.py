"""A file or folder in the place of another is told as what it is, with the place that it belongs in."""

import json
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from astune.cli import main
from astune.config.schema import AstuneConfig, Config
from astune.context_tracker.prompt.chat_format import ChatFormat
from astune.errors import AstuneError
from astune.examples.read import read_examples
from astune.monitor.episodes import EpisodeLog
from astune.monitor.metrics import MetricsLog
from astune.monitor.run_dir import RunDir
from astune.support.file_kinds import Kind, kind_of, kind_of_path
from astune.support.resources import tiny_model_dir
from astune.types import Episode, StopReason, Task
from tests.recordings.test_recording import BEFORE
from tests.rows import each_row

ASKED, SAID = {"role": "user", "content": "6 * 12?"}, {"role": "assistant", "content": "72"}
ROWS: dict[Kind, dict[str, Any]] = {
    Kind.TASKS: {"id": 1, "query": "6 * 12?", "answer": "72", "kind": "product"},
    Kind.CONVERSATIONS: {"messages": [ASKED, SAID], "tools": []},
    Kind.COMPARED: {"messages": [ASKED], "chosen": SAID, "rejected": SAID},
    Kind.JUDGED: {"messages": [ASKED], "answer": SAID, "good": True},
    Kind.SCORED: {"query": "6 * 12?", "answer": "71", "score": 0},
    Kind.LABELLED: {"question": "6 * 12?", "answer": "72", "response": "71", "label": False},
}
"""Kinds whose files people write; those that ASTune writes are written by it."""
EPISODE = Episode("e", Task("t", "6 * 12?"), (), (), StopReason.COMPLETED)
FOLDERS = (Kind.RUN, Kind.CHECKPOINT, Kind.PLAYED)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[Kind, Path]:
    """A file or folder of each kind."""
    folder = tmp_path_factory.mktemp("kinds")
    found = {}
    for kind, row in ROWS.items():
        found[kind] = folder / f"{kind.name.lower()}.jsonl"
        found[kind].write_text(f"{json.dumps(row)}\n" * 5)
    run = RunDir(folder / "run")
    run.path.mkdir()
    run.save_config(Config())
    metrics = MetricsLog(run)
    metrics.log(1, {"reward/mean": 0.5})
    metrics.close()
    with EpisodeLog(run) as log:
        log.write(EPISODE, step=1, phase="train")
    with run.save_checkpoint(1) as path:
        (path / "weights").write_text("")
    shutil.copyfile(BEFORE, folder / "recording.json")
    played = folder / "played"
    played.mkdir()
    (played / "config.yaml").write_text("astune: {}\n")
    (played / "evaluation.json").write_text(json.dumps({"candidate": {}, "tasks": {}, "attempts": {}}, indent=1))
    (folder / "rubric.yaml").write_text("# a rubric\nschema: astune.rubric/1\nname: r\ncriteria: []\n")
    (folder / "trinity.yaml").write_text("mode: both\nbuffer:\n  x: 1\nexplorer: {}\n")
    (folder / "verl.yaml").write_text("actor_rollout_ref:\n  x: 1\ntrainer: {}\n")
    (folder / "page.html").write_text("<!DOCTYPE html>\n<html>\n")
    (folder / "run.log").write_text("2026-11-25 18:27:10.440 | INFO     | run | astune.command:open:0 - astune works\n")
    (folder / "table.parquet").write_bytes(b"PAR1\x15\x04\n")
    sqlite3.connect(folder / "store.db").execute("CREATE TABLE t (c)").connection.commit()
    return found | {
        Kind.RUN: run.path,
        Kind.CONFIG: run.config_path,
        Kind.METRICS: run.metrics_path,
        Kind.EPISODES: run.episodes_dir / "train.jsonl",
        Kind.CHECKPOINT: run.checkpoint_path(1),
        Kind.PLAYED: played,
        Kind.EVALUATION: played / "evaluation.json",
        Kind.RECORDING: folder / "recording.json",
        Kind.RUBRIC: folder / "rubric.yaml",
        Kind.TRINITY: folder / "trinity.yaml",
        Kind.VERL: folder / "verl.yaml",
        Kind.PAGE: folder / "page.html",
        Kind.LOG: folder / "run.log",
        Kind.TABLE: folder / "table.parquet",
        Kind.DATABASE: folder / "store.db",
    }


PLACES: dict[str, tuple[list[str], tuple[Kind, ...]]] = {
    "tasks": (
        ["tasks", "preview", "--conf", "conf.yaml", "astune.task_reader.jsonl.training.file_path=FILE"],
        (Kind.TASKS, Kind.LABELLED, Kind.TABLE),
    ),
    "data set": (
        [
            "tasks",
            "preview",
            "--conf",
            "conf.yaml",
            "astune.task_reader={type: huggingface, huggingface: {dataset_path: FILE}}",
        ],
        (Kind.TASKS, Kind.LABELLED, Kind.TABLE, *FOLDERS),
    ),
    "replay": (["replay", "FILE"], (Kind.EPISODES, Kind.RECORDING, Kind.RUN, Kind.PLAYED)),
    "rescore": (["rescore", "FILE", "--judge", "m"], (Kind.EPISODES, Kind.RECORDING, Kind.RUN, Kind.PLAYED)),
    "diff": (["diff", "FILE", "FILE"], (Kind.EPISODES, Kind.RECORDING, Kind.RUN, Kind.PLAYED)),
    "judge-report": (["judge-report", "--conf", "conf.yaml", "--examples", "FILE"], (Kind.LABELLED,)),
    "rubrics": (["rubrics", "--conf", "conf.yaml", "astune.rubrics.examples=FILE"], (Kind.SCORED,)),
    "rubric": (["rubrics", "show", "FILE"], (Kind.RUBRIC, *FOLDERS)),
    "conf": (["config", "show", "--conf", "FILE"], (Kind.CONFIG, *FOLDERS)),
    "view": (["view", "FILE"], (Kind.RUN, Kind.PLAYED)),
    "report": (["report", "FILE"], (Kind.RUN, Kind.PLAYED)),
    "export": (["export", "--run", "FILE", "--out", "out"], (Kind.RUN, Kind.CHECKPOINT)),
    "checkpoint": (["export", "--checkpoint", "FILE", "--out", "out"], (Kind.RUN, Kind.CHECKPOINT)),
    "eval": (["eval", "--conf", "conf.yaml", "--checkpoint", "FILE"], (Kind.RUN, Kind.CHECKPOINT)),
    "compared": (["eval", "--compare", "FILE", "FILE"], (Kind.PLAYED,)),
}
"""Commands that read a file, and the kinds that they take or say something of their own about."""


@pytest.mark.fault(
    "Input files and settings",
    "a file or folder of another kind is given, to a command or a setting",
    "an error that says what it is and where it belongs",
)
@each_row("place", PLACES)
def test_a_file_in_the_wrong_place_is_told_as_what_it_is(
    files: dict[Kind, Path], place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "conf.yaml").write_text(
        "astune: {rollout: {agentscope_learn_protocol: 'a.py:W'}, task_judge: {judge_protocol: LlmAsJudge, llm: "
        "{models: [{base_url: 'http://127.0.0.1:1/v1', model: m}]}}, task_reader: {jsonl: {training: {file_path: t}}}}"
    )
    arguments, right = PLACES[place]
    for kind, path in files.items():
        if kind not in right:
            assert main([text.replace("FILE", str(path)) for text in arguments]) == 2
            assert f"and this is {kind}" in capsys.readouterr().err.replace("\n", " ")


@pytest.mark.parametrize(
    ("method", "right"), [("sft", Kind.CONVERSATIONS), ("dpo", Kind.COMPARED), ("kto", Kind.JUDGED)]
)
def test_examples_of_another_method_and_other_files_are_no_examples(
    files: dict[Kind, Path], method: str, right: Kind
) -> None:
    chat_format = ChatFormat.load(tiny_model_dir())
    for kind, path in files.items():
        config = AstuneConfig.model_validate({"algorithm": {"method": method}, "trainer": {"examples": str(path)}})
        if kind not in (right, Kind.EPISODES):
            with pytest.raises(AstuneError, match="and this is ") as caught:
                read_examples(config, chat_format)
            assert str(kind) in str(caught.value)


def test_every_kind_is_known_and_the_users_own_files_are_not(files: dict[Kind, Path], tmp_path: Path) -> None:
    assert {kind: kind_of_path(path) for kind, path in files.items()} == {kind: kind for kind in files}
    own = tmp_path / "own.yaml"
    own.write_text("# answers\nbuttons: [a]\nname: x\n")
    assert kind_of_path(own) is kind_of_path(tmp_path / "missing") is kind_of_path(tmp_path) is None
    few_shot = {"messages": [ASKED, SAID, ASKED]}
    own_rows = ({"prompt": "6 * 12?"}, {"question": "?", "label": 3}, {"step": 1, "query": "?"}, few_shot)
    assert [kind_of(row) for row in own_rows] == [None, None, Kind.TASKS, None]

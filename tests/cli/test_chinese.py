"""`--help` and the first messages in Chinese: every text has its words, and the locale decides."""

from __future__ import annotations

import argparse
import contextlib
import json
import re
from pathlib import Path

import pytest
from pydantic_core import core_schema

import astune
from astune.cli import main
from astune.cli.chinese import HEADINGS, WORDS, commands_of, list_helped
from astune.cli.parse import make_parser, parse
from astune.support.chinese import MESSAGES, localize


def english(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    monkeypatch.setenv("LC_ALL", "C")
    commands = list(commands_of(make_parser("astune")))
    texts = {action.help for command in commands for action in list_helped(command)}
    texts |= {command.description for command in commands if command.description}
    return {str(text) for text in texts | {group.title for command in commands for group in command._action_groups}}


def test_each_text_of_the_help_has_its_chinese_words_and_no_other_has(monkeypatch: pytest.MonkeyPatch) -> None:
    assert set(json.loads(WORDS.read_text("utf-8"))) == english(monkeypatch) | {*HEADINGS}


def test_the_locale_decides(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("LC_ALL", "zh_CN.UTF-8")
    with pytest.raises(SystemExit):
        parse(["doctor", "--help"], "astune")
    shown = capsys.readouterr().out
    assert "选项" in shown and "打印 JSON" in shown and "astune doctor --conf my_agent.yaml" in shown


FIRST = (
    "init my_agent",
    "init --from math_agent",
    "doctor",
    "check-tasks --conf my_agent/agent.yaml --limit 2",
    "tasks preview --conf my_agent/agent.yaml --show 0",
)
MISTAKES = (
    "run",
    "doctor --cnf x",
    "trian",
    "agent.yaml",
    "--conf nothing.yaml",
    "--conf nowhere/agent.yaml",
    "--conf .",
    "--conf empty.yaml",
    "--conf not.yaml",
    "demo astune.trainer.total_step=1 astune.trainer.total_steps=no",
    "init old",
    "init new --tasks nothing.jsonl",
    "init --from mth",
    "view nothing",
    "view",
    "export",
    "online status --conf my_agent/agent.yaml",
    "--conf my_agent/agent.yaml --resume",
    "--conf my_agent/agent.yaml --backbone=vrl",
    "--conf my_agent/agent.yaml astune.trainer.total_steps=-1",
    "--conf my_agent/agent.yaml astune.rollout.agentscope_learn_protocol=agent.py:answr",
    "--conf my_agent/agent.yaml astune.task_judge.judge_protocol=MathAnswerAsJuge",
)
NAMES_ALONE = re.compile(r"  (cd|python|astune) |ok    \w+ +\w+ \d|ok    version| +fix | +[\d,]+ to |$")


def test_what_a_newcomer_sees_first_is_chinese(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LANG", "zh_CN.UTF-8")
    monkeypatch.delenv("LC_ALL", raising=False)
    (tmp_path / "old").mkdir()
    Path("empty.yaml").touch()
    Path("not.yaml").write_text("astune: {")
    for typed in (*FIRST, *MISTAKES):
        with contextlib.suppress(SystemExit):
            main(typed.split())
        out, err = capsys.readouterr()
        told = out + err.partition("错误")[2] if "usage:" in err else out + err
        lines = [line for line in told.splitlines() if not NAMES_ALONE.match(line)]
        assert lines and all(re.search("[\u4e00-\u9fff]", line) for line in lines), (typed, lines)


def test_columns_stay_where_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LC_ALL", "zh_CN.UTF-8")
    assert localize("model     tiny\nheld-out  before") == "模型      tiny\n留出任务  之前"


def test_the_messages_that_have_chinese_words_are_there() -> None:
    others = (argparse, core_schema)
    files = [*Path(astune.__file__).parent.rglob("*.py"), *(Path(other.__file__) for other in others)]
    sources = re.sub(r'"\n\s*f?"', "", "".join(path.read_text("utf-8") for path in files))
    for original in json.loads(MESSAGES.read_text("utf-8")):
        for part in re.findall(r"\w[\w ]{3,}\w", original):
            assert part in sources, original

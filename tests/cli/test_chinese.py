"""`--help` in Chinese: every text has its words, and the locale decides."""

from __future__ import annotations

import json

import pytest

from astune.cli.chinese import HEADINGS, WORDS, commands_of, list_helped
from astune.cli.parse import make_parser, parse


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

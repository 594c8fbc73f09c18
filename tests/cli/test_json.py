"""`--json`: standard output is for the program that reads it."""

from __future__ import annotations

import argparse
import importlib
import json
import re
from pathlib import Path

import pytest

import astune.cli
from astune.cli.chinese import commands_of
from astune.cli.parse import make_parser
from astune.support.visible import tell, tell_json
from tests.rows import each_row

COMMANDS = [command for command in commands_of(make_parser("astune")) if "--json" in command._option_string_actions]


def _loud(known: argparse.Namespace) -> int:
    """Stands for what a command does: it tells of its progress, as users' code and libraries do, and its result."""
    tell("step 1/2")
    tell_json({"path": Path("a")})
    print("done")
    return 0


@each_row("command", COMMANDS, ids=lambda command: command.prog)
def test_standard_output_has_the_json_alone(
    command: argparse.ArgumentParser, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    parser = make_parser("astune")
    for each in commands_of(parser):
        each.set_defaults(execute=_loud)
    monkeypatch.setattr(importlib.import_module("astune.cli.parse"), "make_parser", lambda program: parser)
    needed = [action for action in command._actions if action.required and action.nargs != "*"]
    needed += [group._group_actions[0] for group in command._mutually_exclusive_groups if group.required]
    given = [word for action in needed for word in (*action.option_strings[:1], "1")]
    assert astune.cli.main([*command.prog.split()[1:], *given, "--json"]) == 0
    out, err = capsys.readouterr()
    assert (json.loads(out), err) == ({"path": "a"}, "step 1/2\ndone\n")


def test_no_command_tells_json_in_another_way() -> None:
    files = sorted(Path(astune.cli.__file__).parent.rglob("*.py"))
    assert [path.name for path in files if re.search(r"tell\((json|to_json)", path.read_text("utf-8"))] == []

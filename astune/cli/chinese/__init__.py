"""`--help` in Chinese, where the locale asks for it; the words are in `help.json`, by their English originals."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path

WORDS = Path(__file__).with_name("help.json")
HEADINGS = ("examples:", "exit codes:")


def translate(parser: argparse.ArgumentParser) -> None:
    """Put the Chinese words into a parser and all its commands. A text that has none stays English."""
    words = json.loads(WORDS.read_text(encoding="utf-8"))
    for command in commands_of(parser):
        command.description = words.get(command.description, command.description)
        for heading in HEADINGS:
            command.epilog = (command.epilog or "").replace(heading, words[heading], 1)
        for group in command._action_groups:
            group.title = words.get(group.title, group.title)
        for action in list_helped(command):
            action.help = words.get(action.help, action.help)


def commands_of(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                yield from commands_of(command)


def list_helped(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """List options, arguments and commands of a parser that have a help text."""
    for action in parser._actions:
        listed = action._choices_actions if isinstance(action, argparse._SubParsersAction) else [action]
        yield from (each for each in listed if each.help and each.help != argparse.SUPPRESS)

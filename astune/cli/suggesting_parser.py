"""An argument parser that says what was probably meant. Imports nothing but argparse."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

from astune.errors import nearest
from astune.support.visible import tell

OTHER_WORDS = {
    "train": "run",
    "start": "run",
    "fit": "run",
    "evaluate": "eval",
    "debug": "run --backbone=debug",
    "check": "doctor",
    "serve": "env serve",
}
"""What other programs call it."""
EXAMPLE = "--conf my_agent.yaml"


class SuggestingParser(argparse.ArgumentParser):
    """Options are not shortened; one that is not known is an error here, with the nearest that is."""

    def __init__(self, **options: object) -> None:
        super().__init__(allow_abbrev=False, **options)  # type: ignore[arg-type]
        self._typed: list[str] = []
        self._commands: Any = None

    def add_subparsers(self, **options: Any) -> Any:
        self._commands = super().add_subparsers(**options)
        return self._commands

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        self._typed = list(args)
        known, rest = super().parse_known_args(args, namespace)
        for extra in rest:
            if extra.startswith("-"):
                self.error("")
        return known, rest

    def error(self, message: str) -> Any:
        super().error(self._meant(message))

    def _meant(self, message: str) -> str:
        if self._commands is not None and self._typed and "invalid choice" in message:
            return self._meant_command(self._typed[0])
        typed = [word.partition("=")[0] for word in self._typed if word.startswith("-")]
        for option in typed:
            if option not in self._option_string_actions:
                return f"unknown option {option}.{nearest(option, self._option_string_actions)} See {self.prog} --help"
        if "--conf" not in message:
            return message
        file = next((word for word in self._typed if is_configuration(word)), None)
        example = EXAMPLE if file is None else f"--conf {file}"
        return f"{message}; name the configuration, as in: {self.prog} {example}"

    def _meant_command(self, word: str) -> str:
        known: Sequence[str] = list(self._commands.choices)
        if word.startswith("-"):
            return f"expected {' or '.join(known)} first, as in: {self.prog} {known[0]} {EXAMPLE}"
        if is_configuration(word):
            return f"{word!r} is a file, not a command; to run it: {self.prog} --conf {word}"
        if "run" in known and word in OTHER_WORDS:
            conf = EXAMPLE if "env" not in OTHER_WORDS[word] else "--env my_world.py:World"
            return f"there is no command {word!r}; did you mean: {self.prog} {OTHER_WORDS[word]} {conf}"
        return f"there is no command {word!r}.{nearest(word, known)} There are: {', '.join(known)}"

    def _print_message(self, message: str, file: Any = None) -> None:
        if message:
            tell(message, end="", file=file or sys.stderr)


def is_configuration(word: str) -> bool:
    return word.endswith((".yaml", ".yml"))

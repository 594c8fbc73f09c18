"""An argument parser that says what was probably meant. Imports nothing but argparse."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from astune.errors import nearest
from astune.support.chinese import localize
from astune.support.visible import tell
from astune.version import __version__

Commands: TypeAlias = "argparse._SubParsersAction[SuggestingParser]"
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
    """Options are not shortened; one that is not known is an error here, with the nearest that is. `examples` stand
    below the options, with `{program}` for the way in which ASTune was called."""

    def __init__(self, examples: str = "", **options: Any) -> None:
        if examples:
            options["formatter_class"] = argparse.RawDescriptionHelpFormatter
        super().__init__(allow_abbrev=False, **options)
        self.default_action: str | None = None
        self._examples = examples
        self._typed: list[str] = []
        self._commands: Any = None

    def add_subparsers(self, default: str | None = None, **options: Any) -> Any:
        """`default` is the word that may be left out."""
        self.default_action = default
        self._commands = super().add_subparsers(**options)
        return self._commands

    def show_examples(self, program: str) -> None:
        """Put the examples into `--help`."""
        if self._examples:
            self.epilog = "examples:\n" + self._examples.format(program=program)

    @property
    def commands(self) -> dict[str, SuggestingParser]:
        """The parsers of its commands by name."""
        return {} if self._commands is None else self._commands.choices

    def actions(self) -> Iterator[SuggestingParser]:
        """The parsers of what can be done: itself, or those of its commands."""
        if self._commands is None:
            yield self
        else:
            for command in self._commands.choices.values():
                yield from command.actions()

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        self._typed = list(args)
        known, rest = super().parse_known_args(args, namespace)
        for extra in rest:
            if extra.startswith("-"):
                self.error("")
        return known, rest

    def error(self, message: str) -> Any:
        self.print_usage(sys.stderr)
        self.exit(2, f"{localize(f'{self.prog}: error: {self._meant(message)}')}\n")

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


class ShowVersion(argparse.Action):
    """Shows ASTune's version and ends the command."""

    def __init__(self, option_strings: list[str], dest: str) -> None:
        super().__init__(option_strings, dest, nargs=0, help="show the version and exit")

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        tell(f"astune {__version__}")
        parser.exit()


LEVELS = ("debug", "info", "warning", "error")


def add_conf(command: argparse.ArgumentParser, meaning: str = "the configuration", required: bool = True) -> None:
    command.add_argument("--conf", type=Path, required=required, metavar="X.yaml", help=meaning)


def add_player(command: argparse.ArgumentParser) -> None:
    """Add the options that say what plays the held-out tasks."""
    command.add_argument("--backbone", help="local, or verl: on its servers; sets astune.backbone")
    command.add_argument("--engine", metavar="E", help="one of your own in the place of both, 'my_engine.py:load'")


def add_overrides(command: argparse.ArgumentParser, meaning: str = "replaces a value") -> None:
    command.add_argument("overrides", nargs="*", metavar="key=value", help=meaning)


def add_log_level(command: argparse.ArgumentParser) -> None:
    """`log_level` is then the number that `logging` has for it, or None."""
    command.add_argument(
        "--log-level",
        type=_log_level,
        metavar="LEVEL",
        help=f"least log records to show, of ASTune's and of your own code's: {', '.join(LEVELS)}",
    )


def _log_level(text: str) -> int:
    if text.lower() not in LEVELS:
        raise argparse.ArgumentTypeError(
            f"got {text!r}, expected one of {', '.join(LEVELS)}.{nearest(text.lower(), LEVELS)}"
        )
    return int(logging.getLevelName(text.upper()))

"""Text of models, tasks, tools, errors and files, made safe to print: what a terminal would obey, and what it would not
show, is written out.

    >>> print(visible("\\x1b[2Jdone\\u202e"))
    \\u001b[2Jdone\\u202e

All that ASTune prints goes through here: plain lines by `tell`, results for programs by `tell_json`, log records by
`make_logs_visible`, and what rich lays out by `astune.support.terminal`.
"""

from __future__ import annotations

import functools
import json
import logging
import os
import sys
import unicodedata
import warnings
from collections.abc import Callable
from contextlib import redirect_stdout
from contextvars import ContextVar
from typing import Any, TextIO

JOINERS = "\u200c\u200d"
"""Invisible, and needed to write Persian, Hindi and emoji."""
HIDDEN = ("Cc", "Cf", "Cs", "Zl", "Zp")
"""Unicode's categories of control and format characters (bidi marks are of these), surrogates, and separators of lines
and of paragraphs."""
_FOR_JSON: ContextVar[TextIO | None] = ContextVar("for_json", default=None)
"""Standard output, where it is kept for JSON."""
SERVER_LINE = "%(asctime)s | %(levelname)-8s | %(name)s:%(funcName)s:%(lineno)d - %(message)s"


def visible(text: str, keep: str = "\n\t") -> str:
    """`text` with each control or invisible character as JSON writes it, so that JSON stays equal JSON. `keep` is
    empty for what must stay on one line, as a name.

    >>> visible("a\\r\\nb"), visible("a\\nb", keep="")
    ('a\\\\r\\nb', 'a\\\\nb')
    """
    if text.isprintable():  # the commonest case by far, and quick to tell
        return text
    return "".join(char if char in keep else _write(char) for char in text)


@functools.lru_cache(maxsize=4096)
def _write(char: str) -> str:
    if char in JOINERS or unicodedata.category(char) not in HIDDEN:
        return char
    return json.dumps(char)[1:-1]


def tell(text: object = "", *, end: str = "\n", file: Any = None, flush: bool = False) -> None:
    """`print`, made visible."""
    print(visible(str(text)), end=end, file=file, flush=flush)


def keep_for_json(command: Callable[[], int]) -> int:
    """Run a command whose standard output another program reads: it has what `tell_json` tells, and standard error
    has all else that is printed."""
    kept = _FOR_JSON.set(sys.stdout)
    try:
        with redirect_stdout(sys.stderr):
            return command()
    finally:
        _FOR_JSON.reset(kept)


def tell_json(found: object, *, indent: int | None = 2) -> None:
    """Print the result of a command as JSON."""
    tell(json.dumps(found, indent=indent, ensure_ascii=False, default=str), file=_FOR_JSON.get())


def mute() -> None:
    """Nothing more is written to standard output: who read it, or its terminal, has gone."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def make_logs_visible(level: int = logging.WARNING) -> None:
    """For a process of ASTune's own: warnings and the log records that nobody else handles are printed by `tell`."""
    logging.lastResort = _LastResort(level)
    warnings.formatwarning = lambda *args, **kwargs: visible(_format_warning(*args, **kwargs))


def log_as_server(level: int | None = None) -> None:
    """For a process that serves, whose log is read days later: ASTune's records from INFO on, or from `level` on, and
    each record that nobody else handles after its time, level and place."""
    lines = logging.Formatter(SERVER_LINE)
    lines.default_msec_format = "%s.%03d"
    logging.lastResort = _LastResort(level or logging.INFO)
    logging.lastResort.setFormatter(lines)
    logging.getLogger("astune").setLevel(min(level or logging.INFO, logging.INFO))


_format_warning = warnings.formatwarning


class _LastResort(logging.Handler):
    """Takes the records for which the process has set up no handler."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            tell(self.format(record), file=sys.stderr)
        except Exception:
            self.handleError(record)

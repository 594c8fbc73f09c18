"""The command line. `parse` knows the commands; the module of each says its options, and imports what it works with
when it runs, so that `--help` stays fast."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NoReturn

from astune.cli.endings import BAD_INPUT, FAILED, INTERRUPTED, what_to_do
from astune.cli.parse import parse
from astune.errors import (
    AstuneError,
    ConfigError,
    MissingDependency,
    ModelError,
    PluginError,
    TaskError,
    name_error,
)
from astune.support.chinese import localize
from astune.support.concurrency import outside_loop
from astune.support.run_log import command_log, file_logger
from astune.support.signals import signals_as_ctrl_c
from astune.support.user_code import own_line_first, place_of
from astune.support.visible import make_logs_visible, mute, tell

log = file_logger("astune.command")

LEAVE_SECONDS = 5.0
"""As long may threads go on when all is done."""
BAD_INPUT_ERRORS = (ConfigError, PluginError, TaskError, ModelError, MissingDependency)


def entry(program: str = "astune") -> NoReturn:
    """The whole process. It ends though threads go on that somebody else's code has started."""
    code = main(program=program)
    deadline = time.monotonic() + LEAVE_SECONDS
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join(max(0.0, deadline - time.monotonic()))
            if thread.is_alive():
                with contextlib.suppress(OSError):
                    tell(f"{program}: ends, though a thread goes on: {thread.name}", file=sys.stderr)
                    sys.stdout.flush()
                os._exit(code)
    sys.exit(code)


def main(argv: Sequence[str] | None = None, program: str = "astune") -> int:
    """Runs one command and returns its exit code, in a notebook too. `program` is how the user calls it."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    with outside_loop():
        code, problem = _end_of(partial(_run, arguments, program), program)
    if problem:
        tell(localize(problem), file=sys.stderr)
    return code


def _run(arguments: Sequence[str], program: str) -> int:
    command, log_level = parse(arguments, program)
    if str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))  # so that `package.module:Name` finds the user's own packages
    make_logs_visible(log_level or logging.WARNING)
    with command_log(log_level):
        code, problem = _end_of(command, program)
        if problem:
            tell(localize(problem), file=sys.stderr)
            log.error("%s", problem)
        log.info("exit code %d", code)
        return code


def _end_of(command: Callable[[], int], program: str) -> tuple[int, str]:
    """Run a command; its exit code, and the message for the user about how it ended."""
    try:
        with signals_as_ctrl_c():
            code = command()
        sys.stdout.flush()
        return code, ""
    except KeyboardInterrupt:
        return INTERRUPTED, "interrupted"
    except BrokenPipeError:  # who read the output, as `head`, has gone
        mute()
        return FAILED, ""
    except AstuneError as error:
        return BAD_INPUT if isinstance(error, BAD_INPUT_ERRORS) else FAILED, f"{program}: error: {error}"
    except Exception as error:
        problem = f"{own_line_first(traceback.format_exc())}{program}: {_explain_unexpected(error)}"
        try:
            sys.stdout.flush()
        except OSError:  # it is what failed, and would fail again at the end of the process
            mute()
        return FAILED, problem


def _explain_unexpected(error: Exception) -> str:
    """Explain an error that no command expects: the user's code, this machine or ASTune is to blame."""
    if place := place_of(error):
        what = "which ASTune does not expect: see the traceback above; look first at"
        return f"failed with {type(error).__name__}, {what} {place}"
    if advice := what_to_do(error):
        return f"error: {name_error(error)}; {advice}"
    what = "which ASTune does not expect: see the traceback above; no line of your own is in it: please report it"
    return f"failed with {type(error).__name__}, {what}"

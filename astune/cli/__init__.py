"""The command line. `arguments` defines it, `dispatch` picks the command, the other modules are the commands; each is
imported when it is needed, so that `--help` stays fast."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from astune.cli.dispatch import parse
from astune.cli.exit_codes import BAD_INPUT, FAILED, INTERRUPTED
from astune.errors import (
    AstuneError,
    ConfigError,
    MissingDependency,
    ModelError,
    PluginError,
    TaskError,
)
from astune.support.signals import signals_as_ctrl_c
from astune.support.user_code import own_line_first, place_of
from astune.support.visible import make_logs_visible, mute, tell

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
    """Runs one command and returns its exit code. `program` is how the user calls it."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    command = parse(arguments, program)
    if str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))  # so that `package.module:Name` finds the user's own packages
    make_logs_visible()
    try:
        with signals_as_ctrl_c():
            code = command()
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        tell("interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:  # who read the output, as `head`, has gone
        mute()
        return FAILED
    except AstuneError as error:
        tell(f"{program}: error: {error}", file=sys.stderr)
        return BAD_INPUT if isinstance(error, BAD_INPUT_ERRORS) else FAILED
    except Exception as error:
        place = place_of(error)
        look = f"look first at {place}" if place else "no line of your own is in it: please report it"
        tell(
            f"{own_line_first(traceback.format_exc())}"
            f"{program}: failed with {type(error).__name__}, which ASTune does not expect: see the traceback above; "
            f"{look}",
            file=sys.stderr,
        )
        return FAILED

"""The command line. `parser` says what there is, the other modules do it; each is imported when it is needed, so that
`--help` stays fast."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

from astune.cli.parser import parse
from astune.errors import (
    AstuneError,
    ConfigError,
    MissingDependency,
    ModelError,
    PluginError,
    TaskError,
)
from astune.visible import make_logs_visible, tell

DONE, FAILED, BAD_INPUT, INTERRUPTED = 0, 1, 2, 130
BAD_INPUT_ERRORS = (ConfigError, PluginError, TaskError, ModelError, MissingDependency)


def main(argv: Sequence[str] | None = None, program: str = "astune") -> int:
    """Runs one command and returns its exit code. `program` is how the user calls it."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    command = parse(arguments, program)
    if str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))  # so that `package.module:Name` finds the user's own packages
    make_logs_visible()
    try:
        code = command()
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        tell("interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:  # who read the output, as `head`, has gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # so that nothing is written to it at the end
        return FAILED
    except AstuneError as error:
        tell(f"{program}: error: {error}", file=sys.stderr)
        return BAD_INPUT if isinstance(error, BAD_INPUT_ERRORS) else FAILED
    except Exception as error:
        tell(
            f"{traceback.format_exc()}"
            f"{program}: failed with {type(error).__name__}, which ASTune does not expect: see the traceback above; "
            "its last line in your own files is where to look first",
            file=sys.stderr,
        )
        return FAILED

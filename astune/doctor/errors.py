"""Where in the user's own files an error came from."""

from __future__ import annotations

import re
import sysconfig
import traceback

from astune.resources import PACKAGE, tutorial_dir

_FRAME = re.compile(r'^  File "(?P<file>.+?)", line (?P<line>\d+), in .*\n    (?P<code>.+)$', re.MULTILINE)


def place_of(error: BaseException | str) -> str:
    """`file:line` of the innermost line that is neither Python's, an installed package's nor ASTune's; "" if none is.

    `error` is an exception or the text of its traceback.
    """
    found = _innermost(error)
    return f"{found['file']}:{found['line']}" if found else ""


def code_of(error: BaseException | str) -> str:
    """The line of code at `place_of`, in backquotes after "at"; "" if there is none."""
    found = _innermost(error)
    return f" at `{found['code'].strip()}`" if found else ""


def named(error: BaseException) -> str:
    """`ValueError: what it says`."""
    return f"{type(error).__name__}: {error}".rstrip(": ")


def _innermost(error: BaseException | str) -> re.Match[str] | None:
    trace = error if isinstance(error, str) else "".join(traceback.format_exception(error))
    foreign = ("<", *(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")))
    frames = [frame for frame in _FRAME.finditer(trace) if not frame["file"].startswith(foreign)]
    own = (str(tutorial_dir()),)
    users = [f for f in frames if not f["file"].startswith(f"{PACKAGE}/") or f["file"].startswith(own)]
    return users[-1] if users else None

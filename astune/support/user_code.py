"""Users' code: telling it from ASTune's and from packages, and finding the line of it that an error is about."""

from __future__ import annotations

import ast
import functools
import importlib.util
import os
import re
import traceback
from pathlib import Path

from astune.support.resources import PACKAGE, tutorial_dir

_FRAME = re.compile(r'^  File "(?P<file>.+?)", line (?P<line>\d+), in .*\n    (?P<code>.+)$', re.MULTILINE)


def part_of_astune(file: Path) -> bool:
    """True for ASTune's own code. Tutorials count as the user's."""
    return file.is_relative_to(PACKAGE) and not file.is_relative_to(tutorial_dir())


@functools.cache
def by_user(file: str) -> bool:
    """True for a file, as a code object names it, that is the user's own: not of ASTune, the standard library or an
    installed package, and not in memory only (packages generate code called "<string>")."""
    path = Path(file)
    if file.startswith("<") or part_of_astune(path):
        return False
    return not _is_installed(path) or path.is_relative_to(tutorial_dir())


def _is_installed(file: Path) -> bool:
    """True for a file of an installed package or of the standard library."""
    return bool({"site-packages", "dist-packages"} & set(file.parts)) or file.is_relative_to(Path(os.__file__).parent)


def place_of(error: BaseException | str) -> str:
    """`file:line` of the innermost line of the user's own code; "" if there is none.

    `error` is an exception or the text of its traceback.
    """
    found = _innermost(error)
    return f"{found['file']}:{found['line']}" if found else ""


def code_of(error: BaseException | str) -> str:
    """The line of code at `place_of`, in backquotes after "at"; "" if there is none."""
    found = _innermost(error)
    return f" at `{found['code'].strip()}`" if found else ""


def own_line_first(trace: str) -> str:
    """The traceback `trace` behind the line of the user's own code that it is about, if there is one."""
    place = place_of(trace)
    return f"in your code: {place}{code_of(trace)}\n{trace}" if place else trace


def _innermost(error: BaseException | str) -> re.Match[str] | None:
    trace = error if isinstance(error, str) else "".join(traceback.format_exception(error))
    users = [frame for frame in _FRAME.finditer(trace) if by_user(frame["file"])]
    return users[-1] if users else None


def calling_line() -> str:
    """`file:line: `code`` of the innermost line of the user's own on the way to here; "" if there is none."""
    frames = [frame for frame in traceback.extract_stack() if by_user(frame.filename)]
    return f"{frames[-1].filename}:{frames[-1].lineno}: `{frames[-1].line}`" if frames else ""


def source_of(spec: str) -> Path | None:
    """The file behind `path/file.py:Name` or `package.module:Name`, without importing it; None if it is not found."""
    where = spec.rpartition("->" if "->" in spec else ":")[0]
    if where.endswith(".py"):
        return Path(where) if Path(where).is_file() else None
    try:
        found = importlib.util.find_spec(where) if where else None
    except (ImportError, ValueError):
        return None
    return Path(found.origin) if found and found.origin and found.origin.endswith(".py") else None


def imports_of(file: Path) -> set[str]:
    """The packages that a file imports anywhere in it, by their first names. Empty if it is not Python."""
    try:
        tree = ast.parse(file.read_text(encoding="utf-8"))
    except (SyntaxError, ValueError):
        return set()
    names = [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    names += [node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module]
    return {name.partition(".")[0] for name in names}

"""Whose code a file is."""

from __future__ import annotations

import functools
import os
from pathlib import Path

from astune.resources import PACKAGE, tutorial_dir


def part_of_astune(file: Path) -> bool:
    """Whether `file` is ASTune's own code. Tutorials count as the user's."""
    return file.is_relative_to(PACKAGE) and not file.is_relative_to(tutorial_dir())


@functools.cache
def by_user(file: str) -> bool:
    """Whether `file`, as a code object names it, is neither ASTune's nor the standard library's nor of an installed
    package, nor in memory only: "<string>" is what packages generate."""
    path = Path(file)
    if file.startswith("<") or part_of_astune(path):
        return False
    installed = {"site-packages", "dist-packages"} & set(path.parts) or path.is_relative_to(Path(os.__file__).parent)
    return not installed or path.is_relative_to(tutorial_dir())

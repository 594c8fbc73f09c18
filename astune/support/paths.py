"""Names from outside that become paths: checked where they come in (`is_name`) and where paths are made (`inside`)."""

from __future__ import annotations

import unicodedata
from pathlib import Path

MOST_BYTES = 200
"""Longest name in UTF-8: file systems take 255, and something may be put behind it."""


def is_name(text: object) -> bool:
    """True if it can be the name of one file or folder, and names nothing above it."""
    if not isinstance(text, str) or text in ("", ".", "..") or any(mark in text for mark in "/\\"):
        return False
    written = all(unicodedata.category(character) not in ("Cc", "Cs") for character in text)
    return written and len(text.encode()) <= MOST_BYTES


def inside(folder: Path, *names: str) -> Path:
    """`folder / names`, which is below `folder`, also where links lead. Raises ValueError if it would not be."""
    path = folder.joinpath(*names)
    if not all(map(is_name, names)) or not path.resolve().is_relative_to(folder.resolve()):
        raise ValueError(f"{'/'.join(names)!r:.300} leads out of its folder, or no file can be called so")
    return path

"""What a backbone needs to be installed, looked up by name and version before anything heavy is imported."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Needed:
    """A package by its name for pip, the module it brings, and its version: from `at_least`, below `below`."""

    package: str
    module: str
    at_least: tuple[int, ...]
    below: tuple[int, ...]
    reason: str = ""

    @property
    def expected(self) -> str:
        return f">={dotted(self.at_least)},<{dotted(self.below)}"


PYTHON = ((3, 10), (3, 13))
"""The bounds that Trinity-RFT and verl have: from the first, below the second."""


def wrong_python(who: str) -> Iterator[str]:
    lowest, too_high = PYTHON
    if not lowest <= sys.version_info[:2] < too_high:
        yield (
            f"this is Python {dotted(sys.version_info[:3])}; {who} needs at least {dotted(lowest)} and less than "
            f"{dotted(too_high)}"
        )


def missing(needed: Needed) -> Iterator[str]:
    why = f" ({needed.reason})" if needed.reason else ""
    try:
        version = importlib.metadata.version(needed.package)
    except importlib.metadata.PackageNotFoundError:
        yield f"{needed.package} is not installed; expected {needed.expected}{why}"
        return
    if not needed.at_least <= numbers(version) < needed.below:
        yield f"{needed.package} is {version}; expected {needed.expected}{why}"
    elif importlib.util.find_spec(needed.module) is None:
        yield f"{needed.package} {version} is installed, but has no module {needed.module!r}; install it again"


def numbers(version: str) -> tuple[int, ...]:
    """The leading numbers of a version, at most three.

    >>> numbers("0.6.0"), numbers("2.13.0+cpu"), numbers("0.7.1rc2")
    ((0, 6, 0), (2, 13, 0), (0, 7, 1))
    """
    found = re.match(r"\d+(\.\d+){0,2}", version)
    return tuple(int(part) for part in found.group().split(".")) if found else ()


def dotted(version: tuple[int, ...]) -> str:
    return ".".join(str(part) for part in version)

"""Packages that a backbone needs, looked up by name and version before anything heavy is imported."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from astune.config.schema import ModelConfig


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
        return f">={show_version(self.at_least)},<{show_version(self.below)}"


FLASH = "flash_attention_2"
NEEDED_BY: Mapping[str, Needed] = {
    FLASH: Needed("flash-attn", "flash_attn", (2, 3, 3), (3,)),
    "flash_attention_3": Needed("flash-attn-3", "flash_attn_interface", (3,), (4,)),
    "flash_attention_4": Needed("flash-attn-4", "flash_attn", (4,), (5,)),
}
"""By transformers' name of an attention, with the versions that transformers asks for."""
KERNELS = Needed("kernels", "kernels", (0, 10, 2), (1,))
"""Fetches a compiled attention: one that is named by its place on the hub, or one of flash-attn's where that is
not installed."""
INSTALL_FLASH = "pip install flash-attn==2.8.3 --no-build-isolation"

PYTHON = ((3, 10), (3, 13))
"""The bounds that Trinity-RFT and verl have: from the first, below the second."""


def wrong_python(who: str) -> Iterator[str]:
    lowest, too_high = PYTHON
    if not lowest <= sys.version_info[:2] < too_high:
        yield (
            f"this is Python {show_version(sys.version_info[:3])}; {who} needs at least {show_version(lowest)} "
            f"and less than {show_version(too_high)}"
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


def unusable(needed: Needed) -> Iterator[str]:
    """Load a package, and say why it cannot be used: `missing` tells, or it does not load. A package that was compiled
    for another torch is installed, and fails where it is first used."""
    if problems := list(missing(needed)):
        yield from problems
        return
    try:
        importlib.import_module(needed.module)
    except Exception as error:  # whatever its libraries raise
        yield f"{needed.package} is installed, but does not load: {type(error).__name__}: {error}"


def attention_of(model: ModelConfig, *, gpus: bool) -> str:
    """transformers' name of the attention in the training workers of verl and Trinity. By themselves both take
    flash-attn's, whose kernels are for GPUs in half precision."""
    if model.attention != "auto":
        return model.attention
    return FLASH if gpus and model.dtype != "float32" else "sdpa"


def lacking(attention: str) -> Iterator[str]:
    """Say which package of an attention of transformers this machine lacks, and what to do."""
    needed = KERNELS if "/" in attention else NEEDED_BY.get(attention)
    if needed is None or not list(missing(KERNELS)):
        return
    how = f" ({INSTALL_FLASH})" if attention == FLASH else ""
    for problem in unusable(needed):
        yield (
            f"the attention {attention!r} of training workers on GPUs lacks its package: {problem}; install it{how}, "
            "or go without: astune.model.attention: sdpa"
        )


def numbers(version: str) -> tuple[int, ...]:
    """The leading numbers of a version, at most three.

    >>> numbers("0.6.0"), numbers("2.13.0+cpu"), numbers("0.7.1rc2")
    ((0, 6, 0), (2, 13, 0), (0, 7, 1))
    """
    found = re.match(r"\d+(\.\d+){0,2}", version)
    return tuple(int(part) for part in found.group().split(".")) if found else ()


def show_version(version: tuple[int, ...]) -> str:
    return ".".join(str(part) for part in version)

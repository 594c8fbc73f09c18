"""The processor of this machine."""

from __future__ import annotations

import platform
from functools import cache
from pathlib import Path

DESCRIBED = Path("/proc/cpuinfo")


@cache
def is_of_amd() -> bool:
    """True on a processor of AMD, whose best kernels are others than those of Intel."""
    known = DESCRIBED.read_text(errors="replace") if DESCRIBED.is_file() else platform.processor()
    return "AuthenticAMD" in known

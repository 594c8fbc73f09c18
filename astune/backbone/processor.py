"""The processor of this machine."""

from __future__ import annotations

import platform
from functools import cache
from pathlib import Path

DESCRIBED = Path("/proc/cpuinfo")


@cache
def is_of_amd() -> bool:
    known = DESCRIBED.read_text(errors="replace") if DESCRIBED.is_file() else platform.processor()
    return "AuthenticAMD" in known

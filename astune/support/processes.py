"""Processes by a name under which others on the same machine can tell later whether they still live."""

from __future__ import annotations

import os
import socket
from pathlib import Path

_DEAD = "ZX"
"""States of a process that has ended, whether or not its parent has asked for its exit code."""


def name_of(pid: int) -> str:
    """`machine:place/pid:start`, of a process that lives: of two with the same name one has ended. `place` tells this
    boot of this machine, and containers on it, from others. Both are empty where the system has no /proc."""
    place = started = ""
    if (found := _stat(pid)) is not None:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().partition("-")[0]
        place, started = f"{boot}-{os.readlink('/proc/self/ns/pid').strip('pid:[]')}", found[1]
    return f"{socket.gethostname()}:{place}/{pid}:{started}"


def has_ended(name: str) -> bool:
    """Whether the process has ended whose name (`name_of`) that is, or is what stands before a last `/`. False where
    nobody can tell: it is on another machine, in another container, or the name is none."""
    of_machine, _, process = name.partition("/")
    pid, _, started = process.partition("/")[0].partition(":")
    if not started or not pid.isdecimal() or of_machine != name_of(os.getpid()).partition("/")[0]:
        return False
    found = _stat(int(pid))
    return found is None or found[0] in _DEAD or found[1] != started


def _stat(pid: int) -> tuple[str, str] | None:
    """State, and when it was started, in ticks since the system was; None if there is no such process."""
    try:
        after_name = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    return after_name[0], after_name[19]

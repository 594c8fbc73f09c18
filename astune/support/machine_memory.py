"""The memory of this machine and of its GPUs, amounts of it in few characters, and whose processor it has."""

from __future__ import annotations

import ctypes
import os
import platform
import re
import shutil
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path

GIB = 2**30


@dataclass(frozen=True)
class MachineMemory:
    """The memory that a machine has for a run: on a GPU if there is one that the configuration may use."""

    name: str
    total: int
    free: int
    is_cuda: bool


def of_the_machine() -> MachineMemory:
    """Its own, less what is in use."""
    total = _ram()
    return MachineMemory("memory of this machine", total, min(total, _available()), False)


def find_memory(device: str) -> MachineMemory | None:
    """The memory of the GPU that `astune.model.device` means, else of the machine; None for a GPU that is not there."""
    found = [] if device == "cpu" else gpus()
    index = int(device.partition(":")[2] or 0)
    if device.startswith("cuda") and index >= len(found):
        return None
    if found:
        return found[index]
    return of_the_machine()


def gpus() -> list[MachineMemory]:
    """The GPUs that `nvidia-smi` shows."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    asked = [program, "--query-gpu=memory.total,memory.free,name", "--format=csv,noheader,nounits"]
    answer = subprocess.run(asked, capture_output=True, text=True, timeout=20, check=False)
    return read_gpus(answer.stdout) if answer.returncode == 0 else []


def read_gpus(lines: str) -> list[MachineMemory]:
    """GPUs from lines of total and free MiB and the name.

    >>> read_gpus("81559, 81007, NVIDIA H100 80GB HBM3")[0].name
    'NVIDIA H100 80GB HBM3'
    """
    rows = [line.split(", ", 2) for line in lines.splitlines()]
    return [
        MachineMemory(name, int(total) * 2**20, int(free) * 2**20, True)
        for total, free, name in (row for row in rows if len(row) == 3 and row[0].isdigit() and row[1].isdigit())
    ]


def _ram() -> int:
    """Bytes of memory, or what the container may use of it."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limits = [Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes")]
    found = [int(text) for path in limits if path.is_file() and (text := path.read_text().strip()).isdigit()]
    return min([total, *found])


def _available() -> int:
    """Bytes that are not in use now, as Linux says; as much as there may be where nothing says so."""
    path = Path("/proc/meminfo")
    found = re.search(r"^MemAvailable:\s+(\d+) kB", path.read_text(), re.MULTILINE) if path.is_file() else None
    return int(found[1]) * 1024 if found else 2**63


def give_back() -> None:
    """Give the system what the allocator holds and nobody uses: glibc's keeps it for the next who ask."""
    if platform.libc_ver()[0] == "glibc":
        ctypes.CDLL(None).malloc_trim(0)


def show_bytes(number: float) -> str:
    """Bytes.

    >>> show_bytes(5 * 2**20), show_bytes(3 * 2**30)
    ('5 MiB', '3.0 GiB')
    """
    return f"{number / GIB:.1f} GiB" if number >= GIB / 10 else f"{number / 2**20:.0f} MiB"


def show_count(number: float) -> str:
    """Parameters, in millions or billions.

    >>> show_count(900_000), show_count(7_600_000_000)
    ('0.9M', '7.6B')
    """
    return f"{number / 1e9:.1f}B" if number >= 1e9 else f"{number / 1e6:.1f}M"


DESCRIBED = Path("/proc/cpuinfo")


@cache
def is_of_amd() -> bool:
    """True on a processor of AMD, whose best kernels are others than those of Intel."""
    known = DESCRIBED.read_text(errors="replace") if DESCRIBED.is_file() else platform.processor()
    return "AuthenticAMD" in known

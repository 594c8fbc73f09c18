"""What a process is told before it imports torch, by the package that imports it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from astune.backbone.local.process import wait_awake_for_a_moment

NAMES = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")


@pytest.mark.parametrize(
    ("given", "then"),
    [
        ((None, None), ("PASSIVE", "3000")),
        ((None, "7"), ("PASSIVE", "7")),
        (("ACTIVE", None), ("ACTIVE", None)),
        (("PASSIVE", None), ("PASSIVE", None)),
    ],
)
def test_threads_spin_a_little_unless_the_user_says_how_they_wait(
    monkeypatch: pytest.MonkeyPatch, given: tuple[str | None, str | None], then: tuple[str | None, str | None]
) -> None:
    for name, value in zip(NAMES, given, strict=True):
        monkeypatch.setenv(name, value or "")  # so that it is as before afterwards, whatever the package sets
        if value is None:
            monkeypatch.delenv(name)
    wait_awake_for_a_moment()
    assert tuple(os.environ.get(name) for name in NAMES) == then


FAULTS = """
import ctypes, resource
import astune.backbone.local
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
libc.free.argtypes, libc.memset.argtypes = [ctypes.c_void_p], [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
size = 10 * 2**20

def use():
    places = [libc.malloc(size) for _ in range(12)]
    for place in places:
        libc.memset(place, 1, size)
    for place in places:
        libc.free(place)

use()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    use()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc")
def test_memory_that_was_freed_is_used_again_unless_the_user_says_what_is_kept() -> None:
    faults = []
    for given in ({}, {"MALLOC_TRIM_THRESHOLD_": "131072", "MALLOC_MMAP_THRESHOLD_": "131072"}):
        environment = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")} | given
        child = subprocess.run(
            [sys.executable, "-c", FAULTS], env=environment, capture_output=True, text=True, check=True, timeout=120
        )
        faults.append(int(child.stdout))
    kept, given_back = faults
    pages = 10 * 12 * 10 * 2**20 // os.sysconf("SC_PAGE_SIZE")
    assert kept < pages / 20
    assert given_back > pages / 2


LARGE = """
import resource
import astune.backbone.local
import torch
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
torch.ones(2**24)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""
SWITCH = Path("/sys/kernel/mm/transparent_hugepage/enabled")


@pytest.mark.skipif(
    not SWITCH.is_file() or "[madvise]" not in SWITCH.read_text(), reason="no large pages for those who ask"
)
def test_a_large_tensor_has_large_pages_unless_the_user_says_otherwise() -> None:
    """64 MiB are 16,384 pages of 4 kB. There may be few large ones left, but none that was not asked for."""

    def faults(**told: str) -> int:
        given = {name: value for name, value in os.environ.items() if name != "THP_MEM_ALLOC_ENABLE"}
        run = subprocess.run(
            [sys.executable, "-c", LARGE], env=given | told, capture_output=True, text=True, check=True
        )
        return int(run.stdout)

    assert faults(THP_MEM_ALLOC_ENABLE="0") > 16_000
    assert faults() < 16_000

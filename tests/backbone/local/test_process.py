"""What a process is told before it imports torch, by the package that imports it."""

from __future__ import annotations

import json
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


TOLD = """
import ctypes, json, resource
from pathlib import Path
import astune.backbone.local
import torch

torch.set_num_threads(1)
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
for _ in range(3):
    use()
faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

numbers = torch.ones(2**24)
place, flags = numbers.data_ptr() + numbers.nbytes // 2, []
for line in open("/proc/self/smaps"):
    first, _, rest = line.partition(" ")
    if "-" in first:
        begin, end = (int(part, 16) for part in first.split("-"))
    elif first == "VmFlags:" and begin <= place < end:
        flags = rest.split()

def megabytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 2**20

weight, states = torch.randn(16, 64), torch.randn(400, 64)
found = []
for rows in range(1, 400):
    torch.ops.mkldnn._linear_pointwise(states[:rows], weight, None, "none", [], "")
    if rows in (150, 399):
        found.append(megabytes())
print(json.dumps([faults, "hg" in flags, found[1] - found[0]]))
"""
OTHERWISE = {
    "MALLOC_TRIM_THRESHOLD_": "131072",
    "MALLOC_MMAP_THRESHOLD_": "131072",
    "THP_MEM_ALLOC_ENABLE": "0",
    "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "1200",
    "LRU_CACHE_CAPACITY": "1200",
}


@pytest.fixture(scope="module")
def processes() -> list[tuple[int, bool, float]]:
    """What a process does by itself, and one whose user has said otherwise: pages that are fetched again for memory
    that was freed, large pages, and megabytes that programs of oneDNN take beyond the first 150."""
    if sys.platform != "linux":
        pytest.skip("glibc and /proc")
    found = []
    for told in ({}, OTHERWISE):
        plain = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", *OTHERWISE))}
        command = [sys.executable, "-c", TOLD]
        child = subprocess.run(command, env=plain | told, capture_output=True, text=True, check=True, timeout=300)
        found.append(tuple(json.loads(child.stdout)))
    return found


def test_memory_that_was_freed_is_used_again_unless_the_user_says_what_is_kept(
    processes: list[tuple[int, bool, float]],
) -> None:
    (kept, *_), (given_back, *_) = processes
    pages = 3 * 12 * 10 * 2**20 // os.sysconf("SC_PAGE_SIZE")
    assert kept < pages / 20
    assert given_back > pages / 2


@pytest.mark.skipif(
    not Path("/sys/kernel/mm/transparent_hugepage/enabled").is_file(), reason="a kernel without large pages"
)
def test_large_pages_are_asked_for_unless_the_user_says_otherwise(processes: list[tuple[int, bool, float]]) -> None:
    assert [large for _, large, _ in processes] == [True, False]


def test_programs_of_onednn_do_not_pile_up(processes: list[tuple[int, bool, float]]) -> None:
    """One is written for each number of rows. Those beyond the first take the places of others."""
    (*_, few), (*_, all_kept) = processes
    assert few < all_kept / 3

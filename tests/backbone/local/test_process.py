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
import astune.backbone.local
import torch
numbers = torch.ones(2**24)
place, flags = numbers.data_ptr() + numbers.nbytes // 2, []
for line in open("/proc/self/smaps"):
    first, _, rest = line.partition(" ")
    if "-" in first:
        begin, end = (int(part, 16) for part in first.split("-"))
    elif first == "VmFlags:" and begin <= place < end:
        flags = rest.split()
print("hg" in flags)
"""


@pytest.mark.skipif(
    not Path("/sys/kernel/mm/transparent_hugepage/enabled").is_file(), reason="a kernel without large pages"
)
@pytest.mark.parametrize("told", [None, "0", "1"])
def test_large_pages_are_asked_for_unless_the_user_says_otherwise(told: str | None) -> None:
    given = {name: value for name, value in os.environ.items() if name != "THP_MEM_ALLOC_ENABLE"}
    given |= {} if told is None else {"THP_MEM_ALLOC_ENABLE": told}
    run = subprocess.run([sys.executable, "-c", LARGE], env=given, capture_output=True, text=True, check=True)
    assert run.stdout.strip() == str(told != "0")


PROGRAMS = """
import sys
import astune.backbone.local
import torch
from pathlib import Path

def megabytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 2**20

torch.set_num_threads(1)
weight, states = torch.randn(16, 64), torch.randn(1200, 64)
found = []
for rows in range(1, 1200):
    torch.ops.mkldnn._linear_pointwise(states[:rows], weight, None, "none", [], "")
    if rows in (500, 1199):
        found.append(megabytes())
print(found[1] - found[0])
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_programs_of_onednn_do_not_pile_up() -> None:
    """One is written for each number of rows. Those beyond the first 500 take the places of others."""

    def more(**told: str) -> float:
        given = {name: value for name, value in os.environ.items() if not name.endswith("_CACHE_CAPACITY")}
        run = subprocess.run(
            [sys.executable, "-c", PROGRAMS], env=given | told, capture_output=True, text=True, check=True
        )
        return float(run.stdout)

    assert more() < more(ONEDNN_PRIMITIVE_CACHE_CAPACITY="1200", LRU_CACHE_CAPACITY="1200") / 3

"""Settings of a process, made before it imports torch: how threads wait, and what becomes of freed memory. The
variables of these libraries that a user has set stay as they are (docs/performance.md)."""

from __future__ import annotations

import ctypes
import os
import sys

LOOKS = 3000
"""Times that a thread of torch looks for its next operator before it sleeps."""
KEPT = 256 * 2**20
"""Bytes of freed memory that a process keeps."""
PROGRAMS = 64
"""Programs that oneDNN keeps: it writes one for each shape of a product, and every number of rows is another."""
APART = 32 * 2**20
"""Bytes from which on a tensor has pages of its own, which are given back with it: glibc's own value, once it has seen
tensors of that size."""
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of malloc.h


def prepare() -> None:
    wait_awake_for_a_moment()
    take_large_pages()
    keep_few_programs()
    keep_freed_memory()


def wait_awake_for_a_moment() -> None:
    """Threads of torch that wait for work by spinning make a run several times slower as soon as anything else uses the
    processor; to fall asleep after every operator and be woken for the next takes a third of an update. So they spin
    for a little while. It has to be said before torch is imported."""
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
        os.environ.setdefault("GOMP_SPINCOUNT", str(LOOKS))


def take_large_pages() -> None:
    """Weights that are read whole for each token are read in pages of 2 MiB, where Linux gives some on
    request: PyTorch asks for them if it is told so before its first tensor."""
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")


def keep_few_programs() -> None:
    """A program takes 0.5 MB, and 0.3 ms to write. A micro-batch needs some twenty, and of as many rows there will
    hardly be another. By itself oneDNN keeps 1,024, and so does PyTorch, each for itself."""
    for name in ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"):
        os.environ.setdefault(name, str(PROGRAMS))


def keep_freed_memory() -> None:
    """An update frees all that it computed, and the next needs it again. By itself glibc gives it back to the system in
    between, and gets it again page by page, each written with zeros: a twentieth of an update of a small model. Other
    allocators have no `mallopt`, or one that does nothing."""
    told = any(name.startswith("MALLOC_") or name == "GLIBC_TUNABLES" for name in os.environ)
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None and not told:
        mallopt(_MMAP_THRESHOLD, APART)
        mallopt(_TRIM_THRESHOLD, KEPT)

"""`torch.cpu` with the calls that verl makes of `torch.cuda`. A CPU has no memory of its own to count or to empty."""

from __future__ import annotations

from typing import Any

import torch
from torch.cpu import (
    Event,
    Stream,
    StreamContext,
    current_device,
    current_stream,
    device_count,
    is_available,
    is_initialized,
    set_device,
    stream,
    synchronize,
)

__all__ = [
    "Event",
    "Stream",
    "StreamContext",
    "current_device",
    "current_stream",
    "device_count",
    "is_available",
    "is_initialized",
    "set_device",
    "stream",
    "synchronize",
]


def count_nothing(device: Any = None) -> int:
    return 0


def do_nothing(device: Any = None) -> None: ...


max_memory_allocated = max_memory_reserved = memory_allocated = memory_reserved = count_nothing
reset_peak_memory_stats = empty_cache = ipc_collect = do_nothing


def mem_get_info(device: Any = None) -> tuple[int, int]:
    return 0, 0


def get_device_name(device: Any = None) -> str:
    return "CPU"


def manual_seed(seed: int) -> None:
    torch.manual_seed(seed)


def get_rng_state(device: Any = None) -> torch.Tensor:
    return torch.get_rng_state()


def set_rng_state(state: torch.Tensor, device: Any = None) -> None:
    torch.set_rng_state(state)

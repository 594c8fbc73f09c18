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


def max_memory_allocated(device: Any = None) -> int:
    return 0


def max_memory_reserved(device: Any = None) -> int:
    return 0


def memory_allocated(device: Any = None) -> int:
    return 0


def memory_reserved(device: Any = None) -> int:
    return 0


def mem_get_info(device: Any = None) -> tuple[int, int]:
    return 0, 0


def reset_peak_memory_stats(device: Any = None) -> None: ...


def empty_cache() -> None: ...


def ipc_collect() -> None: ...


def get_device_name(device: Any = None) -> str:
    return "CPU"


def manual_seed(seed: int) -> None:
    torch.manual_seed(seed)


def get_rng_state(device: Any = None) -> torch.Tensor:
    return torch.get_rng_state()


def set_rng_state(state: torch.Tensor, device: Any = None) -> None:
    torch.set_rng_state(state)

"""What both benchmarks beside TRL give its `GRPOConfig`."""

from __future__ import annotations

from typing import Any

ON_A_CPU: dict[str, Any] = {
    "use_cpu": True,
    "bf16": False,
    "gradient_checkpointing": False,
    "logging_steps": 1,
    "save_strategy": "no",
    "report_to": [],
    "disable_tqdm": True,
    "dataloader_pin_memory": False,
}
"""In float32, with nothing kept or shown on the way."""

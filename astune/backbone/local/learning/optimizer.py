"""The optimizers of `astune.trainer.optimizer`, all of them AdamW (arXiv 1711.05101).

| name | bytes per trained number | how |
| --- | --- | --- |
| adamw | 8 | two averages in float32 |
| adamw_fused | 8 | the same in one pass over the weights: faster on CUDA, not the same bits |
| adamw_8bit | 2 | both averages in 8 bits (arXiv 2110.02861), by bitsandbytes; small tensors in float32 |
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from typing import Any

import torch

from astune.config.schema import TrainerConfig
from astune.errors import MissingDependency


def make_optimizer(parameters: Iterable[torch.nn.Parameter], trainer: TrainerConfig) -> torch.optim.Optimizer:
    """Make the optimizer. Raises MissingDependency where its library is not installed."""
    kind, betas = trainer.optimizer, trainer.betas
    if kind == "adamw_8bit":
        made: torch.optim.Optimizer = _import_bitsandbytes().optim.AdamW8bit(
            parameters, lr=trainer.learning_rate, betas=betas, weight_decay=trainer.weight_decay
        )
        return made
    return torch.optim.AdamW(
        parameters,
        lr=trainer.learning_rate,
        betas=betas,
        weight_decay=trainer.weight_decay,
        fused=True if kind == "adamw_fused" else None,
    )


def _import_bitsandbytes() -> Any:
    try:
        return import_module("bitsandbytes")
    except ImportError as error:
        raise MissingDependency(
            "astune.trainer.optimizer: adamw_8bit needs bitsandbytes, which is not installed: pip install bitsandbytes"
        ) from error

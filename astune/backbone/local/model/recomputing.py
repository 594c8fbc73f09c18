"""Activations that are computed once more in the backward pass, with no other change to what is computed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from transformers.modeling_layers import GradientCheckpointingLayer

from astune.errors import ModelError

RANDOM = ("dropout", "jitter", "layerdrop")
"""Words in the names of numbers by which a module in training mode does something at random."""


def recompute(model: Any) -> None:
    """Let each layer of `model` keep its input only, within `recomputing`. Raises ModelError where it does not know
    how."""
    try:
        model.activation_checkpointing_enable()
    except ValueError as error:
        raise ModelError(f"astune.model.gradient_checkpointing: {error}") from error
    if not _layers(model):
        raise ModelError(
            f"astune.model.gradient_checkpointing: {type(model).__name__} has no layer that can be computed again"
        )


@contextmanager
def recomputing(model: Any) -> Iterator[None]:
    """transformers recomputes layers in training mode only. Here they alone are in that mode: what is within them, and
    what they do not hold, computes as in sampling."""
    layers = _layers(model)
    for layer in layers:
        layer.training = True
    try:
        yield
    finally:
        for layer in layers:
            layer.training = False


def _layers(model: Any) -> list[Any]:
    return [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]


def silence_dropout(model: Any) -> list[str]:
    """Set to 0 every probability by which a module drops or shakes numbers in training mode, as layers in that mode may
    do themselves; names of what was not 0, by module class. The configuration that is saved keeps them."""
    found = set()
    for module in model.modules():
        if isinstance(module, torch.nn.modules.dropout._DropoutNd) and module.p:
            found.add(f"{type(module).__name__}.p = {module.p}")
            module.p = 0.0
        for name, value in list(vars(module).items()):
            if isinstance(value, float) and value and any(word in name for word in RANDOM):
                found.add(f"{type(module).__name__}.{name} = {value}")
                setattr(module, name, 0.0)
    return sorted(found)

"""Products with weights on a CPU, by oneDNN where PyTorch has something slower: on processors of AMD.

For float32 PyTorch takes MKL, which reaches less than half of what oneDNN does there. In bfloat16 it takes oneDNN, but
with weights that are laid out anew for each product: a `Product` does it once. The smallest products are MKL's: in
bfloat16 too, by a copy of the weight in float32. What is computed differs in the last bits alone. On processors of
Intel nothing of this was measured, and PyTorch computes as it does.
"""

from __future__ import annotations

from functools import cache, partial
from typing import Any, Protocol

import torch
from torch import nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from astune.support.machine_memory import is_of_amd

WORTH_A_CALL = 2**20
"""Multiplications, three rows more counted, from which on it is quicker. A call of oneDNN takes 10 µs more than one of
MKL, and another 20 where it has to wake a thread, which MKL does not for so little; one with a weight as it is takes a
little more again."""
AMX = torch.cpu._is_amx_tile_supported()
ROWS = 64
"""Number of rows that weights are laid out for. Another number loses nothing by it."""


@cache
def by_onednn() -> frozenset[torch.dtype]:
    """List the precisions in which oneDNN computes here in place of PyTorch's own choice."""
    if not torch.backends.mkldnn.is_available() or not is_of_amd():  # type: ignore[no-untyped-call]
        return frozenset()
    in_bfloat16 = torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return frozenset((torch.float32, torch.bfloat16) if in_bfloat16 else (torch.float32,))


class LinearLayer(Protocol):
    """A layer with a weight (outputs, inputs), and a bias (outputs,) or None."""

    weight: torch.Tensor
    bias: torch.Tensor | None


class Product:
    """The product of hidden states and a linear layer, without gradients. `renew` is to be called once its weight
    changed: there may be a copy of it."""

    def __init__(self, layer: LinearLayer) -> None:
        self.layer = layer
        self.renew()

    def renew(self) -> None:
        self._laid_out: torch.Tensor | None = None
        self._wide: torch.Tensor | None = None
        self._place = self.layer.weight.data_ptr()

    def of(self, states: torch.Tensor) -> torch.Tensor:
        weight, bias = self.layer.weight, self.layer.bias
        if self._place != weight.data_ptr():  # as by `model.to`
            self.renew()
        if _is_worth_it(states, weight):
            if self._laid_out is None:
                self._laid_out = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), ROWS)
            return _product(states, self._laid_out, bias)
        if weight.dtype != torch.bfloat16 or weight.device.type != "cpu" or weight.dtype not in by_onednn():
            return linear(states, weight, bias)
        if self._wide is None:
            self._wide = weight.detach().float()
        wide = functional.linear(states.float(), self._wide, bias if bias is None else bias.float())
        return wide.to(states.dtype)


def linear(states: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """The same with a weight as it is. One row in bfloat16 is a product of its own on a CPU with AMX, where PyTorch's
    for several rows takes twice as long; on others it is the other way round."""
    if weight.dtype == torch.float32 and _is_worth_it(states, weight):
        return _product(states, weight, bias)
    if states.dtype != torch.bfloat16 or states.numel() != weight.shape[1] or states.device.type != "cpu" or not AMX:
        return functional.linear(states, weight, bias)
    row = states.reshape(-1)
    product = torch.mv(weight, row) if bias is None else torch.addmv(bias, weight, row)
    return product.view(*states.shape[:-1], -1)


def _product(states: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    product: torch.Tensor = torch.ops.mkldnn._linear_pointwise(states, weight, bias, "none", [], "")
    return product


def _is_worth_it(states: torch.Tensor, weight: torch.Tensor) -> bool:
    """True if a product is large enough for oneDNN."""
    if weight.dtype not in by_onednn() or weight.device.type != "cpu":
        return False
    rows = states.numel() // max(weight.shape[1], 1)
    return rows > 0 and (rows + 3) * weight.numel() >= WORTH_A_CALL


def quicken_linear(model: nn.Module) -> int:
    """Let the linear layers of `model`, in float32 on a CPU, compute by oneDNN where that is quicker; how many."""
    if torch.float32 not in by_onednn():
        return 0
    layers = [module for module in model.modules() if type(module) is nn.Linear]
    for layer in layers:
        layer.forward = partial(_forward, layer)  # type: ignore[method-assign]  # a copy of the model has a copy of it
    return len(layers)


def _forward(layer: nn.Linear, states: torch.Tensor) -> torch.Tensor:
    weight, bias = layer.weight, layer.bias
    plain = states.dtype == weight.dtype == torch.float32 and not torch.is_autocast_enabled("cpu")
    if not plain or not _is_worth_it(states, weight):
        return functional.linear(states, weight, bias)
    product: torch.Tensor = _Linear.apply(states, weight, bias)  # type: ignore[no-untyped-call]
    return product


class _Linear(torch.autograd.Function):
    """`states` (..., inputs) times `weight` (outputs, inputs), and `bias` (outputs,)."""

    @staticmethod
    def forward(context: Any, states: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        context.save_for_backward(states, weight)
        return _product(states, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(context: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        states, weight = context.saved_tensors
        of_states, of_weight, of_bias = context.needs_input_grad
        # a number that is repeated by a stride of 0, as the gradient of a sum is, would be computed by a slow path
        rows = gradient.reshape(-1, gradient.shape[-1]).contiguous()
        return (
            _product(rows, weight.T).view(states.shape) if of_states else None,
            _compute_weight_gradient(rows, states.reshape(-1, states.shape[-1]).contiguous()) if of_weight else None,
            rows.sum(0) if of_bias else None,
        )


def _compute_weight_gradient(gradient: torch.Tensor, states: torch.Tensor) -> torch.Tensor:
    """(outputs, inputs). oneDNN is quicker where the larger one stands in the weight's place."""
    if gradient.shape[1] > states.shape[1]:
        return _product(states.T, gradient.T).T
    return _product(gradient.T, states.T)

"""RMSNorm in a third of the passes over the numbers that its parts take in transformers.

There it is five operators, and ten in the backward pass, each of which reads and writes all numbers. In float32 on a
CPU a layer norm is one operator each way. Told that the mean is zero, its backward pass is that of RMSNorm but for one
term: it takes from the gradient of each row its mean, which is put back here.

On a GPU PyTorch has one operator for it. Under autocast it gives what is computed next in half precision, as in
sampling: transformers' own gives float32, which every layer behind it would turn into half precision by itself, and in
which the positions would be applied.
"""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import torch
from torch import nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from astune.backbone.local.model.attention import find_precision

TOLERANCE = 1e-5
"""Largest difference to the module's own, of the largest number."""
PROBE = (2.0, 1.0, 1e-3, 1e-6)
"""Sizes of the rows by which a norm is known: with the last two, what is added to the square counts."""


def quicken(model: nn.Module) -> int:
    """Let the norms of `model`, in float32 on a CPU, compute as above, and others as they do; how many. Nothing is
    believed of a module: it is an RMSNorm if it computes the same."""
    norms = [module for module in model.modules() if _is_rms_norm(module)]
    for norm in norms:
        norm.forward = partial(_forward, norm)  # a copy of the model has a copy of it
    return len(norms)


def fuse(model: nn.Module) -> int:
    """Let the norms of `model`, in float32 or half precision on a GPU, compute as above, and cosines and sines of
    positions be in the precision of what they turn; how many norms."""
    norms = [module for module in model.modules() if _is_rms_norm(module, device="cuda")]
    for norm in norms:
        norm.forward = partial(_forward_fused, norm)
    for name, module in model.named_modules():
        if name.endswith("rotary_emb"):
            module.forward = partial(_forward_rotary, module)
    return len(norms)


def _forward_fused(norm: Any, states: torch.Tensor) -> torch.Tensor:
    precision, weight = find_precision(states), norm.weight
    with torch.autocast(states.device.type, enabled=False):  # it would compute in float32 throughout
        normed = functional.rms_norm(states, weight.shape, weight.to(states.dtype), norm.variance_epsilon)
    return normed.to(precision)


def _forward_rotary(rotary: Any, states: torch.Tensor, *more: Any, **named: Any) -> Any:
    found = type(rotary).forward(rotary, states, *more, **named)
    precision = find_precision(states)
    return tuple(each.to(precision) for each in found) if isinstance(found, tuple) else found


def scales(states: torch.Tensor, eps: float) -> torch.Tensor:
    """One over the root of the mean square of each row of `states` (..., n), as (..., 1), in float32 on a CPU."""
    length = torch.linalg.vector_norm(states, dim=-1, keepdim=True)
    return torch.addcmul(_make_constant(eps), length, length, value=1 / states.shape[-1]).rsqrt_()


@cache
def _make_constant(number: float) -> torch.Tensor:
    """It is made once: to make it takes as long as what is computed with it."""
    with torch.inference_mode(False):
        return torch.tensor(number)


def _is_rms_norm(module: Any, device: str = "cpu") -> bool:
    """True if a module has one weight for each number of a row, and computes an RMSNorm."""
    weight, eps = module._parameters.get("weight"), vars(module).get("variance_epsilon")
    if set(module._parameters) != {"weight"} or module._buffers or module._modules or not isinstance(eps, float):
        return False
    if weight is None or weight.ndim != 1 or weight.device.type != device:
        return False
    if weight.dtype != torch.float32 and device == "cpu":
        return False
    sizes = torch.tensor(PROBE)[:, None]
    rows = sizes * torch.sin(torch.arange(1, 4 * len(weight) + 1)).view(4, -1) + sizes / 3
    rows = rows.to(weight)
    try:
        with torch.no_grad():
            own = module(rows)
            found = _normalize(rows, weight, eps) if device == "cpu" else _forward_fused(module, rows)
            tolerance = max(TOLERANCE, 2 * torch.finfo(own.dtype).eps)
            return bool((own - found).abs().max() <= tolerance * own.abs().max())
    except (TypeError, ValueError, RuntimeError):  # it takes something else
        return False


def _forward(norm: Any, states: torch.Tensor) -> torch.Tensor:
    if states.dtype == norm.weight.dtype == torch.float32:
        return _normalize(states, norm.weight, norm.variance_epsilon)
    own: torch.Tensor = type(norm).forward(norm, states)  # a copy of the model in another precision
    return own


def _normalize(states: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    normed: torch.Tensor = _RMSNorm.apply(states, weight, eps)  # type: ignore[no-untyped-call]
    return normed


class _RMSNorm(torch.autograd.Function):
    """`states` (..., n) over the root of their mean square, times `weight` (n,)."""

    @staticmethod
    def forward(context: Any, states: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        size = states.shape[-1]
        length = torch.linalg.vector_norm(states, dim=-1, keepdim=True)
        scale = length.square_().div_(size).add_(eps).rsqrt_()  # in the order of transformers' own
        context.save_for_backward(states, weight, scale)
        normed: torch.Tensor = (states * scale).mul_(weight)
        return normed

    @staticmethod
    @once_differentiable
    def backward(context: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor | None, None]:
        states, weight, scale = context.saved_tensors
        size = states.shape[-1]
        wanted = [*context.needs_input_grad[:2], False]
        of_states, of_weight, _ = torch.ops.aten.native_layer_norm_backward(
            gradient, states, [size], torch.zeros_like(scale), scale, weight, None, wanted
        )
        if of_states is not None:
            of_states.add_((gradient @ weight)[..., None].mul_(scale).div_(size))
        return of_states, of_weight, None

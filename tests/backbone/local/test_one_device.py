"""Tensors of a decode step and of a micro-batch are all on the model's device, and nothing is read back from it.

The device is `meta`, which computes shapes and holds no numbers: reading one is an error, on a machine without a GPU
too. Between a GPU and the host such a read waits until all that was ordered is done.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from astune.backbone.local.learning.batch import micro_batches
from astune.backbone.local.learning.forward import predict
from astune.backbone.local.sampling.draw import draw
from astune.backbone.local.sampling.kv_cache import KVCache
from tests.backbone.local.families import make_family
from tests.backbone.local.test_families import random_samples

META = torch.device("meta")
COPIES = ("aten._to_copy.default", "aten.copy_.default")


class OneDevice(TorchDispatchMode):
    """Fails for an operation on tensors of two devices; a single number may come from the host, and copies are there
    to bring more."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor) and leaf.ndim]
        devices = {str(leaf.device) for leaf in given}
        if len(devices) > 1 and str(func) not in COPIES:
            raise AssertionError(f"{func} has tensors of {' and '.join(sorted(devices))}")
        return func(*args, **(kwargs or {}))


@pytest.fixture(params=["qwen3", "gemma2", "mistral"])
def elsewhere(request: pytest.FixtureRequest) -> Any:
    """Models with sliding windows and capped scores too."""
    return make_family(request.param).model.to(META)


def test_a_decode_step_reads_nothing_back(elsewhere: Any) -> None:
    cache = KVCache(4, torch.bfloat16, META)
    model = elsewhere.to(torch.bfloat16)
    texts = [np.arange(5), np.arange(9), np.arange(9)]
    with OneDevice(), torch.inference_mode():
        cache.extend(model, [0, 1, 3], texts)
        cache.copy_prefix(1, 2, 6)
        for pending in ({0: 1, 1: 2, 2: 3, 3: 4}, {0: 1, 3: 4}, {3: 2}):
            logits = cache.step(model, pending)
            n = len(pending)
            heats, masses, most = [1.0, 0.5, 0.0, 2.0], [1.0, 0.9, 1.0, 1.0], [0, 3, 0, 0]
            ids, logprobs = draw(logits, heats[:n], masses[:n], most[:n], [0.5] * n)
            assert ids.shape == logprobs.shape == (n,) and ids.device == META


def test_a_micro_batch_is_computed_where_the_model_is(elsewhere: Any) -> None:
    with OneDevice():
        for batch in micro_batches(random_samples(), 60, META):
            found = predict(elsewhere, batch, entropy_gradient=True)
            (found.logprob.sum() + found.entropy(batch).sum()).backward()
    assert all(parameter.grad.device == META for parameter in elsewhere.parameters() if parameter.grad is not None)


def test_a_tensor_that_was_left_on_the_host_is_noticed() -> None:
    with OneDevice(), pytest.raises(AssertionError, match="cpu and meta"):
        torch.zeros(3, device=META) + torch.zeros(3)
    with OneDevice(), pytest.raises(RuntimeError, match="meta"):
        bool((torch.zeros(3, device=META) > 0).any())

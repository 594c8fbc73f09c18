"""What a rank saves and loads of one of verl's engines, together with all others: the weights as Hugging Face has them,
in float32, and the optimizer in shards, which any number of ranks goes on from.

verl's own checkpoints belong to one number of workers, and its exporter writes bfloat16, from which training would not
go on as it was.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors import SafetensorError
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)

from astune.monitor.disk import follow_umask

OPTIMIZER = "optimizer"


def save_weights(engine: Any, folder: str) -> None:
    """Written by the first rank."""
    weights = dict(whole_weights(engine))
    if dist.get_rank() == 0:
        engine.module.save_pretrained(folder, state_dict=weights)
        follow_umask(Path(folder))


def load_weights(engine: Any, folder: str, kind: Any) -> None:
    """Take over what `save_weights` wrote of a model of `kind`, one of transformers' Auto classes. Raises OSError where
    that is broken."""
    if not os.path.isdir(folder):
        raise OSError(f"there is no folder {folder}")
    weights = _weights_in(folder, kind) if dist.get_rank() == 0 else {}
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    set_model_state_dict(engine.module, weights, options=options)


def save_optimizer(engine: Any, folder: str) -> None:
    """Every rank writes its shards."""
    if engine.optimizer.state:  # else torch would take a step to have something to save, and count it
        state = get_optimizer_state_dict(engine.module, engine.optimizer)
        state_dict_saver.save(state, checkpoint_id=os.path.join(folder, OPTIMIZER))


def load_optimizer(engine: Any, folder: str) -> None:
    """Raises OSError where what `save_optimizer` wrote is broken."""
    engine.optimizer.state.clear()
    shards = os.path.join(folder, OPTIMIZER)
    if not os.path.isdir(shards):
        return
    state = get_optimizer_state_dict(engine.module, engine.optimizer)
    try:
        state_dict_loader.load(state, checkpoint_id=shards)
    except CheckpointException as error:
        raise OSError(f"{shards} does not load: {error}") from error
    set_optimizer_state_dict(engine.module, engine.optimizer, state)


def whole_weights(engine: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Every tensor of the model in float32, by its name on the disk; kept by the first rank alone. All ranks have to go
    through it together. Of tied tensors there is the first, as in the folders that transformers writes."""
    names = {name for name, _ in engine.module.named_parameters()}
    tied = {name for name, _ in engine.module.named_parameters(remove_duplicate=False)} - names
    tensors, _ = engine.get_per_tensor_param()
    for name, tensor in tensors:
        if dist.get_rank() == 0 and name not in tied:
            yield name, tensor.detach().to("cpu", torch.float32, copy=True)


def _weights_in(folder: str, kind: Any) -> dict[str, Any]:
    """Raises OSError where a tensor is missing or of another shape: transformers would draw it at random."""
    try:
        loaded: Any = kind.from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
    except SafetensorError as error:
        raise OSError(f"the weights in {folder} do not load: {error}") from error
    model, found = loaded
    if lacking := sorted(found["missing_keys"]):
        raise OSError(f"the weights in {folder} lack {', '.join(lacking)}")
    weights: dict[str, Any] = model.state_dict()
    return weights

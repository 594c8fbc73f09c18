"""The adapter that verl's workers train in the place of all weights: each rank has its shards of it, as of the frozen
base below it."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from peft import get_peft_model_state_dict
from torch.distributed.tensor import distribute_tensor
from verl.utils.device import get_device_id
from verl.utils.model import convert_weight_keys

from astune.backbone.lora.folder import base_mark, check_shapes, read_adapter, save_adapter
from astune.backbone.lora.settings import SOLE, base_digest, locate_base
from astune.config.schema import LoraConfig

WRAPPED = "base_model.model."
"""Begins the names that the base's parameters have below peft's model."""


class ShardedAdapter:
    """The adapter in `module`, peft's model under FSDP2. All ranks call its methods together. `path` names the base;
    `begin` is the folder of an adapter to begin with, in the place of the one that was drawn."""

    def __init__(self, module: Any, lora: LoraConfig, path: str, begin: Path | None) -> None:
        self._module = module
        self._settings = copy.copy(module.peft_config[SOLE])
        self._settings.base_model_name_or_path = locate_base(path, Path(path))
        own = {name: value for name, value in module.named_parameters() if "lora_" in name}
        found = get_peft_model_state_dict(module, own, adapter_name=SOLE, save_embedding_layers=False)
        self._parameters: dict[str, Any] = {name: found[name] for name in sorted(found)}
        self._mark = base_mark(lora.base, base_digest(_base(module)))
        if begin is not None:
            self.load(begin)
        self._begun = self._shards()

    def tensors(self) -> dict[str, torch.Tensor]:
        """The whole tensors, under the names that they have in peft's file."""
        return {name: whole(parameter).cpu() for name, parameter in self._parameters.items()}

    def save(self, directory: Path) -> None:
        """Write the adapter as a folder of peft's, by the first rank."""
        tensors = self.tensors()
        if dist.get_rank() == 0:
            save_adapter(directory, tensors, self._settings, self._mark)

    def load(self, directory: Path) -> None:
        """Take over an adapter that `save` wrote, or the backbone `local`, bit for bit. Raises ModelError for one of
        another base or with other settings."""
        weights = read_adapter(directory, self._settings, self._mark)
        check_shapes(directory, weights, self._parameters)
        sent = [
            distribute_tensor(weights[name].to(get_device_id()), parameter.device_mesh, parameter.placements)
            for name, parameter in self._parameters.items()
        ]
        self._put([tensor.to_local() for tensor in sent])

    def list_merged(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Every tensor of the base by its own name, with the adapter in it. All ranks go through it together."""
        scaling = self._settings.lora_alpha / self._settings.r
        for name, weight in _base(self._module):
            layer = WRAPPED + name.removesuffix(".weight")
            low, high = (self._parameters.get(f"{layer}.lora_{part}.weight") for part in "AB")
            if low is not None and high is not None:
                weight = weight + scaling * whole(high) @ whole(low)
            yield from convert_weight_keys({name: weight}, self._module).items()

    @contextmanager
    def as_it_began(self) -> Iterator[None]:
        """The adapter is the one that the run began with in this block: that is the reference. A new one adds nothing
        to the base."""
        now = self._shards()
        self.go_back()
        try:
            yield
        finally:
            self._put(now)

    def go_back(self) -> None:
        """Be again the adapter that the run began with."""
        self._put(self._begun)

    @torch.no_grad()
    def _shards(self) -> list[torch.Tensor]:
        return [parameter.to_local().to("cpu", copy=True) for parameter in self._parameters.values()]

    @torch.no_grad()
    def _put(self, shards: Sequence[torch.Tensor]) -> None:
        """In place, as FSDP keeps views of the shards."""
        for parameter, shard in zip(self._parameters.values(), shards, strict=True):
            parameter.to_local().copy_(shard)


def whole(parameter: Any) -> torch.Tensor:
    """The whole tensor of a parameter, which may wait off the device."""
    tensor: torch.Tensor = parameter.detach().to(get_device_id()).full_tensor()
    return tensor


def _base(module: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """The base's parameters by the names that they have without an adapter."""
    for name, parameter in module.named_parameters():
        if "lora_" not in name:
            yield name.removeprefix(WRAPPED).replace(".base_layer.", "."), whole(parameter)

"""verl's training worker with ASTune's loss, and checkpoints that any number of workers goes on from.

    folder/config.json, model*.safetensors, tokenizer   the model as Hugging Face has it, in float32
    folder/adapter_*                                    in its place the adapter as peft has it, where one is trained
    folder/optimizer/                                   torch's distributed checkpoint of the optimizer, in shards

verl's own checkpoints belong to one number of workers, and its exporter writes bfloat16, from which training would not
go on as it was.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from omegaconf import OmegaConf
from safetensors import SafetensorError
from tensordict import TensorDict
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from transformers import AutoModelForCausalLM
from verl.single_controller.base.decorator import Dispatch, make_nd_compute_dataproto_dispatch_fn, register
from verl.utils.config import omega_conf_to_dataclass
from verl.utils.device import get_device_name
from verl.utils.distributed import initialize_global_process_group_ray
from verl.workers.config import TrainingWorkerConfig
from verl.workers.engine.fsdp.utils import unfuse_moe_params
from verl.workers.engine_workers import TrainingWorker
from verl.workers.engine_workers_tinker import TinkerActorRolloutRefWorker

from astune.backbone.lora.settings import begun_adapter
from astune.backbone.verl.trainer.adapter import ShardedAdapter
from astune.backbone.verl.trainer.loss import astune_loss
from astune.backbone.verl.trainer.settings import own_tokens
from astune.config.algorithm import AlgorithmConfig
from astune.config.schema import ModelConfig

OPTIMIZER = "optimizer"


class AstuneWorker(TinkerActorRolloutRefWorker):  # type: ignore[misc]
    """A rank: its share of the weights that are trained, of their optimizer, and of the reference if there is one, in
    whose place there may be a `teacher`, a folder or a hub id. With `model.lora` an adapter is trained, drawn from
    `seed`, and the reference needs no weights of its own."""

    def __init__(
        self,
        config: Any,
        role: str,
        algorithm: AlgorithmConfig,
        model: ModelConfig,
        seed: int,
        teacher: str | None = None,
        **more: Any,
    ) -> None:
        super().__init__(config=config, role=role, **more)
        self._algorithm, self._model, self._seed = algorithm, model, seed
        self.adapter: ShardedAdapter | None = None
        if teacher is not None or (algorithm.needs_reference and model.lora.rank is None):
            self.role = f"{role}_ref"  # verl has no role "actor_ref", but goes by the words in it
            self._is_ref = True
        if teacher is not None:
            self.ref_worker_cls = partial(_training_worker_of, self.config.model, teacher)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)  # type: ignore[untyped-decorator]
    def init_model(self) -> None:
        if get_device_name() == "cpu":
            # by itself verl would ask for one backend of the CPU and one of the device, which are the same here
            initialize_global_process_group_ray(backend="cpu:gloo")
        torch.manual_seed(self._seed)
        super().init_model()
        engine = self.actor.engine
        if not self._algorithm.entropy_bonus:  # else it would keep tensors as large as the logits for a gradient
            engine.compute_entropy_from_logits = torch.no_grad()(engine.compute_entropy_from_logits)
        if self._model.lora.rank is not None:
            begin = begun_adapter(self._model)
            self.adapter = ShardedAdapter(self._module(), self._model.lora, self.config.model.path, begin)
            if not self._is_rollout:  # verl would send the adapter nowhere, or all weights in bfloat16
                engine.get_per_tensor_param = self._merged
        if self.ref is None:
            self.set_dispatch_collect(mesh_name="ref", **self.actor.get_dispatch_collect())
        self.set_loss(self._algorithm)

    @register(dispatch_mode=make_nd_compute_dataproto_dispatch_fn(mesh_name="ref"))  # type: ignore[untyped-decorator]
    def compute_ref_log_prob(self, data: TensorDict) -> TensorDict | None:
        """Log-probabilities under the weights that the run began with, or under the teacher's."""
        told: TensorDict | None
        if self.ref is not None:
            told = super().compute_ref_log_prob(data)
            return told
        assert self.adapter is not None, "AlgorithmConfig.needs_reference says which methods have one"
        with self.adapter.as_it_began():
            told = self.compute_log_prob(data)
            return told

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)  # type: ignore[untyped-decorator]
    def set_loss(self, algorithm: AlgorithmConfig) -> None:
        """Minimise the loss of `algorithm` from now on."""
        self.actor.set_loss_fn(partial(astune_loss, algorithm))

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)  # type: ignore[untyped-decorator]
    def save_all(self, folder: str) -> None:
        """Write the model, or its adapter, and the optimizer. Every rank writes its shards of the optimizer; the first
        the rest."""
        if self.adapter is None:
            self._save_model(folder)
        else:
            self.adapter.save(Path(folder))
        optimizer = self.actor.engine.optimizer
        if optimizer.state:  # else torch would take a step to have something to save, and count it
            state = get_optimizer_state_dict(self._module(), optimizer)
            state_dict_saver.save(state, checkpoint_id=os.path.join(folder, OPTIMIZER))
        dist.barrier()

    def _merged(self, **how: Any) -> tuple[Iterator[tuple[str, torch.Tensor]], None]:
        """What servers in processes of their own get: all weights, with the adapter in them."""
        assert self.adapter is not None
        return unfuse_moe_params(self.adapter.merged(), self._module().config.model_type), None

    def _save_model(self, folder: str) -> None:
        weights = dict(self.whole_weights())
        if dist.get_rank() == 0:
            self._module().save_pretrained(folder, state_dict=weights)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)  # type: ignore[untyped-decorator]
    def load_all(self, folder: str) -> None:
        """Go on from what `save_all` wrote, by any number of ranks. Raises OSError where that is broken, ModelError
        where it is the adapter of another model."""
        module, optimizer = self._module(), self.actor.engine.optimizer
        if self.adapter is None:
            weights = _weights_in(folder) if dist.get_rank() == 0 else {}
            options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
            set_model_state_dict(module, weights, options=options)
        else:
            self.adapter.load(Path(folder))
        optimizer.state.clear()
        shards = os.path.join(folder, OPTIMIZER)
        if os.path.isdir(shards):
            state = get_optimizer_state_dict(module, optimizer)
            try:
                state_dict_loader.load(state, checkpoint_id=shards)
            except CheckpointException as error:
                raise OSError(f"{shards} does not load: {error}") from error
            set_optimizer_state_dict(module, optimizer, state)
        dist.barrier()

    def _module(self) -> Any:
        return self.actor.engine.module

    def whole_weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Every tensor of the model in float32, by its name on the disk; kept by the first rank alone. All ranks have
        to go through it together. Of tied tensors there is the first, as in the folders that transformers writes."""
        tied = _tied(self._module())
        tensors, _ = self.actor.engine.get_per_tensor_param()
        for name, tensor in tensors:
            if dist.get_rank() == 0 and name not in tied:
                yield name, tensor.detach().to("cpu", torch.float32, copy=True)


def _training_worker_of(model: Any, path: str, config: TrainingWorkerConfig) -> TrainingWorker:
    """verl's worker with another model than `model` says: verl itself has the reference in that of the policy."""
    own = OmegaConf.merge(model, {"path": path, "override_config": own_tokens(path), "lora_rank": 0})
    return TrainingWorker(replace(config, model_config=omega_conf_to_dataclass(own)))


def _tied(module: Any) -> set[str]:
    """The names of parameters that have another name before."""
    return {name for name, _ in module.named_parameters(remove_duplicate=False)} - {
        name for name, _ in module.named_parameters()
    }


def _weights_in(folder: str) -> dict[str, Any]:
    """Raises OSError where a tensor is missing or of another shape: transformers would draw it at random."""
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
    except SafetensorError as error:
        raise OSError(f"the weights in {folder} do not load: {error}") from error
    model, found = loaded
    if lacking := sorted(found["missing_keys"]):
        raise OSError(f"the weights in {folder} lack {', '.join(lacking)}")
    weights: dict[str, Any] = model.state_dict()
    return weights

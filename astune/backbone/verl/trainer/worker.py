"""verl's training worker with ASTune's loss, and checkpoints that any number of workers goes on from.

folder/config.json, model*.safetensors, tokenizer   the model as Hugging Face has it, in float32
folder/adapter_*                                    in its place the adapter as peft has it, where one is trained
folder/optimizer/                                   torch's distributed checkpoint of the optimizer, in shards
folder/critic/                                      model and optimizer of the critic, where there is one
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
from tensordict import TensorDict
from transformers import AutoModelForCausalLM, AutoModelForTokenClassification
from verl.single_controller.base.decorator import Dispatch, make_nd_compute_dataproto_dispatch_fn, register
from verl.utils.config import omega_conf_to_dataclass
from verl.utils.device import get_device_name
from verl.utils.distributed import initialize_global_process_group_ray
from verl.workers.config import TrainingWorkerConfig
from verl.workers.engine.fsdp.utils import unfuse_moe_params
from verl.workers.engine_workers import TrainingWorker
from verl.workers.engine_workers_tinker import TinkerActorRolloutRefWorker, TinkerTrainingWorker

from astune.backbone.local.model.recomputing import silence_dropout
from astune.backbone.lora.settings import find_begun_adapter
from astune.backbone.verl.trainer.adapter import ShardedAdapter
from astune.backbone.verl.trainer.checkpoint import load_optimizer, load_weights, save_optimizer, save_weights
from astune.backbone.verl.trainer.loss import astune_loss
from astune.backbone.verl.trainer.settings import own_tokens
from astune.backbone.verl.trainer.value_model import critic_worker
from astune.config.algorithm import AlgorithmConfig
from astune.config.rules.method import rules_of
from astune.config.schema import ModelConfig

CRITIC = "critic"
BY_RANK = make_nd_compute_dataproto_dispatch_fn(mesh_name="actor")
"""Each rank gets its share of the rows, as those of the policy are dealt out."""


class AstuneWorker(TinkerActorRolloutRefWorker):  # type: ignore[misc]
    """A rank: its share of the weights that are trained, of their optimizer, of the critic with its own if there is
    one, and of the reference, in whose place there may be a `teacher`, a folder or a hub id. With `model.lora` an
    adapter is trained, drawn from `seed`, and the reference needs no weights of its own."""

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
        self.critic: TinkerTrainingWorker | None = None
        if teacher is not None or (rules_of(algorithm).needs_reference and model.lora.rank is None):
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
        silence_dropout(engine.module)  # verl updates in training mode
        if not self._algorithm.entropy_bonus:  # else it would keep tensors as large as the logits for a gradient
            engine.compute_entropy_from_logits = torch.no_grad()(engine.compute_entropy_from_logits)
        if self._model.lora.rank is not None:
            begin = find_begun_adapter(self._model)
            self.adapter = ShardedAdapter(engine.module, self._model.lora, self.config.model.path, begin)
            if not self._is_rollout:  # verl would send the adapter nowhere, or all weights in bfloat16
                engine.get_per_tensor_param = self._list_merged
        if self.ref is None:
            self.set_dispatch_collect(mesh_name="ref", **self.actor.get_dispatch_collect())
        self.set_loss(self._algorithm)
        if rules_of(self._algorithm).needs_critic:
            self.critic = critic_worker(self.actor.config, self.config.model, self._algorithm.critic)

    @register(dispatch_mode=make_nd_compute_dataproto_dispatch_fn(mesh_name="ref"))  # type: ignore[untyped-decorator]
    def compute_ref_log_prob(self, data: TensorDict) -> TensorDict | None:
        """Log-probabilities under the weights that the run began with, or under the teacher's."""
        told: TensorDict | None
        if self.ref is not None:
            told = super().compute_ref_log_prob(data)
            return told
        assert self.adapter is not None, "MethodRules.needs_reference says which methods have one"
        with self.adapter.as_it_began():
            told = self.compute_log_prob(data)
            return told

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)  # type: ignore[untyped-decorator]
    def set_loss(self, algorithm: AlgorithmConfig) -> None:
        """Minimise the loss of `algorithm` from now on."""
        self.actor.set_loss_fn(partial(astune_loss, algorithm))

    @register(dispatch_mode=BY_RANK)  # type: ignore[untyped-decorator]
    def compute_values(self, data: TensorDict) -> TensorDict | None:
        """ "values" of each row: at each token, by the critic, that of what stands at it and before."""
        told = self._critic().infer_batch(data)
        return None if told is None else told.cpu()

    @register(dispatch_mode=BY_RANK)  # type: ignore[untyped-decorator]
    def critic_gradient(self, data: TensorDict) -> TensorDict | None:
        """Drop the critic's gradient that there is, and gather that of the batch."""
        self.drop_critic_gradient()
        told = self._critic().forward_backward(data)
        return None if told is None else told.cpu()

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)  # type: ignore[untyped-decorator]
    def critic_step(self, learning_rate: float) -> dict[str, float]:
        told: dict[str, float] = self._critic().optimizer_step({"lr": learning_rate})
        return told

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)  # type: ignore[untyped-decorator]
    def drop_critic_gradient(self) -> None:
        self._critic().optimizer_zero_grad()

    def _critic(self) -> Any:
        assert self.critic is not None, "MethodRules.needs_critic says which algorithms have one"
        return self.critic

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)  # type: ignore[untyped-decorator]
    def save_all(self, folder: str) -> None:
        """Write the model, or its adapter, the critic, and the optimizers. Every rank writes its shards of these; the
        first the rest."""
        engine, critic = self.actor.engine, os.path.join(folder, CRITIC)
        if self.adapter is None:
            save_weights(engine, folder)
        else:
            self.adapter.save(Path(folder))
        save_optimizer(engine, folder)
        if self.critic is not None:
            save_weights(self.critic.engine, critic)
            save_optimizer(self.critic.engine, critic)
        dist.barrier()

    def _list_merged(self, **how: Any) -> tuple[Iterator[tuple[str, torch.Tensor]], None]:
        """List what servers in processes of their own get: all weights, with the adapter in them."""
        assert self.adapter is not None
        return unfuse_moe_params(self.adapter.list_merged(), self.actor.engine.module.config.model_type), None

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)  # type: ignore[untyped-decorator]
    def load_all(self, folder: str) -> None:
        """Go on from what `save_all` wrote, by any number of ranks. Raises OSError where that is broken, ModelError
        where it is the adapter of another model."""
        engine, critic = self.actor.engine, os.path.join(folder, CRITIC)
        if self.adapter is None:
            load_weights(engine, folder, AutoModelForCausalLM)
        else:
            self.adapter.load(Path(folder))
        load_optimizer(engine, folder)
        if self.critic is not None:
            load_weights(self.critic.engine, critic, AutoModelForTokenClassification)
            load_optimizer(self.critic.engine, critic)
        dist.barrier()


def _training_worker_of(model: Any, path: str, config: TrainingWorkerConfig) -> TrainingWorker:
    """verl's worker with another model than `model` says: verl itself has the reference in that of the policy."""
    own = OmegaConf.merge(model, {"path": path, "override_config": own_tokens(path), "lora_rank": 0})
    return TrainingWorker(replace(config, model_config=omega_conf_to_dataclass(own)))

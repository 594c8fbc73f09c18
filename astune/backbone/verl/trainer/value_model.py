"""PPO's critic in verl's training workers: transformers' model with a value for each token, as an engine beside that of
the policy.

Its trunk is the model that the run began with, its head a linear layer that is 0 at first: the critic of the backbone
`local`. verl has an engine for such models, and builds them for GPUs with flash-attn alone, with a head that is drawn
at random.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import torch
from omegaconf import OmegaConf
from transformers import PretrainedConfig
from transformers.modeling_layers import GenericForTokenClassification
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING,
    MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING,
)
from verl.utils.config import omega_conf_to_dataclass
from verl.workers.config import TrainingWorkerConfig
from verl.workers.engine import EngineRegistry
from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithValueHead
from verl.workers.engine_workers_tinker import TinkerTrainingWorker

from astune.backbone.local.model.recomputing import silence_dropout
from astune.backbone.verl.trainer.loss import critic_loss
from astune.config.algorithm import CriticConfig
from astune.errors import ConfigError

VALUES = "astune_values"
"""What verl's registry of engines has ours under."""


@EngineRegistry.register(model_type=VALUES, backend=["fsdp", "fsdp2"], device=["cpu", "cuda", "npu"])
class ValueEngine(FSDPEngineWithValueHead):  # type: ignore[misc]
    def _build_module(self) -> Any:
        self.model_config.model_type = "language_model"  # as which verl loads what the configuration names
        module = super()._build_module()
        silence_dropout(module)
        for parameter in module.score.parameters():
            torch.nn.init.zeros_(parameter)
        # a view of something else is no fit output of a module: FSDP could not notice what is done to it in place
        module.score.register_forward_hook(lambda _, given, values: values.clone())
        return module


def value_architecture(config: PretrainedConfig) -> str:
    """The name of transformers' class with a value for each token. Raises ConfigError where it has none."""
    kind: Any = MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING.get(type(config), object)
    if type(config) in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING or not issubclass(kind, GenericForTokenClassification):
        raise ConfigError(
            f"astune.algorithm.advantage: got 'gae', but transformers has no model of type {config.model_type!r} that "
            "gives a value for each token (ForTokenClassification), which is the critic on verl; expected another "
            "advantage, or the backbone 'local'"
        )
    return str(kind.__name__)


def critic_worker(policy: TrainingWorkerConfig, model: Any, critic: CriticConfig) -> TinkerTrainingWorker:
    """A critic over the model of `model`, all of which is trained, on the ranks and with the settings of the
    `policy`."""
    config = omega_conf_to_dataclass(OmegaConf.merge(model, {"lora_rank": 0, "lora_adapter_path": None}))
    config.hf_config.architectures = [value_architecture(config.hf_config)]
    config.hf_config.num_labels = 1
    optimizer = replace(policy.optimizer_config, lr=critic.learning_rate)
    worker = TinkerTrainingWorker(replace(policy, model_type=VALUES, model_config=config, optimizer_config=optimizer))
    worker.reset()
    worker.set_loss_fn(partial(critic_loss, critic))
    return worker

"""The local backbone: the training loop, with torch in this process as its engine."""

from __future__ import annotations

from typing import ClassVar

import torch

from astune.backbone.base import Backbone
from astune.backbone.local.learning.learner import LocalLearner
from astune.backbone.local.model.model import LoadedModel, load_model
from astune.backbone.local.sampling.sampler import Sampler
from astune.backbone.local.served import load_served
from astune.config.load import LoadedConfig
from astune.config.schema import AstuneConfig
from astune.context_tracker.model_dir import load_chat_format
from astune.context_tracker.prompt.chat_format import ChatFormat
from astune.rollout.rounds import Rounds
from astune.training.engine import Engine
from astune.training.start import run_training
from astune.types import RunReport


class LocalBackbone(Backbone):
    """Rollouts, learning and evaluation in one process with torch and transformers."""

    name: ClassVar[str] = "local"
    honours: ClassVar[frozenset[str]] = frozenset({"astune"})
    ignored_sections: ClassVar[frozenset[str]] = frozenset({"astune.debug", "astune.online", "trinity", "verl"})

    def run(self, loaded: LoadedConfig) -> RunReport:
        return run_training(loaded, load_engine)


def load_engine(config: AstuneConfig) -> Engine:
    """Load the model of `astune.model` for sampling and training, one beside the other or by turns."""
    if config.rollout.engine == "vllm":
        return load_served(config)
    rounds = Rounds()
    beside = config.synchronizer.style == "async"
    loaded, sampler, chat_format = load_policy(config, rounds, beside=beside)
    learner = LocalLearner(loaded, sampler, config.algorithm, config.trainer, beside=beside)
    return Engine(sampler, learner, chat_format, rounds, beside)


def load_policy(
    config: AstuneConfig, rounds: Rounds | None = None, *, beside: bool = False, chat_format: ChatFormat | None = None
) -> tuple[LoadedModel, Sampler, ChatFormat]:
    """Load the model of `astune.model`, a sampler over it, or `beside` it, over a copy, and its chat format, if that is
    not there."""
    torch.manual_seed(config.seed)
    loaded = load_model(config.model)
    if beside:
        loaded = loaded.with_copy()
    chat_format = chat_format or load_chat_format(config.model, loaded.directory)
    sampler = Sampler(
        loaded.sampling_model,
        slots=config.rollout.max_concurrent,
        context_length=loaded.context_length,
        decode=chat_format.decode,
        family=loaded.family,
        adapters=loaded.adapters,
        rounds=rounds,
    )
    return loaded, sampler, chat_format

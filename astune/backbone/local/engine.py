"""torch in this process as the engine of a run."""

from __future__ import annotations

import torch

from astune.backbone.local.learning.learner import LocalLearner
from astune.backbone.local.model.model import LoadedModel, load_model
from astune.backbone.local.sampling.sampler import Sampler
from astune.backbone.local.served import load_served
from astune.config.schema import AstuneConfig
from astune.context_tracker.model_dir import load_chat_format
from astune.context_tracker.prompt.chat_format import ChatFormat
from astune.rollout.rounds import Rounds
from astune.training.engine import Engine


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
    config: AstuneConfig, rounds: Rounds | None = None, *, beside: bool = False
) -> tuple[LoadedModel, Sampler, ChatFormat]:
    """Load the model of `astune.model`, a sampler over it, or `beside` it, over a copy, and its chat format."""
    torch.manual_seed(config.seed)
    loaded = load_model(config.model)
    if beside:
        loaded = loaded.with_copy()
    chat_format = load_chat_format(config.model, loaded.directory)
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

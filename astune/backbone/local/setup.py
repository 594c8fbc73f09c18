"""From a configuration to the parts of a run that need torch: model and sampler."""

from __future__ import annotations

from astune.backbone.local.model import LoadedModel, load_model
from astune.backbone.local.sampler import Sampler
from astune.backbone.model_dir import load_chat_format
from astune.config.schema import AstuneConfig
from astune.context_tracker.prompt.chat_format import ChatFormat


def load_policy(config: AstuneConfig) -> tuple[LoadedModel, Sampler, ChatFormat]:
    """The model of `astune.model`, a sampler over it, and its chat format."""
    loaded = load_model(config.model)
    chat_format = load_chat_format(config.model, loaded.directory)
    sampler = Sampler(
        loaded.sampling_model,
        slots=config.rollout.max_concurrent,
        context_length=loaded.context_length,
        decode=chat_format.decode,
    )
    return loaded, sampler, chat_format

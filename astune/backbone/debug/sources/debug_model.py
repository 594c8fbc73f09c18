"""Choose the model that answers in a debug run, as `astune.debug.model` says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from astune.backbone.debug.sources.endpoints import endpoint_source
from astune.backbone.debug.sources.human import HumanSource
from astune.backbone.debug.sources.scripted import ScriptedSource, read_script
from astune.backbone.debug.terminal import Terminal
from astune.config.schema import AstuneConfig
from astune.context_tracker.calls import Source
from astune.context_tracker.model_dir import load_chat_format, resolve_base_dir
from astune.context_tracker.prompt.chat_format import ChatFormat
from astune.training.rollout_setup import NoPolicy
from astune.types import Policy

if TYPE_CHECKING:
    from astune.backbone.local.model.model import LoadedModel
    from astune.backbone.local.sampling.sampler import Sampler

UNKNOWN_CONTEXT_LENGTH = 32768


@dataclass(frozen=True)
class DebugModel:
    """The model of a debug run, or its stand-in, and the chat format of the answers."""

    name: str
    """For people: "scripted (answers.yaml)", "human", "endpoint http://... (Qwen3-8B)", "tiny"."""
    policy: Policy
    """Answers where `source` is None; else only its context length counts."""
    chat_format: ChatFormat
    source: Source | None = None
    """Stands in for the policy."""
    loaded: tuple[LoadedModel, Sampler] | None = None
    """The local model, for `--with-update`."""

    def episode_started(self, task_id: str) -> None:
        """To be called before each episode: lists of scripted answers start anew."""
        if isinstance(self.source, ScriptedSource):
            self.source.episode_started(task_id)


def choose_model(config: AstuneConfig, terminal: Terminal) -> DebugModel:
    """The model of `astune.debug.model`; None is the local model of `astune.model`, and only that loads torch.

    Raises ConfigError, PluginError or ModelError before anything runs.
    """
    spec = config.debug.model
    if spec is None:
        return _load_local(config)
    kind, _, rest = spec.partition(":")
    chat_format = load_chat_format(config.model, resolve_base_dir(config.model.path, weights=False))
    name = spec
    source: Source | None = None  # of a replay, which answers each episode in its own way
    if kind == "replay":
        name = f"replay ({rest.rpartition('/')[2]})"
    elif kind == "scripted":
        name = f"scripted ({rest.rpartition('/')[2]})"
        source = ScriptedSource(read_script(rest), chat_format)
    elif spec == "human":
        source = HumanSource(terminal, chat_format)
    else:
        name, source = endpoint_source(config, chat_format, terminal)
    length = config.model.max_model_len or chat_format.context_length or UNKNOWN_CONTEXT_LENGTH
    return DebugModel(name, NoPolicy(length), chat_format, source)


def _load_local(config: AstuneConfig) -> DebugModel:
    from astune.backbone.local.engine import load_policy

    loaded, sampler, chat_format = load_policy(config)
    return DebugModel(config.model.path, sampler, chat_format, loaded=(loaded, sampler))

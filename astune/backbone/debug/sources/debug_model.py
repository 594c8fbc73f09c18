"""Choose the model that answers in a debug run, as `astune.debug.model` says."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from astune.backbone.debug.sources.human import HumanSource
from astune.backbone.debug.sources.scripted import ScriptedSource, read_script
from astune.backbone.debug.terminal import Terminal
from astune.clients.chat import ChatClient
from astune.config.chat_models import AuxiliaryModelConfig
from astune.config.rules.models import split_by_base
from astune.config.schema import AstuneConfig
from astune.context_tracker.calls import Answer, Call, Source
from astune.context_tracker.chat_source import ChatSource
from astune.context_tracker.model_dir import load_chat_format, resolve_base_dir
from astune.context_tracker.prompt.chat_format import ChatFormat
from astune.errors import ConfigError, PolicyError, nearest
from astune.support.terminal import Text
from astune.training.rollout_setup import NoPolicy
from astune.types import Policy, Sampling

if TYPE_CHECKING:
    from astune.backbone.local.model.model import LoadedModel
    from astune.backbone.local.sampling.sampler import Sampler

UNKNOWN_CONTEXT_LENGTH = 32768

KEY = "astune.debug.endpoints"
ADDRESS_KEY = "astune.debug.model"
SECONDS = 10.0
"""Most seconds until an API lists its models."""


class EndpointsSource:
    """Stands in for the policy: the run's limits and sampling hold. It asks the API that answered last; where one
    fails, the next, and says on the terminal which one answered."""

    is_policy = True

    def __init__(self, clients: Sequence[ChatClient], terminal: Terminal, *, allow_inexact: bool) -> None:
        self._clients = list(clients)
        self._sources = [ChatSource(client, allow_inexact=allow_inexact) for client in clients]
        self._terminal = terminal
        self._latest = 0

    async def answer(self, call: Call, sampling: Sampling) -> Answer:
        """Raises PolicyError with the reason of each if all fail."""
        # with the run's sampling written out, as an API gets only what the agent asks for
        asked = replace(
            call.request, max_tokens=sampling.max_tokens, temperature=sampling.temperature, top_p=sampling.top_p
        )
        call = replace(call, request=asked)
        failures: list[str] = []
        count = len(self._sources)
        for place in [(self._latest + step) % count for step in range(count)]:
            try:
                answer = await self._sources[place].answer(call, sampling)
            except PolicyError as error:
                failures.append(str(error))
                continue
            if failures:
                _say(self._terminal, f"{'; '.join(failures)}\nAnswered instead: {describe(self._clients[place])}")
            self._latest = place
            return answer
        raise PolicyError(failures[0] if count == 1 else "\n".join(["no endpoint answered:", *failures]))


def endpoint_source(config: AstuneConfig, terminal: Terminal) -> tuple[str, EndpointsSource]:
    """Make the source of `astune.debug.model`, an address or all of `astune.debug.endpoints`, and its name.

    Each is asked for its list of models. Raises ConfigError if there are none, none can be reached, or the address
    does not say which of several models is meant.
    """
    spec = config.debug.model
    assert spec is not None, "the caller has looked"
    clients = _list_clients(config.debug.endpoints, terminal) if spec == "endpoints" else [_find_at_address(spec)]
    name = f"endpoint {describe(clients[0])}" if len(clients) == 1 else f"endpoints {', '.join(map(describe, clients))}"
    return name, EndpointsSource(clients, terminal, allow_inexact=config.rollout.allow_inexact)


def describe(client: ChatClient) -> str:
    return f"{client.config.base_url} ({client.config.model})"


def _list_clients(endpoints: Sequence[AuxiliaryModelConfig], terminal: Terminal) -> list[ChatClient]:
    if not endpoints:
        raise ConfigError(f"{KEY}: there are none, and {ADDRESS_KEY} is 'endpoints': [{{base_url: ..., model: ...}}]")
    clients = [ChatClient(str(at), endpoint, key=f"{KEY}.{at}") for at, endpoint in enumerate(endpoints)]
    failures = []
    for client in clients:
        try:
            known = asyncio.run(client.models(SECONDS))
        except PolicyError as error:
            failures.append(str(error))
            continue
        wanted = client.config.model
        if known and wanted not in known:
            _say(terminal, f"{describe(client)} does not list {wanted!r}.{nearest(wanted, known)}")
    if len(failures) == len(clients):
        raise ConfigError("\n".join(failures))
    for failure in failures:
        _say(terminal, failure)
    return clients


def _find_at_address(spec: str) -> ChatClient:
    """The API at `http://host/v1#name`; without a name its only model."""
    base_url, _, name = spec.partition("#")
    client = _make_client(base_url, name or "?")
    try:
        known = asyncio.run(client.models(SECONDS))
    except PolicyError as error:
        raise ConfigError(str(error)) from error
    if name and known and name not in known:
        raise ConfigError(
            f"{ADDRESS_KEY}: {base_url} has no model {name!r}.{nearest(name, known)} It has: {_list_some(known)}"
        )
    if not name and (known is None or len(known) != 1):
        has = f"has {_list_some(known)}" if known else "does not list its models"
        raise ConfigError(
            f"{ADDRESS_KEY}: {base_url} {has}: say which, as in {base_url}#{known[0] if known else 'NAME'}"
        )
    return client if name or not known else _make_client(base_url, known[0])


def _make_client(base_url: str, model: str) -> ChatClient:
    return ChatClient("endpoint", AuxiliaryModelConfig(base_url=base_url, model=model), key=ADDRESS_KEY)


def _list_some(names: Sequence[str]) -> str:
    more = len(names) - 20
    return ", ".join(names[:20]) + (f" and {more} more" if more > 0 else "")


def _say(terminal: Terminal, text: str) -> None:
    terminal.console.print(Text(text, "yellow"), soft_wrap=True)


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
        source = ScriptedSource(read_script(rest))
    elif spec == "human":
        source = HumanSource(terminal)
    else:
        name, source = endpoint_source(config, terminal)
    length = config.model.max_model_len or chat_format.context_length or UNKNOWN_CONTEXT_LENGTH
    return DebugModel(name, NoPolicy(length), chat_format, source)


def _load_local(config: AstuneConfig) -> DebugModel:
    from astune.backbone.local.engine import load_models, load_policy
    from astune.backbone.local.sampling.adapter_sampler import NamedSamplers

    if config.models:
        chat_format, held = load_models(config)
        paths = dict.fromkeys(own.model.path for own in split_by_base(config).values())
        return DebugModel(", ".join(paths), NamedSamplers({n: each.part for n, each in held.items()}), chat_format)
    loaded, sampler, chat_format = load_policy(config)
    return DebugModel(config.model.path, sampler, chat_format, loaded=(loaded, sampler))

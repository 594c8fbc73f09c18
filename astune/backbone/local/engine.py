"""The local backbone: the training loop, with torch in this process as its engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import ClassVar

import torch

from astune.backbone.base import Backbone
from astune.backbone.local.learning.learner import LocalLearner
from astune.backbone.local.model.model import LoadedModel, load_model
from astune.backbone.local.sampling.adapter_sampler import AdapterPlaces, AdapterSampler, NamedSamplers
from astune.backbone.local.sampling.driver import Driver
from astune.backbone.local.sampling.sampler import Sampler
from astune.backbone.lora.settings import SOLE
from astune.backbone.policies.compared import ANY_QUESTION, IN_FLOAT32, OTHERWISE, ComparedAnswers
from astune.backbone.policies.requests import ServerTraits
from astune.backbone.vllm.policy import ServedPolicy
from astune.backbone.vllm.server import NamedServer, OwnServer, VllmServer, check_server
from astune.backbone.vllm.settings import NAME, Served, make_served, settings_of
from astune.backbone.vllm.weights import ServedWeights
from astune.config.load import LoadedConfig
from astune.config.rules.models import config_of, configs_of_trained, places_of, split_by_base
from astune.config.schema import AstuneConfig
from astune.context_tracker.model_dir import check_starts, load_chat_format, load_formats, resolve_base_dir
from astune.context_tracker.prompt.chat_format import ChatFormat
from astune.monitor.disk import follow_umask
from astune.support.concurrency import finish
from astune.training.engine import Engine
from astune.training.start import run_training
from astune.types import RunReport, Sample, Update


class LocalBackbone(Backbone):
    """Rollouts, learning and evaluation in one process with torch and transformers."""

    name: ClassVar[str] = "local"
    honours: ClassVar[frozenset[str]] = frozenset({"astune"})
    ignored_sections: ClassVar[frozenset[str]] = frozenset({"astune.debug", "astune.online", "trinity", "verl"})

    def run(self, loaded: LoadedConfig) -> RunReport:
        return run_training(loaded, load_engine)


def load_engine(config: AstuneConfig) -> Engine:
    """Load the model of `astune.model`, or those of `astune.models`, for sampling and training, one beside the other or
    by turns."""
    if config.rollout.engine == "vllm":
        return load_served(config)
    driver = Driver()
    beside = config.synchronizer.style == "async"
    if config.models:
        chat_format, held = load_models(config, driver, beside=beside)
        learners = load_learners(config, held, beside=beside)
        places = {
            name: held[model.past_of].make_places(model.past_of, places_of(config)[name])
            for name, model in config.models.items()
            if model.past_of is not None
        }
        policy = NamedSamplers({place: each.part for place, each in held.items()})
        first = next(iter(learners.values()))
        return Engine(policy, first, chat_format, driver.rounds, beside, models=learners, places=places)
    loaded, sampler, chat_format = load_policy(config, driver, beside=beside)
    learner = LocalLearner(loaded, sampler, config.algorithm, config.trainer, beside=beside)
    return Engine(sampler, learner, chat_format, driver.rounds, beside)


@dataclass(frozen=True)
class Held:
    """One of several models in memory, an adapter or a whole one, and the sampler that answers for it."""

    loaded: LoadedModel
    sampler: Sampler

    @property
    def part(self) -> AdapterSampler:
        return AdapterSampler(self.sampler, self.loaded.adapter)

    def make_places(self, name: str, places: Sequence[str]) -> AdapterPlaces:
        adapters = self.loaded.sampling_adapters
        assert adapters is not None, "astune.config.rules asks for them"
        return AdapterPlaces(adapters, self.sampler, name, places)


def load_models(
    config: AstuneConfig, driver: Driver | None = None, *, beside: bool = False
) -> tuple[ChatFormat, dict[str, Held]]:
    """Load `astune.models`, by the names under which the policy answers, and the chat format of `astune.model`. Those
    that are adapters over one base have it and a sampler in common, all samplers one driver. Raises ModelError where
    one is not there, before any is loaded."""
    driver = driver or Driver()
    chat_format = load_chat_format(config.model, resolve_base_dir(config.model.path, weights=False))
    formats = load_formats(config, chat_format)
    check_starts(config.models)
    held = {}
    for names, own in split_by_base(config).items():
        trained = any(config.models[name].learns for name in names)
        own_format = formats.get(names[0], chat_format)
        loaded, sampler, _ = load_policy(
            own, driver, beside=beside and trained, chat_format=own_format, trained=trained
        )
        for place in chain.from_iterable(places_of(config)[name] for name in names):
            held[place] = Held(loaded.of(place if own.models else SOLE), sampler)
    return chat_format, held


def load_learners(config: AstuneConfig, held: Mapping[str, Held], *, beside: bool = False) -> dict[str, LocalLearner]:
    """Make a learner for each of `astune.models` that is trained; a frozen one has none. Each learns its own adapter,
    or model, and publishes to its own part of a sampler."""
    frozen = [name for name, model in config.models.items() if not model.learns]
    parts = [held[place].part for name in frozen for place in places_of(config)[name]]
    learners = {}
    for name, own in configs_of_trained(config).items():
        loaded = held[name].loaded
        loaded.begun |= config.models[name].start_from is not None
        part = AdapterSampler(held[name].sampler, loaded.adapter, parts)
        learners[name] = LocalLearner(loaded, part, own.algorithm, own.trainer, beside=beside)
    return learners


def load_policy(
    config: AstuneConfig,
    driver: Driver | None = None,
    *,
    beside: bool = False,
    chat_format: ChatFormat | None = None,
    trained: bool = True,
) -> tuple[LoadedModel, Sampler, ChatFormat]:
    """Load the model of `astune.model`, with the adapters of `astune.models`, a sampler over it, or `beside` it, over a
    copy, and its chat format, if that is not there. One that is not to be `trained` is only as it is sampled."""
    torch.manual_seed(config.seed)
    shapes = {
        place: config_of(config, name).model.lora for name, places in places_of(config).items() for place in places
    }
    loaded = load_model(config.model, shapes or (SOLE,), trained=trained)
    for name, model in config.models.items():
        start = model.start_from or (config.models[model.past_of].start_from if model.past_of else None)
        if start is not None:
            loaded.of(name).begin_adapter(Path(start))
    if beside:
        loaded = loaded.with_copy()
    chat_format = chat_format or load_chat_format(config.model, loaded.directory)
    sampler = Sampler(
        loaded.sampling_model,
        slots=config.rollout.max_concurrent,
        context_length=loaded.context_length,
        decode=chat_format.decode,
        family=loaded.family,
        adapters=loaded.sampling_adapters,
        driver=driver,
    )
    return loaded, sampler, chat_format


class ServedLearner:
    """A `LocalLearner` whose weights a server samples from."""

    def __init__(self, learner: LocalLearner, weights: ServedWeights) -> None:
        self._learner, self._weights = learner, weights
        self._handed: dict[str, float] = {}

    @property
    def updates(self) -> int:
        return self._learner.updates

    @property
    def changes(self) -> int:
        return self._learner.changes

    @property
    def policy_version(self) -> int:
        return self._learner.policy_version

    async def update(self, samples: Sequence[Sample], learning_rate: float) -> Update:
        await finish(self._weights.make_room)
        done = await self._learner.update(samples, learning_rate)
        return replace(done, metrics={**done.metrics, **self._handed})

    async def logprobs(self, samples: Sequence[Sample], *, reference: bool = False) -> list[Sequence[float]]:
        return await self._learner.logprobs(samples, reference=reference)

    async def publish(self) -> int:
        before = self._learner.policy_version
        version = await self._learner.publish()
        self._weights.stale |= version != before
        rows = self._weights.rows(version)
        expected = await self._learner.logprobs(rows) if rows else []
        self._handed = dict(await finish(partial(self._weights.publish, version, rows, expected, free_memory)))
        return version

    def save(self, directory: Path) -> None:
        self._learner.save(directory)

    def load(self, directory: Path) -> None:
        self._weights.stale = True
        self._learner.load(directory)


def free_memory() -> None:
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def load_served(config: AstuneConfig) -> Engine:
    """Load the model of `astune.model` for training, and start a server that has it too."""
    torch.manual_seed(config.seed)
    loaded = load_model(config.model, sampled=False)
    chat_format = load_chat_format(config.model, loaded.directory)
    dtype, context_length = str(loaded.dtype).removeprefix("torch."), loaded.context_length
    wanted = make_served(config, loaded.directory, dtype=dtype, context_length=context_length)
    most_apart = IN_FLOAT32 if loaded.device.type == "cpu" and dtype == "float32" else OTHERWISE
    compared = ComparedAnswers(chat_format.encode(chat_format.render(ANY_QUESTION)), context_length, most_apart)
    server, name, shares = _start_server(config, wanted, loaded.device)
    vocabulary = loaded.model.get_input_embeddings().weight.shape[0]
    policy = ServedPolicy(
        server, ServerTraits("vllm", wanted.logprobs), context_length, vocabulary, name, compared.remember
    )
    weights = ServedWeights(
        server, policy, compared, partial(write_weights, loaded), adapter=loaded.adapters is not None, shares=shares
    )
    learner = LocalLearner(loaded, policy, config.algorithm, config.trainer, beside=not shares)
    return Engine(
        policy,
        ServedLearner(learner, weights),
        chat_format,
        beside=not shares,
        close=weights.close,
        lost=server.wait_until_lost,
    )


def _start_server(config: AstuneConfig, wanted: Served, device: torch.device) -> tuple[VllmServer, str, bool]:
    """Start the server, or check the one that others started. Returns it with its name for the model, and whether it
    has the trainer's GPU. Raises ConfigError where a server of others is not as it has to be."""
    if config.rollout.vllm.base_url is not None:
        named = NamedServer(config.rollout.vllm.base_url, Path(config.runs_dir))
        try:
            return named, check_server(named, wanted), False
        except BaseException:
            named.close()
            raise
    settings = settings_of(config, wanted, device=device.type, index=device.index or 0)
    return OwnServer(settings), NAME, settings.shares


def write_weights(loaded: LoadedModel, folder: Path) -> None:
    """A whole model in the precision of sampling, or its adapter as a folder of peft's."""
    if loaded.adapters is not None:
        loaded.adapters.save(folder, loaded.adapter)
        return
    state = {name: value.detach().to(loaded.dtype) for name, value in loaded.model.state_dict().items()}
    loaded.model.save_pretrained(folder, state_dict=state)
    follow_umask(folder)

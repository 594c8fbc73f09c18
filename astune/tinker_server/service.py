"""The state of a server: sessions, models under training, and who samples which version."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch

from astune.backbone.local.model.family import require_tree
from astune.backbone.local.model.model import LoadedModel, longest_context, placement, read_weights
from astune.backbone.lora.settings import locate_base
from astune.config.schema import ModelConfig
from astune.context_tracker.model_dir import load_chat_format, resolve_model_dir
from astune.errors import nearest
from astune.tinker_server import wire
from astune.tinker_server.checkpoints import Checkpoint, CheckpointKind, CheckpointPath, CheckpointStore
from astune.tinker_server.jobs import JobResult, Jobs, LoopThread, RequestQueue
from astune.tinker_server.lora import new_adapters, read_lora
from astune.tinker_server.requests import RequestBody, RequestError, not_found
from astune.tinker_server.training import OPTIMIZER_FILE, AdamStep, TrainedModel
from astune.tinker_server.versions import Version, Versions, generate, score_prompt

logger = logging.getLogger(__name__)

LOST_SECONDS = 600.0
"""A session whose client has not been heard of for so long is closed; clients say something every 10 seconds."""
MOST_SAMPLES = 4096
"""Answers to one request."""
T = TypeVar("T")


@dataclass
class ClientSession:
    heard: float
    models: dict[str, Training] = field(default_factory=dict)
    samplers: dict[str, Sampled] = field(default_factory=dict)


@dataclass
class Training:
    """A model under training and the order of its requests. `about` is what the client said when it made it."""

    model: TrainedModel
    queue: RequestQueue
    about: dict[str, Any]


@dataclass(frozen=True)
class Sampled:
    """The weights that a sampling session samples; `path` is None for the base model."""

    version: Version
    path: CheckpointPath | None


class TinkerService:
    """All state of a server. It lives in the event loop, which is always free to hear clients: four threads train,
    read weights, score prompts (each one piece of work at a time) and sample.

    `training_temperature` divides the logits in training, so that log-probabilities agree with those of answers that
    are sampled at this temperature.
    """

    def __init__(
        self,
        model: ModelConfig,
        directory: Path,
        *,
        slots: int,
        versions: int,
        training_temperature: float,
        micro_batch_tokens: int | None,
    ) -> None:
        self._folder = resolve_model_dir(model.path)
        self.base_models = list(dict.fromkeys([model.path, str(self._folder), str(self._folder.resolve())]))
        self._chat_format = load_chat_format(model, self._folder)
        self._device, self._dtype = placement(model)
        self._temperature = training_temperature
        self._micro_batch_tokens = micro_batch_tokens
        self._trainer = ThreadPoolExecutor(1, "train")
        self._reader = ThreadPoolExecutor(1, "read")
        self._scorer = ThreadPoolExecutor(1, "score")
        self._sampling = LoopThread("sample")
        self._versions = Versions(
            device=self._device,
            dtype=self._dtype,
            slots=slots,
            most=versions,
            decode=self._chat_format.decode,
            reader=self._reader,
            base=self._folder,
        )
        self._store = CheckpointStore(directory)
        self._sessions: dict[str, ClientSession] = {}
        self._jobs = Jobs()
        self._limits = wire.Limits(vocabulary=1, context_length=1)

    async def open(self) -> None:
        """Read the base model, so that a bad one is told at once."""
        sampler = await self._versions.sampler(self._base)
        config = sampler.model.config.get_text_config()  # type: ignore[union-attr, operator]
        self._limits = wire.Limits(config.vocab_size, sampler.context_length)

    def close(self) -> None:
        for thread in (self._trainer, self._reader, self._scorer):
            thread.shutdown(wait=False, cancel_futures=True)
        self._sampling.close()

    @property
    def context_length(self) -> int:
        return self._limits.context_length

    @property
    def tokenizer_name(self) -> str:
        """The name by which the SDK finds the tokenizer. It takes two slashes for those of a hub id with a variant."""
        name = str(self._folder.resolve())
        return name + "/" if name.count("/") == 2 else name

    @property
    def _base(self) -> Version:
        return Version(self._folder, "base")

    async def fetch(self, request_id: str, seconds: float) -> JobResult | None:
        return await self._jobs.fetch(request_id, seconds)

    def create_session(self) -> str:
        self._close_lost_sessions()
        session_id = uuid.uuid4().hex[:12]
        self._sessions[session_id] = ClientSession(time.monotonic())
        return session_id

    def heartbeat(self, session_id: str) -> None:
        self._session(session_id).heard = time.monotonic()

    def _session(self, session_id: str) -> ClientSession:
        if session_id not in self._sessions:
            raise not_found(f"there is no session {session_id!r}; was the server started anew?")
        return self._sessions[session_id]

    def _close_lost_sessions(self) -> None:
        """Give back the memory of models whose client is gone."""
        now = time.monotonic()
        for session_id in [name for name, each in self._sessions.items() if now - each.heard > LOST_SECONDS]:
            logger.info("session %s closed: its client is gone", session_id)
            self._close(session_id)

    def _close(self, session_id: str) -> None:
        del self._sessions[session_id]
        self._jobs.drop(f"{session_id}:")

    def finish(self, session_id: str) -> None:
        """The client is done: its models and what it asked for are gone, its checkpoints stay."""
        self._session(session_id)
        self._close(session_id)

    def create_model(self, body: RequestBody) -> str:
        """The request id under which the model's id is fetched."""
        self._check_base(body.text("base_model"))
        about = {"base_model": body["base_model"], "lora": read_lora(body.section("lora_config"))}
        wire.check_optimizer(body)
        return self._create(body, about)

    def _create(self, body: RequestBody, about: dict[str, Any], begin: Checkpoint | None = None) -> str:
        """A new model under training, as `about` says; with the weights of `begin`, and the optimizer's state if the
        request asks for it. The SDK makes up the same id."""
        session_id = body.text("session_id")
        session = self._session(session_id)
        model_id = f"{session_id}:train:{body.whole('model_seq_id')}"
        with_optimizer = begin is not None and self._has_optimizer(begin, body)

        async def work() -> JobResult:
            loaded = await self._in(self._reader, lambda: self._load_for_training(about["lora"]))
            made = TrainedModel(loaded, self._temperature, self._micro_batch_tokens)
            if begin is not None:
                await self._in(self._reader, lambda: made.load(begin.folder, optimizer=with_optimizer))
            session.models[model_id] = Training(made, RequestQueue(), about)
            return {"model_id": model_id, "type": "create_model"} if begin is None else _describe_load(begin)

        return self._jobs.start(f"{model_id}-0", work)

    def _load_for_training(self, lora: dict[str, Any]) -> LoadedModel:
        dtype = self._dtype if lora["rank"] else torch.float32
        model = require_tree(read_weights(self._folder, dtype).to(self._device).eval())
        adapters = new_adapters(model, lora, locate_base(self.base_models[0], self._folder)) if lora["rank"] else None
        facts = (self._folder, self._device, self._dtype, longest_context(model))
        return LoadedModel(model, model, *facts, checkpointing=False, adapters=adapters)

    def _check_base(self, name: str) -> None:
        if name not in self.base_models:
            raise not_found(
                f"this server serves {' = '.join(self.base_models)}, not {name!r}.{nearest(name, self.base_models)}"
            )

    def training(self, model_id: str) -> Training:
        session = self._sessions.get(_session_of(model_id))
        if session is None or model_id not in session.models:
            raise not_found(f"there is no model {model_id!r} under training; was the server started anew?")
        return session.models[model_id]

    def unload_model(self, model_id: str) -> str:
        self.training(model_id)
        del self._sessions[_session_of(model_id)].models[model_id]

        async def work() -> JobResult:
            return {"model_id": model_id, "type": "unload_model"}

        return self._jobs.start(f"{model_id}-unload", work)

    def forward(self, body: bytes) -> str:
        message = wire.read_forward(body)

        async def work(model: TrainedModel) -> JobResult:
            rows = wire.read_rows(message, self._limits)
            found = await self._in(self._trainer, lambda: model.forward(rows, backward=not message.forward_only))
            return wire.forward_reply(*found)

        return self._in_turn(message.model_id, message.seq_id, work)

    def optim_step(self, body: RequestBody) -> str:
        wire.check_optimizer(body)
        adam = AdamStep(**body.section("adam_params"))

        async def work(model: TrainedModel) -> JobResult:
            return {"metrics": await self._in(self._trainer, lambda: model.step(adam)), "type": "optim_step"}

        return self._in_turn(body.text("model_id"), body.whole("seq_id"), work)

    def save(self, body: RequestBody, kind: CheckpointKind) -> str:
        """Answers with the path, or, where the client gave no name, with a sampling session of what was saved."""
        model_id, number, overwrite = body.text("model_id"), body.whole("seq_id"), body.flag("overwrite")
        name = body.text("path") if body.pick("path") else ""
        path = CheckpointPath(model_id, kind, name or f"unnamed-{number}")
        session_seq = body.whole("sampling_session_seq_id") if body.pick("sampling_session_seq_id") else None
        about = self.training(model_id).about

        def write(model: TrainedModel) -> None:
            with self._store.writing(path, about, overwrite=overwrite) as folder:
                model.save(folder, optimizer=kind == "weights")

        async def work(model: TrainedModel) -> JobResult:
            if body.get("ttl_seconds") is not None:
                raise RequestError("ttl_seconds is not supported: a checkpoint stays until it is deleted")
            await self._in(self._trainer, lambda: write(model))
            if session_seq is None:
                return {"path": str(path)}
            sampler_id = await self._sampling_session(_session_of(model_id), session_seq, path)
            return {"sampling_session_id": sampler_id}

        return self._in_turn(model_id, number, work)

    def load(self, body: RequestBody) -> str:
        """Into a model there is or, with a session's id instead of the model's, as the first request of a new one."""
        wire.check_optimizer(body)
        path = CheckpointPath.parse(body.text("path"))
        if body.pick("session_id"):
            if body.pick("base_model"):
                self._check_base(body.text("base_model"))
            begin = self._store.find(path)
            return self._create(body, begin.about | {"base_model": self.base_models[0]}, begin)
        if not body.pick("model_id"):
            raise RequestError("load_weights needs the model_id of a model, or a session_id to create one")
        body.flag("optimizer")

        async def work(model: TrainedModel) -> JobResult:
            checkpoint = self._store.find(path)
            with_optimizer = self._has_optimizer(checkpoint, body)
            await self._in(self._reader, lambda: model.load(checkpoint.folder, optimizer=with_optimizer))
            return _describe_load(checkpoint)

        return self._in_turn(body.text("model_id"), body.whole("seq_id"), work)

    @staticmethod
    def _has_optimizer(checkpoint: Checkpoint, body: RequestBody) -> bool:
        """True if the state of the optimizer is asked for. Raises `RequestError` where there is none."""
        asked = body.flag("optimizer")
        if asked and not (checkpoint.folder / OPTIMIZER_FILE).exists():
            raise RequestError(f"{checkpoint.path} has no optimizer state: it was saved for sampling")
        return asked

    def _in_turn(self, model_id: str, number: int, work: Callable[[TrainedModel], Awaitable[JobResult]]) -> str:
        training = self.training(model_id)
        return self._jobs.start(
            f"{model_id}-{number}", lambda: training.queue.run(number, lambda: work(training.model))
        )

    async def create_sampling_session(self, body: RequestBody) -> str:
        """Reads the weights, so that a client hears of bad ones now."""
        path = CheckpointPath.parse(body.text("model_path")) if body.pick("model_path") else None
        if path is None:
            self._check_base(body.text("base_model"))
        return await self._sampling_session(body.text("session_id"), body.whole("sampling_session_seq_id"), path)

    async def _sampling_session(self, session_id: str, number: int, path: CheckpointPath | None) -> str:
        session = self._session(session_id)
        version = self._base if path is None else self._find_sampled(path) or self._version(self._store.find(path))
        sampler_id = f"{session_id}:sample:{number}"
        session.samplers[sampler_id] = Sampled(version, path)
        await self._versions.sampler(version)
        return sampler_id

    def _find_sampled(self, path: CheckpointPath) -> Version | None:
        """The version that others sample under this path, if its checkpoint is deleted: a trainer that runs ahead
        deletes weights that rollouts are not done with."""
        if self._store.exists(path):
            return None
        known = (sampled for session in self._sessions.values() for sampled in session.samplers.values())
        return next((one.version for one in known if one.path == path and self._versions.holds(one.version)), None)

    @staticmethod
    def _version(checkpoint: Checkpoint) -> Version:
        return Version(checkpoint.folder, checkpoint.version)

    def find_sampler(self, sampler_id: str) -> Sampled:
        session = self._sessions.get(_session_of(sampler_id))
        if session is None or sampler_id not in session.samplers:
            raise not_found(f"there is no sampling session {sampler_id!r}; was the server started anew?")
        return session.samplers[sampler_id]

    def sample(self, body: RequestBody) -> tuple[str, list[str]]:
        """The request id, and an id for each answer, which newer SDKs ask for."""
        if len(body.pick("sampling_session_id", "seq_id")) < 2:
            raise RequestError("asample needs a sampling_session_id and a seq_id")
        sampler_id, number = body.text("sampling_session_id"), body.whole("seq_id")
        wire.check_sample(body)
        sampled = self.find_sampler(sampler_id)
        samples = body.whole("num_samples", 1, MOST_SAMPLES) if body.pick("num_samples") else 1
        request_id = self._jobs.start(f"{sampler_id}-{number}", lambda: self._sample(sampled, body, samples))
        return request_id, [f"{request_id}-{each}" for each in range(samples)]

    async def _sample(self, sampled: Sampled, body: RequestBody, samples: int) -> JobResult:
        prompt = wire.read_prompt(body["prompt"], self._limits)
        room = self._limits.context_length - len(prompt)
        params, end_ids = body.section("sampling_params"), self._chat_format.stop_token_ids
        sampling = wire.read_sampling(params, room, end_ids, self._limits)
        top = body.get("topk_prompt_logprobs") or 0
        if top > self._limits.vocabulary:
            raise RequestError(f"topk_prompt_logprobs {top}: the model knows {self._limits.vocabulary} tokens")
        if (
            sampled.path is not None
            and not self._versions.holds(sampled.version)
            and self._version(self._store.find(sampled.path)) != sampled.version
        ):
            raise not_found(f"{sampled.path} was saved anew since this session began to sample it")
        sampler = await self._versions.sampler(sampled.version)
        generations = await self._sampling.run(generate(sampler, prompt, sampling, samples))
        scores = None
        if body.get("prompt_logprobs") or top:
            last = wire.read_last(body, len(prompt))
            score = partial(score_prompt, sampler.model, prompt, sampling.temperature, top, last)
            scores = await self._in(self._scorer, score)
        return wire.sample_reply(generations, scores)

    def weights_info(self, path: str) -> dict[str, Any]:
        lora = self._store.find(CheckpointPath.parse(path)).about["lora"]
        parts = {name: lora[name] for name in ("train_unembed", "train_mlp", "train_attn")}
        return {"base_model": self.base_models[0], "is_lora": True, "lora_rank": lora["rank"], **parts}

    def checkpoints(self, model_id: str) -> list[Checkpoint]:
        return self._store.of_model(model_id)

    def delete_checkpoint(self, model_id: str, reference: str) -> None:
        """Versions in memory are sampled on."""
        self._store.delete(model_id, reference)

    @staticmethod
    async def _in(thread: ThreadPoolExecutor, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(thread, work)


def _session_of(owned_id: str) -> str:
    """The session that a model or a sampling session belongs to."""
    return owned_id.partition(":")[0]


def _describe_load(checkpoint: Checkpoint) -> JobResult:
    return {"path": str(checkpoint.path), "type": "load_weights"}

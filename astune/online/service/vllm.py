"""A vLLM that answers in the place of ASTune's own sampler: token ids there, token ids back.

Version 0 is `astune.online.serve.engine.model`. Further ones are adapters, which the vLLM loads beside it
(`--enable-lora`, `VLLM_ALLOW_RUNTIME_LORA_UPDATING=True`) from the folder of versions, which it must see under the same
path. Its log-probabilities are those before temperature, so an answer at another temperature than 1 is given and not
trained.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import httpx

from astune.clients.completions import completion_request
from astune.config.online import OnlineEngineConfig
from astune.config.schema import Config
from astune.context_tracker.model_dir import ADAPTER_CONFIG, load_chat_format, resolve_model_dir
from astune.errors import ConfigError, ModelError, PolicyError, name_error
from astune.online.place import online_folder, versions_folder
from astune.online.service.serving import Model
from astune.online.store.versions import ModelVersion
from astune.online.training.checkpoint import check
from astune.sampling import is_greedy
from astune.types import Generation, Sampling

logger = logging.getLogger(__name__)

KEY = "astune.online.serve.engine"
LOAD_SECONDS = 300.0
GONE = 404
LEAVING = "astune-adapter-leaves"
"""The thread in which a vLLM lets go of an adapter."""


class VllmPolicy:
    """One version of the model in a vLLM. `model` is what the vLLM calls it; `load` has the vLLM load its adapter."""

    def __init__(
        self,
        http: httpx.AsyncClient,
        model: str,
        version: int,
        context_length: int,
        load: Callable[[], object] | None = None,
    ) -> None:
        self._http, self._model, self._version, self._context_length = http, model, version, context_length
        self._load = load

    @property
    def context_length(self) -> int:
        return self._context_length

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling) -> Generation:
        """Raises PolicyError where the engine does not answer, or not with token ids."""
        body = completion_request(self._model, prompt_ids, sampling)
        try:
            response = await self._http.post("completions", json=body)
            if response.status_code == GONE and self._load is not None:  # another server unloaded it, or it began anew
                await asyncio.to_thread(self._load)
                response = await self._http.post("completions", json=body)
        except httpx.HTTPError as error:
            raise PolicyError(f"no answer from the engine: {name_error(error)}") from None
        except ModelError as error:
            raise PolicyError(str(error)) from None
        if not response.is_success:
            raise PolicyError(f"the engine answered {response.status_code}: {response.text:.300}")
        ids, logprobs, reason = read_completion(response.json())
        if sampling.temperature != 1.0 and not is_greedy(sampling.temperature):
            logprobs = [math.nan] * len(ids)
        return Generation(tuple(ids), tuple(logprobs), self._version, "length" if reason == "length" else "stop")


def read_completion(body: object) -> tuple[list[int], list[float], str]:
    """Sampled ids, their log-probabilities, why it ended. Raises PolicyError where one of them is not there."""
    choices = body.get("choices") if isinstance(body, Mapping) else None
    choice = choices[0] if isinstance(choices, list) and choices else None
    if not isinstance(choice, Mapping):
        raise PolicyError(f"the engine answered {body!r:.200}; expected a completion")
    ids = choice.get("token_ids")
    logprobs = (choice.get("logprobs") or {}).get("token_logprobs")
    if not isinstance(ids, list) or not isinstance(logprobs, list) or len(ids) != len(logprobs):
        raise PolicyError(
            "the engine gave no token ids with log-probabilities. ASTune trains the very tokens that were sampled: "
            "it needs a vLLM that knows return_token_ids (0.10.2 or later)"
        )
    return ids, [math.nan if each is None else float(each) for each in logprobs], str(choice.get("finish_reason"))


class VllmEngine:
    """Loads versions into a vLLM. `connect` makes a client of its API, by default over HTTP."""

    def __init__(
        self,
        config: OnlineEngineConfig,
        versions: Path,
        *,
        connect: Callable[[type[Any]], Any] | None = None,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        key = None if config.api_key_env is None else environ.get(config.api_key_env, "")
        if key == "":
            raise ConfigError(f"{KEY}.api_key_env: the environment variable {config.api_key_env} is not set")
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        url = f"{config.base_url.rstrip('/')}/"
        self._config, self._versions = config, versions
        make = connect or (lambda kind: kind(base_url=url, headers=headers, timeout=config.timeout))
        self._http: httpx.AsyncClient = make(httpx.AsyncClient)
        self._sync: httpx.Client = make(httpx.Client)
        self._context_length = 0

    def load(self, version: ModelVersion) -> VllmPolicy:
        """The vLLM has the version from now on.

        Raises:
            ConfigError: it is not there, or is an engine that gives no token ids.
            ModelError: it does not take the version.
        """
        if not self._context_length:
            self._context_length = self._longest()
            self._probe()
        if version.folder is None:
            return VllmPolicy(self._http, self._config.model, version.number, self._context_length)
        load = partial(self._adapter, version)
        name = load()
        policy = VllmPolicy(self._http, name, version.number, self._context_length, load)
        weakref.finalize(policy, self._unload, name).atexit = False
        return policy

    def close(self) -> None:
        """For who only looked whether it is there: the policies that were loaded answer all the same."""
        self._sync.close()

    def _adapter(self, version: ModelVersion) -> str:
        folder = self._versions / str(version.folder)
        check(folder, version.sha256)
        if not (folder / ADAPTER_CONFIG).is_file():
            raise ModelError(
                f"version {version.number} has all weights, and a vLLM takes adapters alone: train with "
                "astune.model.lora.rank, or start the vLLM on the checkpoint"
            )
        # A vLLM keeps what it has loaded by name, so the name says what is in it: another store has another version 7.
        name = f"astune-v{version.number}-{str(version.sha256)[:16]}"
        body = {"lora_name": name, "lora_path": str(folder)}
        response = self._sync.post("load_lora_adapter", json=body, timeout=LOAD_SECONDS)
        if not response.is_success and "already been loaded" not in response.text:
            raise ModelError(f"the engine does not load {folder}: {response.status_code}: {response.text:.300}")
        return name

    def _unload(self, name: str) -> None:
        """Nobody asks for the adapter here any more: it leaves the vLLM, which another server may have load it again.
        In a thread of its own, as others wait for the event loop."""

        def unload() -> None:
            try:
                self._sync.post("unload_lora_adapter", json={"lora_name": name}, timeout=LOAD_SECONDS)
            except httpx.HTTPError as error:
                logger.warning("the engine keeps the adapter %s: %s", name, name_error(error))

        threading.Thread(target=unload, name=LEAVING, daemon=True).start()

    def _longest(self) -> int:
        try:
            response = self._sync.get("models")
            models = response.json()["data"] if response.is_success else []
        except (httpx.HTTPError, ValueError, KeyError) as error:
            raise ConfigError(
                f"{KEY}.base_url: nothing answers at {self._config.base_url}: {name_error(error)}"
            ) from None
        names = [str(model.get("id")) for model in models]
        if self._config.model not in names:
            raise ConfigError(f"{KEY}.model: there is no {self._config.model!r}; it has {', '.join(names) or 'none'}")
        length = models[names.index(self._config.model)].get("max_model_len")
        if not isinstance(length, int):
            raise ConfigError(f"{KEY}.base_url: the engine does not say max_model_len in /models, as a vLLM does")
        return length

    def _probe(self) -> None:
        body = completion_request(self._config.model, [0], Sampling(max_tokens=1))
        try:
            response = self._sync.post("completions", json=body)
            read_completion(response.json() if response.is_success else response.text)
        except (httpx.HTTPError, ValueError, PolicyError) as error:
            raise ConfigError(f"{KEY}.base_url: {error}") from None


def vllm_model(config: Config, engine: OnlineEngineConfig) -> Model:
    """A vLLM over the tokenizer and chat template of `astune.model`."""
    directory = resolve_model_dir(config.astune.model.path, weights=False)
    loading = VllmEngine(engine, versions_folder(online_folder(config)))
    about = {"model": config.astune.model.model_dump(mode="json"), "engine": engine.model_dump(mode="json")}
    chat_format = load_chat_format(config.astune.model, directory)
    return Model(engine.model, chat_format, loading.load, ModelVersion(0, config=about))

"""The model behind the service: ASTune's own sampler over the weights of each version, or a vLLM."""

from __future__ import annotations

import hashlib
import threading
import time
import weakref
from functools import partial
from pathlib import Path
from typing import Any

from astune.backbone.local.engine import load_policy
from astune.backbone.local.learning.reference import score, score_samples
from astune.backbone.local.model.model import LoadedModel, empty_cache, let_go
from astune.backbone.local.sampling.sampler import Sampler
from astune.config.schema import Config
from astune.context_tracker.model_dir import load_chat_format, resolve_model_dir
from astune.context_tracker.prompt.chat_format import ChatFormat
from astune.errors import RunFolderError
from astune.online.place import online_folder, versions_folder
from astune.online.service.serving import Model
from astune.online.service.versions import NoRoom
from astune.online.service.vllm import vllm_model
from astune.online.store.versions import ModelVersion
from astune.online.training.checkpoint import check
from astune.online.training.probes import TOLERANCES, largest_difference
from astune.support.machine_memory import find_memory, give_back, show_bytes

PIECE = 2**20
LEAVING = "astune-version-leaves"
"""The thread in which a version that answers no more leaves memory."""


def load_served_model(config: Config) -> Model:
    """Load the model that `astune.online.serve.engine` names. Raises ConfigError, ModelError."""
    engine = config.astune.online.serve.engine
    return local_model(config) if engine is None else vllm_model(config, engine)


def local_model(config: Config) -> Model:
    """The model of `astune.model`. Raises ModelError where there is none."""
    directory = resolve_model_dir(config.astune.model.path)

    chat_format = load_chat_format(config.astune.model, directory)
    size = 0

    def load(version: ModelVersion) -> Sampler:
        nonlocal size
        _check_room(config, version, size)
        sampler, size = load_version(config, version, chat_format)
        return sampler

    return Model(config.astune.model.path, chat_format, load, describe_configured(config, directory))


def load_version(config: Config, version: ModelVersion, chat_format: ChatFormat | None = None) -> tuple[Sampler, int]:
    """A sampler of its own for that version, and the bytes of its weights; `chat_format` is that of all. Raises
    RunFolderError for a checkpoint that is not as it was written, or that does not compute what it did in training."""
    loaded, sampler, _ = load_policy(config.astune, chat_format=chat_format)
    if version.folder is not None:
        folder = versions_folder(online_folder(config)) / version.folder
        check(folder, version.sha256)
        loaded.load_weights(folder)
        loaded.copy_to_sampler()
    _check_probes(config, version, loaded)
    sampler.policy_version = version.number
    weakref.finalize(sampler, _leave_memory, [loaded.model]).atexit = False
    parameters = {id(each): each for model in (loaded.model, loaded.sampling_model) for each in model.parameters()}
    return sampler, sum(each.numel() * each.element_size() for each in parameters.values())


def _check_room(config: Config, version: ModelVersion, size: int) -> None:
    """Raises NoRoom where another version of `size` bytes does not fit, once all that leave have left."""
    for thread in threading.enumerate():
        if thread.name == LEAVING:
            thread.join()
    memory = find_memory(config.astune.model.device)
    if memory is not None and memory.free < size:
        raise NoRoom(
            f"version {version.number} needs {show_bytes(size)} beside those that answer, and of the {memory.name} "
            f"{show_bytes(memory.free)} are free"
        )


def _check_probes(config: Config, version: ModelVersion, loaded: LoadedModel) -> None:
    if version.probes is None:
        return
    most = config.astune.trainer.micro_batch_tokens
    compute = partial(score, loaded.sampling_model)
    off = largest_difference(version.probes, lambda samples: score_samples(loaded, samples, most, compute))
    bound = TOLERANCES[str(loaded.dtype).removeprefix("torch.")]
    if off > bound:
        raise RunFolderError(
            f"version {version.number} does not compute here what it did in training: the log-probability of a probe's "
            f"token is off by {off:.2g}, more than {bound:g}. Its weights, the tokenizer or the libraries differ"
        )


def _leave_memory(model: list[Any]) -> None:
    """The last request on a version has ended. In a thread of its own, as others wait for the event loop."""

    def leave() -> None:
        let_go(model[0])
        model.clear()
        give_back()
        empty_cache()

    threading.Thread(target=leave, name=LEAVING, daemon=True).start()


def describe_configured(config: Config, directory: Path) -> ModelVersion:
    """Version 0: the model as configured, with the digest of its files."""
    digest = hashlib.sha256()
    for path in sorted(path for path in directory.iterdir() if path.is_file()):
        digest.update(f"{path.name}\n".encode())
        with path.open("rb") as file:
            while piece := file.read(PIECE):
                digest.update(piece)
    made = config.astune.model_dump(mode="json", include={"model", "seed", "rollout"})
    return ModelVersion(0, sha256=digest.hexdigest(), made=time.time(), config=made)

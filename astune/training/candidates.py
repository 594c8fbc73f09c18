"""Models to be evaluated, as the command line names them: checkpoints, adapters, folders, hub ids and chat APIs."""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

from astune.clients.chat import ChatClient
from astune.config.chat_models import AuxiliaryModelConfig
from astune.config.rules.models import begin_with
from astune.config.schema import AstuneConfig
from astune.context_tracker.model_dir import ADAPTER_CONFIG
from astune.errors import ConfigError, nearest
from astune.monitor.checkpoint_names import find_checkpoint
from astune.support.file_kinds import Kind, other_kind
from astune.training.engine import Engine, LoadEngine
from astune.workflow.live_model import LiveModel

KEY = "astune.rollout.auxiliary_models"


@dataclass(frozen=True)
class Candidate:
    """A model to be evaluated: `checkpoint`, the folder of a run's checkpoint at `step`; else `model`, a folder or a
    hub id; else `api`, the address and name of a chat API; with none of them the model of the configuration. `mark`
    changes with the weights, as far as files tell, and with the settings of an API."""

    name: str
    checkpoint: str | None = None
    model: str | None = None
    step: int = 0
    mark: str = ""
    api: str | None = None
    chat: AuxiliaryModelConfig | None = field(default=None, compare=False, repr=False)
    """How the API is reached, and its prices."""
    key: str = field(default="", compare=False, repr=False)
    """Names the API in errors."""
    live: LiveModel | None = field(default=None, compare=False, repr=False)
    """A chat model object of AgentScope."""

    @property
    def needs_engine(self) -> bool:
        """True but for models that are served elsewhere."""
        return self.chat is None and self.live is None

    def to_row(self) -> dict[str, Any]:
        """Make what a folder says of whom it holds the evaluation."""
        names = ("name", "checkpoint", "model", "step", "mark", *(["api"] if self.api else []))
        return {name: getattr(self, name) for name in names}


def candidate_of(text: str, config: AstuneConfig, option: str = "--checkpoint") -> Candidate:
    """Find what `option` names: one of `astune.rollout.auxiliary_models`, an API at `ADDRESS#NAME` or
    `ADDRESS#NAME@VARIABLE`, where the environment variable holds its key; a checkpoint of a run (see
    `find_checkpoint`), a model, or `none`, the model of the configuration."""
    apis = config.rollout.auxiliary_models
    if text in apis:
        return _make_api(text, apis[text], f"{KEY}.{text}")
    if text.startswith(("http://", "https://")):
        return _make_api(text, read_address(text, option), f"{option} {text}")
    if text == "none":
        return Candidate("base", mark=_mark(Path(config.model.path)))
    path = find_checkpoint(text)
    if path is None:
        return _model_of(text, apis, option)
    step = int(path.name[len("step_") :])
    return Candidate(f"{path.parents[1].name}/{path.name}", str(path.absolute()), step=step, mark=_mark(path))


def live_candidate(live: LiveModel, taken: Collection[str]) -> Candidate:
    """A chat model object, by a name that is not `taken`. Files cannot tell whether another is the same, so its `mark`
    is its own, and what was played with it before is played again."""
    numbers = itertools.count(2)
    name = live.name
    while name in taken:
        name = f"{live.name}-{next(numbers)}"
    return Candidate(name, mark=uuid4().hex, live=live)


def _model_of(text: str, apis: Mapping[str, object], option: str) -> Candidate:
    folder = Path(text).expanduser()
    if wrong := other_kind(folder, "a checkpoint or the folder of a model", Kind.CHECKPOINT):
        raise ConfigError(f"{option} {wrong}")
    if apis and not folder.is_dir() and "/" not in text:
        raise ConfigError(
            f"{option} {text}: there is no such folder, and {KEY} has no {text!r}.{nearest(text, apis)} It has: "
            f"{', '.join(apis)}"
        )
    if not folder.is_dir() and (text.count("/") > 1 or text.startswith((".", "/", "~"))):
        raise ConfigError(f"{option} {text}: there is no such folder, nor is it 'tiny' or a hub id, owner/name")
    name, model = (folder.name, str(folder.absolute())) if folder.is_dir() else (text, text)
    return Candidate(name, model=model, mark=_mark(folder))


def _make_api(name: str, chat: AuxiliaryModelConfig, key: str) -> Candidate:
    settings = chat.model_dump(mode="json", exclude={"prompt_price", "completion_price", "timeout", "max_retries"})
    ChatClient(name, chat, key=key)  # refuses a key that is not set, before anybody is asked
    mark = hashlib.sha256(repr(sorted(settings.items())).encode()).hexdigest()[:16]
    return Candidate(name, mark=mark, api=f"{chat.base_url}#{chat.model}", chat=chat, key=key)


def read_address(text: str, option: str) -> AuxiliaryModelConfig:
    """Read `http://host/v1#name` or `http://host/v1#name@VARIABLE`, which `option` has."""
    base_url, _, model = text.partition("#")
    name, at, variable = model.rpartition("@")
    has_key = bool(at) and re.fullmatch(r"[A-Z][A-Z0-9_]*", variable) is not None
    if not (model := name if has_key else model):
        raise ConfigError(f"{option} {text}: expected the model's name behind the address, as {base_url}#NAME")
    return AuxiliaryModelConfig(base_url=base_url, model=model, api_key_env=variable if has_key else None)


def _mark(folder: Path) -> str:
    """A digest of the names, sizes and times of a folder's files; "" for what is no folder."""
    files = sorted(path for path in folder.glob("*") if path.is_file())
    facts = [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in files]
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:16] if folder.is_dir() else ""


def load_candidate(
    config: AstuneConfig, candidate: Candidate, load_engine: LoadEngine, *, as_model: bool = False
) -> Engine:
    """The engine with the candidate's weights. A checkpoint is loaded by the learner that wrote its like, so whatever
    that writes can be evaluated; or `as_model`, as the folder of one, whoever wrote it."""
    checkpoint = None if candidate.checkpoint is None else Path(candidate.checkpoint)
    if candidate.model is not None:
        config = config.model_copy(update={"model": config.model.model_copy(update={"path": candidate.model})})
    if checkpoint is not None and as_model:
        config = begin_with(config, checkpoint)
    if checkpoint is not None and (checkpoint / ADAPTER_CONFIG).is_file() and config.model.lora.rank is None:
        raise ConfigError(
            f"{checkpoint} holds an adapter, and astune.model.lora.rank is not set; give the astune.model.lora of the "
            f"run, as in {checkpoint.parents[1] / 'config.yaml'}"
        )
    engine = load_engine(config)
    if checkpoint is not None and not as_model:
        for name, learner in engine.learners.items():
            learner.load(checkpoint / name)
    return engine

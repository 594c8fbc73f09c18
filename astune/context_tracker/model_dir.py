"""The folder behind `astune.model.path`."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

from astune.config.rules.models import config_of
from astune.config.schema import AstuneConfig, ModelConfig, NamedModelConfig
from astune.context_tracker.prompt.chat_format import ChatFormat
from astune.errors import ModelError, nearest
from astune.support.file_kinds import Kind, other_kind
from astune.support.resources import tiny_model_dir

ADAPTER_CONFIG = "adapter_config.json"
"""The file of peft's format that says what an adapter is, and over which base."""
ADAPTER_WEIGHTS = "adapter_model.safetensors"
"""The file of peft's format with its weights."""

TOKENIZER_FILES = (
    "tokenizer*",
    "chat_template*",
    "special_tokens_map.json",
    "vocab*",
    "merges.txt",
    "added_tokens.json",
)


def adapter_dir(path: str) -> Path | None:
    """The folder that `path` names, if that holds an adapter."""
    return Path(path) if (Path(path) / ADAPTER_CONFIG).is_file() else None


def list_adapters(folder: Path) -> list[str]:
    """List the names of those folders in a folder that hold an adapter, as those of the models in a checkpoint."""
    return sorted(file.parent.name for file in folder.glob(f"*/{ADAPTER_CONFIG}"))


def check_starts(models: Mapping[str, NamedModelConfig]) -> None:
    """Raises ModelError where one of `astune.models` begins with what is no adapter."""
    for name, model in models.items():
        start = model.start_from
        if start is None or adapter_dir(start) is not None:
            continue
        key, folder = f"astune.models.{name}.start_from", Path(start)
        near = list_adapters(folder if folder.is_dir() else folder.parent)
        if folder.is_dir():
            expected = f"; expected one of the adapters in it: {', '.join(near)}" if near else ""
            raise ModelError(f"{key}: {start} holds no adapter: it has no {ADAPTER_CONFIG}{expected}")
        raise ModelError(f"{key}: there is no folder {start!r}.{nearest(folder.name, near)}")


def base_name(adapter: Path) -> str:
    """The base model that the adapter in a folder names: a folder or a hub id."""
    file = adapter / ADAPTER_CONFIG
    try:
        return str(json.loads(file.read_text(encoding="utf-8"))["base_model_name_or_path"])
    except (OSError, ValueError, KeyError) as error:
        raise ModelError(f"{file} does not name the base model: {type(error).__name__}: {error}") from error


def resolve_model_dir(path: str, *, weights: bool = True, key: str = "astune.model.path") -> Path:
    """The shipped tiny model, a local folder, or a download from the hub, on request without its weights. `key` is the
    one that names it, for errors."""
    if path == "tiny":
        return tiny_model_dir()
    if adapter_dir(path) is not None:
        raise ModelError(
            f"{key}: {path} holds an adapter and no model; astune export --merged makes one model of it and its base"
        )
    if wrong := other_kind(Path(path), "the folder of a model", Kind.CHECKPOINT):
        raise ModelError(f"{key}: {wrong}")
    if Path(path).is_dir():
        return Path(path)
    if path.startswith((".", "/", "~")) or path.count("/") != 1:
        raise ModelError(f"{key}: there is no folder {path!r} (nor is it 'tiny' or a hub id owner/name)")
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    patterns = ["*.json", "*.jinja", "merges.txt", *["*.safetensors"] * weights]
    try:
        return Path(snapshot_download(path, allow_patterns=patterns))
    except (HfHubHTTPError, LocalEntryNotFoundError, HFValidationError, OSError) as error:
        raise ModelError(
            f"{key}: {path!r} is neither a folder nor could it be fetched from the hub: {error}"
        ) from error


def resolve_base_dir(path: str, *, weights: bool = True, key: str = "astune.model.path") -> Path:
    """The folder that `resolve_model_dir` gives; for an adapter that of its base, which has the files that it lacks."""
    adapter = adapter_dir(path)
    if adapter is None:
        return resolve_model_dir(path, weights=weights, key=key)
    name = base_name(adapter)
    try:
        return resolve_model_dir(name, weights=weights)
    except ModelError as error:
        raise ModelError(
            f"{adapter / ADAPTER_CONFIG}: the base model {name!r} is not there; if it was moved, say so at "
            "base_model_name_or_path"
        ) from error


def load_chat_format(model: ModelConfig, directory: Path) -> ChatFormat:
    """Read the tokenizer and the chat template in `directory` as `astune.model` says."""
    return ChatFormat.load(
        directory,
        tool_call_format=model.tool_call_format,
        template_kwargs=model.chat_template_kwargs,
        clock=model.clock,
    )


def load_formats(config: AstuneConfig, chat_format: ChatFormat) -> dict[str, ChatFormat]:
    """Read those of `astune.models`, where `chat_format` is that of `astune.model`; none where all have this one."""
    found, by_path = {}, {config.model.path: chat_format}
    for name in config.models:
        own = config_of(config, name).model
        if own.path not in by_path:
            folder = resolve_base_dir(own.path, weights=False, key=f"astune.models.{name}.path")
            by_path[own.path] = load_chat_format(own, folder)
        found[name] = by_path[own.path]
    return found if len(by_path) > 1 else {}


def copy_tokenizer(source: Path, target: Path) -> None:
    """Copy tokenizer and chat template from one model folder to another."""
    for pattern in TOKENIZER_FILES:
        for file in source.glob(pattern):
            shutil.copyfile(file, target / file.name)

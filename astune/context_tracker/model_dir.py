"""The folder behind `astune.model.path`."""

from __future__ import annotations

from pathlib import Path

from astune.config.schema import ModelConfig
from astune.context_tracker.prompt.chat_format import ChatFormat
from astune.errors import ModelError
from astune.support.resources import tiny_model_dir


def resolve_model_dir(path: str, *, weights: bool = True, key: str = "astune.model.path") -> Path:
    """The shipped tiny model, a local folder, or a download from the hub, on request without its weights. `key` is the
    one that names it, for errors."""
    if path == "tiny":
        return tiny_model_dir()
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


def load_chat_format(model: ModelConfig, directory: Path) -> ChatFormat:
    """Read the tokenizer and the chat template in `directory` as `astune.model` says."""
    return ChatFormat.load(
        directory, tool_call_format=model.tool_call_format, template_kwargs=model.chat_template_kwargs
    )

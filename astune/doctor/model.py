"""Is the model there, whole, and with a chat template?"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from pathlib import Path

from astune.backbone.model_dir import resolve_model_dir
from astune.context_tracker.chat_format import ChatFormat
from astune.doctor.findings import Finding, fail, ok, skip
from astune.doctor.model_size import ModelSize, read_size
from astune.doctor.patient import Patient
from astune.errors import ModelError

KEY = "astune.model.path"


def check_model(patient: Patient) -> Iterator[Finding]:
    config = patient.config.model
    folder = yield from _folder(patient)
    if folder is None:
        return
    patient.model_dir = folder
    problems = 0
    try:
        patient.chat_format = ChatFormat.load(
            folder, tool_call_format=config.tool_call_format, template_kwargs=config.chat_template_kwargs
        )
    except ModelError as error:
        problems += 1
        yield fail(
            str(error), where=patient.where(KEY), mend="take the instruct version of the model, with all its files"
        )
    try:
        size = patient.size = read_size(folder)
    except ModelError as error:
        yield fail(str(error), where=patient.where(KEY), mend="fetch the model anew, with all its files")
        return
    is_hub = not Path(config.path).is_dir() and config.path != "tiny"
    if size.source == "config.json" and not is_hub:
        problems += 1
        yield fail(
            f"{folder} has no weights (*.safetensors)",
            where=patient.where(KEY),
            mend="copy them there too, or convert older weights with transformers' save_pretrained",
        )
    if not problems:
        yield ok(f"{config.path}: {_shown(size)}")


def _folder(patient: Patient) -> Generator[Finding, None, Path | None]:
    """The folder with at least the small files of the model; None if it cannot be had."""
    path = patient.config.model.path
    is_hub = (
        path != "tiny" and not Path(path).is_dir() and path.count("/") == 1 and not path.startswith((".", "/", "~"))
    )
    try:
        if is_hub and patient.offline:
            return _cached(path)
        return resolve_model_dir(path, weights=False)
    except ModelError as error:
        mend = "'tiny', a folder in Hugging Face's format, or a hub id such as Qwen/Qwen3-0.6B"
        yield fail(str(error).splitlines()[0], where=patient.where(KEY), mend=mend)
    except FileNotFoundError:
        yield skip(f"{path} is on the Hugging Face hub and not yet on this machine, and this is --offline")
    return None


def _cached(path: str) -> Path:
    """What this machine has of a model of the hub. Raises `FileNotFoundError` if that is nothing."""
    from huggingface_hub import snapshot_download

    return Path(snapshot_download(path, local_files_only=True))


def _shown(size: ModelSize) -> str:
    return f"{in_short(size.parameters)} parameters (by its {size.source}), {size.layers} layers"


def in_short(number: float) -> str:
    """
    >>> in_short(900_000), in_short(7_600_000_000)
    ('0.9M', '7.6B')
    """
    return f"{number / 1e9:.1f}B" if number >= 1e9 else f"{number / 1e6:.1f}M"

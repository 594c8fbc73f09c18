"""Is the model there, whole, and with a chat template?"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from pathlib import Path

from astune.backbone.model_dir import load_chat_format, resolve_model_dir
from astune.doctor.findings import Finding, fail, ok, skip
from astune.doctor.hub import cached_model, is_hub_id, is_reachable
from astune.doctor.model_size import ModelSize, read_size
from astune.doctor.patient import Patient
from astune.doctor.units import in_short
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
        patient.chat_format = load_chat_format(config, folder)
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
    if size.source == "config.json" and not is_hub_id(config.path):
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
    path, where = patient.config.model.path, patient.where(KEY)
    if is_hub_id(path) and (patient.offline or not is_reachable()):
        folder = cached_model(path)
        if folder is None and patient.offline:
            yield skip(f"{path} is on the Hugging Face hub and not yet on this machine, and this is --offline")
        elif folder is None:
            mend = "connect to the hub once, or copy the model here and name its folder"
            yield fail(
                f"{path} is not on this machine, and the Hugging Face hub cannot be reached", where=where, mend=mend
            )
        return folder
    try:
        return resolve_model_dir(path, weights=False)
    except ModelError as error:
        mend = "'tiny', a folder in Hugging Face's format, or a hub id such as Qwen/Qwen3-0.6B"
        yield fail(str(error).splitlines()[0], where=where, mend=mend)
        return None


def _shown(size: ModelSize) -> str:
    return f"{in_short(size.parameters)} parameters (by its {size.source}), {size.layers} layers"

"""Is the model there, whole, and with a chat template?"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from copy import copy
from dataclasses import replace
from pathlib import Path

from astune.backbone.lora.targets import ends_of, why_refused
from astune.backbone.memory.model_size import ModelSize, layers_in, read_size
from astune.config.rules.models import config_of
from astune.context_tracker.model_dir import adapter_dir, check_starts, load_chat_format, resolve_base_dir
from astune.doctor.checked_config import CheckedConfig
from astune.doctor.findings import Finding, fail, ok, skip
from astune.doctor.hub import find_cached_model, is_hub_id, is_reachable
from astune.errors import ModelError
from astune.support.machine_memory import show_count

KEY = "astune.model.path"


def check_model(checked: CheckedConfig) -> Iterator[Finding]:
    yield from _check_one(checked, KEY, checked.where(KEY))
    for name, model in checked.config.models.items():
        if model.path is not None and model.path not in checked.sizes:
            config = checked.loaded.config.model_copy(update={"astune": config_of(checked.config, name)})
            own = copy(checked)
            own.loaded = replace(checked.loaded, config=config)
            vars(own).pop("size", None)
            yield from _check_one(own, f"astune.models.{name}.path", checked.where("astune.models"))
            if "size" in vars(own):
                checked.sizes[model.path] = own.size
    try:
        check_starts(checked.config.models)
    except ModelError as error:
        key, _, what = str(error).partition(": ")
        yield fail(what, where=checked.where(key), fix="name the folder of one model in a checkpoint")


def _check_one(checked: CheckedConfig, key: str, where: str) -> Iterator[Finding]:
    config = checked.config.model
    folder = yield from _folder(checked, key, where)
    if folder is None:
        return
    checked.model_dir = folder
    problems = 0
    if adapter_dir(config.path) is not None and config.lora.rank is None:
        problems += 1
        yield fail(
            f"{config.path} holds an adapter, and astune.model.lora.rank is not set",
            where=where,
            fix="give the astune.model.lora it was trained with, or merge it (astune export --merged)",
        )
    try:
        checked.chat_format = load_chat_format(config, folder)
    except ModelError as error:
        problems += 1
        yield fail(str(error), where=where, fix="take the instruct version of the model, with all its files")
    try:
        size = checked.size = read_size(folder)
    except ModelError as error:
        yield fail(str(error), where=where, fix="fetch the model anew, with all its files")
        return
    if size.source == "config.json" and not is_hub_id(config.path):
        problems += 1
        yield fail(
            f"{folder} has no weights (*.safetensors)",
            where=where,
            fix="copy them there too, or convert older weights with transformers' save_pretrained",
        )
    for found in _targets(checked, folder, size):
        problems += 1
        yield found
    if not problems:
        parameters = f"{show_count(size.parameters)} parameters (by its {size.source})"
        yield ok(f"{config.path}: {parameters}, {size.layers} layers")


def _targets(checked: CheckedConfig, folder: Path, size: ModelSize) -> Iterator[Finding]:
    """The targets that get no adapter, where weights are there to tell."""
    layers, others = layers_in(folder)
    for target in checked.config.model.lora.targets if layers else ():
        if (why := why_refused(target, layers, others, tied=size.tied)) is not None:
            yield fail(
                why,
                where=checked.where("astune.model.lora.targets"),
                fix=f"take some of {', '.join(ends_of(layers))}, or leave the key out: then all get an adapter",
            )


def _folder(checked: CheckedConfig, key: str, where: str) -> Generator[Finding, None, Path | None]:
    """The folder with at least the small files of the model; None if it cannot be had."""
    path = checked.config.model.path
    if is_hub_id(path) and (checked.offline or not is_reachable()):
        folder = find_cached_model(path)
        if folder is None and checked.offline:
            yield skip(f"{path} is on the Hugging Face hub and not yet on this machine, and this is --offline")
        elif folder is None:
            fix = "connect to the hub once, or copy the model here and name its folder"
            yield fail(
                f"{path} is not on this machine, and the Hugging Face hub cannot be reached", where=where, fix=fix
            )
        return folder
    try:
        return resolve_base_dir(path, weights=False, key=key)
    except ModelError as error:
        fix = "'tiny', a folder in Hugging Face's format, or a hub id such as Qwen/Qwen3-0.6B"
        yield fail(str(error).splitlines()[0], where=where, fix=fix)
        return None

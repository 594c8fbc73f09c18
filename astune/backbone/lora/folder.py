"""An adapter as a folder of peft's, which says by `base_mark` over which weights it was trained."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from astune.backbone.lora.settings import import_peft
from astune.context_tracker.model_dir import ADAPTER_CONFIG, ADAPTER_WEIGHTS
from astune.errors import ModelError, name_error
from astune.monitor.disk import follow_umask

BASE_MARK = "base_"
"""Begins the name by which the file of an adapter says `base_digest`; then comes `astune.model.lora.base`: weights in
4 bits have another one."""
SETTINGS = {
    "rank": "r",
    "alpha": "lora_alpha",
    "targets": "target_modules",
    "rslora": "use_rslora",
    "dora": "use_dora",
}
"""Keys of `astune.model.lora` by which adapters differ, with the names they have in peft's file."""


def base_mark(base: str, digest: str) -> dict[str, str]:
    """Make the entry by which the file of an adapter over `astune.model.lora.base` names its base model."""
    return {f"{BASE_MARK}{base}": digest}


def save_adapter(directory: Path, tensors: Mapping[str, torch.Tensor], settings: Any, mark: Mapping[str, str]) -> None:
    """Write the `tensors` of an adapter, under the names that they have in peft's file, and peft's `settings` of it."""
    directory.mkdir(parents=True, exist_ok=True)
    save_file(dict(tensors), directory / ADAPTER_WEIGHTS, metadata={"format": "pt"} | dict(mark))
    follow_umask(directory)
    settings = copy.copy(settings)
    settings.target_modules = sorted(settings.target_modules)  # a set, whose order is another in each process
    settings.save_pretrained(str(directory))


def read_adapter(directory: Path, own: Any, mark: Mapping[str, str]) -> dict[str, torch.Tensor]:
    """The tensors that `save_adapter` wrote. Raises ModelError for an adapter of another base than `mark` says, or with
    other settings than `own`, those of peft."""
    if not (directory / ADAPTER_CONFIG).is_file():
        raise ModelError(f"{directory} holds no adapter: it has no {ADAPTER_CONFIG}")
    try:
        saved = import_peft().LoraConfig.from_pretrained(str(directory))
        with safe_open(directory / ADAPTER_WEIGHTS, "pt") as file:
            found = dict(mark) | (file.metadata() or {})
            weights = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 (no mapping)
    except (OSError, ValueError, TypeError, SafetensorError) as error:
        raise ModelError(f"the adapter in {directory} does not load: {name_error(error)}") from error
    different = [
        f"astune.model.lora.{key} is {_sort_values(getattr(own, field))}, and was {_sort_values(getattr(saved, field))}"
        for key, field in SETTINGS.items()
        if _sort_values(getattr(own, field)) != _sort_values(getattr(saved, field))
    ]
    if different:
        raise ModelError(f"the adapter in {directory} is another one: {'; '.join(different)}")
    if not mark.items() <= found.items():
        raise ModelError(
            f"the adapter in {directory} was trained over other weights than those of "
            f"{own.base_model_name_or_path} (it says {saved.base_model_name_or_path})"
        )
    return weights


def check_shapes(directory: Path, found: Mapping[str, torch.Tensor], own: Mapping[str, torch.Tensor]) -> None:
    """Raise ModelError where the tensors of the adapter in a folder are not of the shapes of one's `own`."""
    if {key: value.shape for key, value in found.items()} != {key: value.shape for key, value in own.items()}:
        raise ModelError(f"the adapter in {directory} has not the tensors that its {ADAPTER_CONFIG} promises")


def base_digest_in(directory: Path) -> str | None:
    """Read the digest of the base from the adapter in a folder, if the base was read in the precision of
    `astune.model.dtype`."""
    with safe_open(directory / ADAPTER_WEIGHTS, "pt") as file:
        return (file.metadata() or {}).get(f"{BASE_MARK}dtype")


def _sort_values(value: Any) -> Any:
    return sorted(value) if isinstance(value, set | frozenset | list) else value

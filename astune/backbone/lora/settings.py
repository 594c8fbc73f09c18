"""Settings of an adapter for peft, the layers that get one, and the base that it belongs to."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch

from astune.backbone.lora.targets import ends_of, why_refused
from astune.config.schema import LoraConfig, ModelConfig
from astune.context_tracker.model_dir import adapter_dir
from astune.errors import MissingDependency, ModelError

SOLE = "default"
"""The name of the adapter where there is one, which is also peft's."""


def import_peft() -> Any:
    """The package peft. Raises MissingDependency without it."""
    try:
        import peft
    except ImportError as error:
        raise MissingDependency('astune.model.lora needs the package peft: pip install "astune[lora]"') from error
    return peft


def find_begun_adapter(config: ModelConfig) -> Path | None:
    """Find the folder of the adapter that a run begins with, where `astune.model.path` names one. Raises ModelError
    where `astune.model.lora` does not say what it is."""
    begin = adapter_dir(config.path)
    if begin is not None and config.lora.rank is None:
        raise ModelError(
            f"astune.model.path: {begin} holds an adapter, and astune.model.lora.rank is not set; give the "
            "astune.model.lora it was trained with, or one model of it and its base (astune export --merged)"
        )
    return begin


def locate_base(path: str, directory: Path) -> str:
    """Name the place of an adapter's base model, for the readers of its files: a folder, or a hub id."""
    return str(directory.resolve()) if path == "tiny" or Path(path).is_dir() else path


def linear_layers(model: torch.nn.Module) -> list[str]:
    """The full names of the layers that can have an adapter: all linear ones but the head."""
    head = model.get_output_embeddings()  # type: ignore[operator]
    return [
        name for name, module in model.named_modules() if isinstance(module, torch.nn.Linear) and module is not head
    ]


def target_names(model: torch.nn.Module, wanted: Sequence[str]) -> list[str]:
    """The last parts of the names of the layers that get an adapter: those wanted, or all. Raises ModelError for one
    that no layer has."""
    layers = linear_layers(model)
    ends = ends_of(layers)
    if not layers:
        raise ModelError("astune.model.lora: the model has no linear layer but its head, so nothing gets an adapter")
    if wanted:
        others, tied = _list_other_parts(model)
        for target in wanted:
            if (why := why_refused(target, layers, others, tied=tied)) is not None:
                end = "" if why[-1] in ".?" else "."
                raise ModelError(f"astune.model.lora.targets: {why}{end} There are: {', '.join(ends)}")
    return sorted(set(wanted)) or ends


def _list_other_parts(model: torch.nn.Module) -> tuple[dict[str, str], bool]:
    """List the parts of a model beside its linear layers, by name, and tell if its head and its embedding share a
    weight."""
    head, embedding = model.get_output_embeddings(), model.get_input_embeddings()  # type: ignore[operator]
    linear = set(linear_layers(model))
    found = {name: "a parameter" for name, _ in model.named_parameters()}
    for name, module in model.named_modules():
        if name and name not in linear:
            found[name] = (
                "head" if module is head else "embedding" if module is embedding else f"of type {type(module).__name__}"
            )
    return found, head is not None and embedding is not None and head.weight is embedding.weight


def peft_settings(config: LoraConfig, targets: Sequence[str], base: str) -> Any:
    """`astune.model.lora` as peft has it. `base` is where others find the base model: it stands in the files."""
    return import_peft().LoraConfig(
        r=config.rank,
        lora_alpha=config.alpha,
        target_modules=list(targets),
        use_rslora=config.rslora,
        use_dora=config.dora,
        task_type="CAUSAL_LM",
        base_model_name_or_path=base,
    )


def base_digest(parameters: Iterable[tuple[str, torch.Tensor]]) -> str:
    """Tell base models apart by the first row of each matrix, in whatever precision they were loaded."""
    digest = hashlib.sha256()
    for name, parameter in parameters:
        if parameter.ndim > 1:
            row = parameter.detach().reshape(-1)[: math.prod(parameter.shape[1:])]
            number = row.to(torch.bfloat16) if row.is_floating_point() else row
            digest.update(name.encode())
            digest.update(number.cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()

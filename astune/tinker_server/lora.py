"""The adapter that a client asks for, over the frozen base model of the server.

Rank 0 asks for none: all weights are trained. The head never gets an adapter, as its weights are often those of the
embedding; the SDK asks for one unless it is told not to.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeAlias

import torch

from astune.backbone.local.model.adapters import Adapters
from astune.backbone.local.model.model import read_weights
from astune.backbone.lora.settings import import_peft, linear_layers
from astune.config.schema import LoraConfig
from astune.context_tracker.model_dir import ADAPTER_CONFIG
from astune.tinker_server.requests import RequestBody, RequestError

Asked: TypeAlias = "dict[str, Any]"
"""A client's `lora_config`, with what it left out; `train_unembed` says what is done."""

MOST_RANK = 4096
_MOST_SEED = 2**63 - 1


def read_lora(body: RequestBody) -> Asked:
    """Raises RequestError where a field is of the wrong kind, or nothing is left to train."""
    parts = {name: body.flag(name, True) for name in ("train_mlp", "train_attn")}
    rank = body.whole("rank", most=MOST_RANK)
    seed = body.whole("seed", most=_MOST_SEED) if body.pick("seed") else None
    if body.flag("train_unembed") and not any(parts.values()):
        raise RequestError("train_unembed alone leaves nothing to train: this server gives the head no adapter")
    if not any(parts.values()):
        raise RequestError("neither train_mlp nor train_attn: there is nothing to train")
    if rank == 0 and not all(parts.values()):
        raise RequestError("rank 0 trains all weights; train_mlp and train_attn choose where adapters are, of a rank")
    return {"rank": rank, "seed": seed, **parts, "train_unembed": rank == 0}


def new_adapters(model: Any, asked: Asked, base: str) -> Adapters:
    """The adapter over `model` that begins as nothing, drawn from the client's seed if it gave one."""
    settings = LoraConfig(rank=asked["rank"], targets=_targets(model, asked))
    if asked["seed"] is None:
        return Adapters(model, settings, base)
    with torch.random.fork_rng():
        torch.manual_seed(asked["seed"])
        return Adapters(model, settings, base)


def _targets(model: Any, asked: Asked) -> tuple[str, ...]:
    """The layers with an adapter, by their whole names; () for all."""
    if asked["train_mlp"] and asked["train_attn"]:
        return ()
    chosen = tuple(name for name in linear_layers(model) if ("attn" in name) == asked["train_attn"])
    if not chosen:
        part = "attention" if asked["train_attn"] else "MLP"
        raise RequestError(f"the model has no linear layer in its {part} blocks that could have an adapter")
    return chosen


def is_adapter(folder: Path) -> bool:
    """True if a checkpoint holds an adapter alone."""
    return (folder / ADAPTER_CONFIG).is_file()


def read_sampled(base: Path, folder: Path, device: torch.device, dtype: torch.dtype) -> Any:
    """The model that `folder` holds, or the base with the adapter that it holds. Raises ModelError."""
    if not is_adapter(folder):
        return read_weights(folder).to(device, dtype).eval()
    model = read_weights(base, dtype).to(device).eval()
    saved = import_peft().LoraConfig.from_pretrained(str(folder))
    settings = LoraConfig(rank=saved.r, alpha=saved.lora_alpha, targets=tuple(sorted(saved.target_modules)))
    Adapters(model, settings, saved.base_model_name_or_path).load(folder)
    return model

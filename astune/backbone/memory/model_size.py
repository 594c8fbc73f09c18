"""The size of a model, read from the small files of its folder: no weights are loaded."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from astune.context_tracker.prompt.template import read_json
from astune.errors import ModelError


@dataclass(frozen=True)
class ModelSize:
    """`source` says where `parameters` is from."""

    parameters: int
    source: str
    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    tied: bool
    """Embedding and head are one tensor."""

    @property
    def groups(self) -> int:
        """Query heads for each key-value head."""
        return self.heads // self.kv_heads


def read_size(folder: Path) -> ModelSize:
    """Raises `ModelError` if `config.json` is not there or does not say how large the model is."""
    whole = read_json(folder / "config.json")
    config = {**whole, **whole.get("text_config", {})}
    needed = ("num_hidden_layers", "hidden_size", "num_attention_heads", "vocab_size", "intermediate_size")
    missing = [name for name in needed if not isinstance(config.get(name), int)]
    if missing:
        raise ModelError(f"{folder / 'config.json'} does not say {', '.join(missing)}")
    counted = parameters_in(folder)
    heads = config["num_attention_heads"]
    return ModelSize(
        parameters=counted if counted is not None else _estimate_parameters(config),
        source="safetensors headers" if counted is not None else "config.json",
        layers=config["num_hidden_layers"],
        hidden=config["hidden_size"],
        intermediate=config["intermediate_size"],
        heads=heads,
        kv_heads=config.get("num_key_value_heads") or heads,
        head_dim=config.get("head_dim") or config["hidden_size"] // heads,
        vocabulary=config["vocab_size"],
        tied=bool(config.get("tie_word_embeddings")),
    )


def parameters_in(folder: Path) -> int | None:
    """Numbers in all tensors, from the headers of the weight files; None if the folder has no weights in safetensors.

    Raises `ModelError` for a file that is cut off or listed and not there.
    """
    files = sorted(folder.glob("*.safetensors"))
    listed = set(read_json(folder / "model.safetensors.index.json").get("weight_map", {}).values())
    if files and (gone := sorted(listed - {file.name for file in files})):
        raise ModelError(f"{folder} lacks {', '.join(gone)}, which model.safetensors.index.json lists")
    if not files:
        return None
    tensors = [entry for file in files for entry in _tensors_in(file).values()]
    return sum(math.prod(map(int, entry["shape"])) for entry in tensors)


def layers_in(folder: Path) -> tuple[list[str], dict[str, str]]:
    """The names of the layers with a matrix for a weight; and the others with what they are, as far as a name tells."""
    layers, others = [], {"lm_head": "head"}
    for file in sorted(folder.glob("*.safetensors")):
        for tensor, entry in _tensors_in(file).items():
            name = tensor.removesuffix(".weight")
            if "embed" in name or "lm_head" in name:
                others[name] = "head" if "lm_head" in name else "embedding"
            elif len(entry["shape"]) == 2 and name != tensor:
                layers.append(name)
            else:
                others[name] = "a layer without a matrix" if name != tensor else "a parameter"
    return layers, others


def _tensors_in(file: Path) -> dict[str, Any]:
    """The header: eight bytes of its length, then JSON with shape and place of each tensor."""
    with file.open("rb") as opened:
        length = int.from_bytes(opened.read(8), "little")
        try:
            header = json.loads(opened.read(length)) if length < file.stat().st_size else None
        except ValueError as error:
            raise ModelError(f"{file} has a broken header: {error}") from error
    tensors = {name: entry for name, entry in (header or {}).items() if name != "__metadata__"}
    end = max((entry["data_offsets"][1] for entry in tensors.values()), default=0)
    if header is None or file.stat().st_size < 8 + length + end:
        raise ModelError(f"{file} is cut off: its header names more bytes than the file has")
    return tensors


def _estimate_parameters(config: Mapping[str, Any]) -> int:
    """A decoder with gated feed-forward layers, with experts if the config has them; norms are left out."""
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    dim = config.get("head_dim") or hidden // heads
    attention = hidden * dim * 2 * (heads + (config.get("num_key_value_heads") or heads))
    experts = config.get("num_experts") or config.get("num_local_experts") or 1
    width = config.get("moe_intermediate_size") or config["intermediate_size"]
    embedding = config["vocab_size"] * hidden * (1 if config.get("tie_word_embeddings") else 2)
    return int(embedding + config["num_hidden_layers"] * (attention + 3 * hidden * width * experts))


def layer_bytes(size: ModelSize, number: int, has_adapter: bool) -> int:
    """Bytes that one layer keeps of a token for its backward pass, with `number` bytes for each that it computes with.
    Adapters are in float32, and keep what they read in float32 where it is in less. 20 and 5 were counted on small
    models (tests/doctor/test_memory_estimate.py)."""
    own = number * (20 * size.hidden + 5 * size.intermediate)
    read = 5 * size.hidden + size.heads * size.head_dim + size.intermediate
    return own + (4 * read if has_adapter and number < 4 else 0)


def adapter_numbers(size: ModelSize, rank: int, targets: tuple[str, ...]) -> int:
    """Numbers in adapters over `targets`, or over all linear layers of an attention and a gated feed-forward layer.
    Layers of other names count as square."""
    queries, keys = size.heads * size.head_dim, size.kv_heads * size.head_dim
    sides = {
        "q_proj": size.hidden + queries,
        "k_proj": size.hidden + keys,
        "v_proj": size.hidden + keys,
        "o_proj": queries + size.hidden,
        "gate_proj": size.hidden + size.intermediate,
        "up_proj": size.hidden + size.intermediate,
        "down_proj": size.intermediate + size.hidden,
    }
    return size.layers * rank * sum(sides.get(name, 2 * size.hidden) for name in targets or sides)

"""Models of random weights in the shapes of Qwen3, and what a step of theirs has to move and to multiply."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import gettempdir

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM
from transformers.utils import logging

from astune.backbone.local.learning.batch import micro_batches
from astune.types import Sample

NUMBERS = {
    "0.6B": {"hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 16},
    "4B": {"hidden_size": 2560, "intermediate_size": 9728, "num_hidden_layers": 36, "num_attention_heads": 32},
    "83M": {"hidden_size": 768, "intermediate_size": 2304, "num_hidden_layers": 10, "num_attention_heads": 12},
    "tiny": {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4},
}
"""Those of Qwen3 as in their config.json; tied embeddings, as both have them."""
LARGE = {"num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151_936, "max_position_embeddings": 40_960}
MEDIUM = {"num_key_value_heads": 4, "head_dim": 64, "vocab_size": 18_000, "max_position_embeddings": 40_960}
SMALL = {"num_key_value_heads": 2, "head_dim": 16, "vocab_size": 8192, "max_position_embeddings": 40_960}


@dataclass(frozen=True)
class Shape:
    name: str
    config: Qwen3Config

    @property
    def matrices(self) -> int:
        """Numbers in the matrices that every token is multiplied with, the head aside."""
        c = self.config
        attention = 2 * c.hidden_size * c.head_dim * (c.num_attention_heads + c.num_key_value_heads)
        return c.num_hidden_layers * (attention + 3 * c.hidden_size * c.intermediate_size)

    @property
    def head(self) -> int:
        return self.config.vocab_size * self.config.hidden_size

    def cached(self, dtype: torch.dtype) -> int:
        """Bytes of keys and values of one token."""
        c = self.config
        return 2 * c.num_hidden_layers * c.num_key_value_heads * c.head_dim * dtype.itemsize

    def decode_bytes(self, rows: int, tokens: float, dtype: torch.dtype) -> float:
        """What a step for `rows` conversations of `tokens` tokens has to read: all weights, all keys and values."""
        return (self.matrices + self.head) * dtype.itemsize + rows * tokens * self.cached(dtype)

    def attention_flops(self, seen: float) -> float:
        """Of a forward pass whose tokens see `seen` tokens, all together."""
        c = self.config
        return 4.0 * c.num_hidden_layers * c.num_attention_heads * c.head_dim * seen

    def forward_flops(self, tokens: int, seen: float, heads: int) -> float:
        """`heads` is for how many tokens there are logits."""
        return 2.0 * (self.matrices * tokens + self.head * heads) + self.attention_flops(seen)


def tree_flops(made: Shape, samples: Sequence[Sample], most: int) -> float:
    """Of a forward pass over the trees of `samples`, in batches of at most `most` tokens."""
    total = 0.0
    for batch in micro_batches(samples, most, torch.device("cpu")):
        seen = float((batch.positions + 1).sum())
        total += made.forward_flops(batch.tokens.numel(), seen, len(batch.predictors))
    return total


def shape(name: str) -> Shape:
    rest = {"tiny": SMALL, "83M": MEDIUM}.get(name, LARGE)
    return Shape(name, Qwen3Config(**NUMBERS[name], **rest, tie_word_embeddings=True, rms_norm_eps=1e-6))


def model_folder(name: str, device: torch.device) -> Path:
    """A folder with the model in bfloat16, made once on a machine: drawing and writing its numbers takes time."""
    made = hashlib.sha256(shape(name).config.to_json_string().encode()).hexdigest()[:12]
    folder = Path(gettempdir()) / f"gpu_check_qwen3_{name}_{made}"
    if not (folder / "written").is_file():
        logging.disable_progress_bar()
        torch.manual_seed(0)
        with device:
            model = Qwen3ForCausalLM(shape(name).config)
        model.to(torch.bfloat16).save_pretrained(folder)
        (folder / "written").touch()
    return folder

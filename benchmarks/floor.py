"""The least that the work of one step can cost on this machine with torch: what `local_vs_trl.py` measures against.

Plain loops without scheduling, agents, tokens-to-text or control over sampling. Generation: one forward pass over
each distinct prompt, then one fused step per token with a preallocated cache, written out for Qwen3. Training: one
forward and backward pass over as many tokens as are distinct, in short plain rows without any tree, and no update.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F


@dataclass(frozen=True)
class Shape:
    """`groups` prompts of `prompt` tokens, `repeat` answers of `answer` tokens to each."""

    groups: int
    repeat: int
    prompt: int
    answer: int

    @property
    def rows(self) -> int:
        return self.groups * self.repeat


class PlainQwen3:
    """Qwen3's decoder as straight code: fused projections, one preallocated cache, all rows equally long."""

    def __init__(self, model: Any, rows: int, length: int) -> None:
        config, state = model.config, model.state_dict()
        self.heads, self.kv_heads, self.dim = config.num_attention_heads, config.num_key_value_heads, config.head_dim
        self.width, self.eps = config.hidden_size, config.rms_norm_eps
        self.embedding, self.norm = state["model.embed_tokens.weight"], state["model.norm.weight"]
        self.head = state.get("lm_head.weight", self.embedding)
        self.layers = []
        for index in range(config.num_hidden_layers):
            layer = {n.removeprefix(f"model.layers.{index}."): w for n, w in state.items() if f"layers.{index}." in n}
            attention = [layer[f"self_attn.{name}_proj.weight"] for name in "qkv"]
            mlp = [layer[f"mlp.{name}_proj.weight"] for name in ("gate", "up")]
            self.layers.append(layer | {"qkv": torch.cat(attention), "gate_up": torch.cat(mlp)})
        inverse = config.rope_parameters["rope_theta"] ** -(torch.arange(0, self.dim, 2).float() / self.dim)
        angle = torch.outer(torch.arange(length).float(), inverse).repeat(1, 2)
        self.cos, self.sin = angle.cos(), angle.sin()
        shape = (len(self.layers), rows, self.kv_heads, length, self.dim)
        self.keys, self.values = torch.empty(shape), torch.empty(shape)

    def forward(self, ids: torch.Tensor, start: int) -> torch.Tensor:
        """Logits (rows, vocabulary) behind the last of `ids` (rows, tokens), which stand at `start` and after."""
        rows, tokens = ids.shape
        stop = start + tokens
        hidden = self.embedding[ids]
        for index, layer in enumerate(self.layers):
            x = self._norm(hidden, layer["input_layernorm.weight"])
            qkv = F.linear(x, layer["qkv"]).view(rows, tokens, -1, self.dim).transpose(1, 2)
            query, key, value = qkv.split((self.heads, self.kv_heads, self.kv_heads), dim=1)
            query = self._rotate(self._norm(query, layer["self_attn.q_norm.weight"]), start, stop)
            key = self._rotate(self._norm(key, layer["self_attn.k_norm.weight"]), start, stop)
            keys, values = self.keys[index, :rows], self.values[index, :rows]
            keys[:, :, start:stop], values[:, :, start:stop] = key, value
            if tokens > 1:
                out = F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
            else:
                folded = query.reshape(rows, self.kv_heads, -1, self.dim)
                out = F.scaled_dot_product_attention(folded, keys[:, :, :stop], values[:, :, :stop])
                out = out.reshape(rows, self.heads, 1, self.dim)
            hidden = hidden + F.linear(out.transpose(1, 2).reshape(rows, tokens, -1), layer["self_attn.o_proj.weight"])
            x = self._norm(hidden, layer["post_attention_layernorm.weight"])
            gate, up = F.linear(x, layer["gate_up"]).chunk(2, -1)
            hidden = hidden + F.linear(F.silu(gate) * up, layer["mlp.down_proj.weight"])
        return F.linear(self._norm(hidden[:, -1], self.norm), self.head)

    def _norm(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x, weight.shape, weight, self.eps)

    def _rotate(self, x: torch.Tensor, start: int, stop: int) -> torch.Tensor:
        left, right = x.chunk(2, -1)
        return x * self.cos[start:stop] + torch.cat([-right, left], -1) * self.sin[start:stop]


@torch.inference_mode()
def generation_seconds(model: Any, shape: Shape) -> float:
    plain = PlainQwen3(model, shape.rows, shape.prompt + shape.answer)
    prompts = torch.randint(model.config.vocab_size, (shape.groups, shape.prompt))
    started = time.perf_counter()
    logits = plain.forward(prompts, 0).repeat_interleave(shape.repeat, 0)
    for store in (plain.keys, plain.values):
        store[:, :, :, : shape.prompt] = store[:, : shape.groups, :, : shape.prompt].repeat_interleave(shape.repeat, 1)
    for position in range(shape.prompt, shape.prompt + shape.answer):
        token = torch.multinomial(logits.softmax(-1), 1)
        if position + 1 < shape.prompt + shape.answer:
            logits = plain.forward(token, position)
    return time.perf_counter() - started


def training_seconds(model: Any, shape: Shape, distinct: int) -> float:
    """`distinct` tokens that differ in what stands before them. `model` computes its attention with SDPA."""
    width = -(-distinct // shape.rows)
    ids = torch.randint(model.config.vocab_size, (shape.rows, width))
    kept = min(width, shape.answer)
    started = time.perf_counter()
    logits = model(input_ids=ids, use_cache=False, logits_to_keep=kept).logits
    logprobs = torch.log_softmax(logits, -1).gather(-1, ids[:, -kept:, None])
    (-logprobs.mean()).backward()
    seconds = time.perf_counter() - started
    model.zero_grad(set_to_none=True)
    return seconds

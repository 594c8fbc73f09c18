"""The least that the work of one step can cost on this machine with torch: what `local_vs_trl.py` measures against.

Plain loops without scheduling, agents, tokens-to-text or control over sampling. Generation: one forward pass over
each distinct prompt, then one fused step per token with a preallocated cache, written out for Qwen3; the keys of a
prompt are kept and read once for all of its answers. Training: one forward and backward pass over as many tokens as are
distinct, in short plain rows without any tree, and no update; prompts are seen by kernels of their own, one a layer and
direction. Products with weights are ASTune's.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from astune.backbone.local.model.products import Product


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


@dataclass
class Matrix:
    """A weight without a module."""

    weight: torch.Tensor
    bias: torch.Tensor | None = None


attention = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
attention_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


class PlainQwen3:
    """Qwen3's decoder as straight code: fused projections, preallocated caches for `shape.groups` prompts and
    `shape.rows` answers, each equally long."""

    def __init__(self, model: Any, shape: Shape) -> None:
        config, state = model.config, model.state_dict()
        self.heads, self.kv_heads, self.dim = config.num_attention_heads, config.num_key_value_heads, config.head_dim
        self.width, self.eps = config.hidden_size, config.rms_norm_eps
        self.embedding, self.norm = state["model.embed_tokens.weight"], state["model.norm.weight"]
        self.head = Product(Matrix(state.get("lm_head.weight", self.embedding)))
        self.layers = []
        for index in range(config.num_hidden_layers):
            layer = {n.removeprefix(f"model.layers.{index}."): w for n, w in state.items() if f"layers.{index}." in n}
            attention = [layer[f"self_attn.{name}_proj.weight"] for name in "qkv"]
            mlp = [layer[f"mlp.{name}_proj.weight"] for name in ("gate", "up")]
            joined = {"qkv": torch.cat(attention), "gate_up": torch.cat(mlp)}
            products = {name: Product(Matrix(w)) for name, w in (layer | joined).items() if w.ndim == 2}
            self.layers.append(layer | products)
        inverse = config.rope_parameters["rope_theta"] ** -(torch.arange(0, self.dim, 2).float() / self.dim)
        angle = torch.outer(torch.arange(shape.prompt + shape.answer).float(), inverse).repeat(1, 2)
        self.cos, self.sin = angle.cos(), angle.sin()
        self.shape = shape
        size = len(self.layers), self.kv_heads, self.dim
        self.prompts = [torch.empty(size[0], shape.groups, size[1], shape.prompt, size[2]) for _ in range(2)]
        self.answers = [torch.empty(size[0], shape.rows, size[1], shape.answer, size[2]) for _ in range(2)]

    def forward(self, ids: torch.Tensor, start: int) -> torch.Tensor:
        """Logits (rows, vocabulary) behind the last of `ids` (rows, tokens), which stand at `start` and after."""
        rows, tokens = ids.shape
        stop = start + tokens
        hidden = self.embedding[ids]
        for index, layer in enumerate(self.layers):
            x = self._norm(hidden, layer["input_layernorm.weight"])
            qkv = layer["qkv"].of(x).view(rows, tokens, -1, self.dim).transpose(1, 2)
            query, key, value = qkv.split((self.heads, self.kv_heads, self.kv_heads), dim=1)
            query = self._rotate(self._norm(query, layer["self_attn.q_norm.weight"]), start, stop)
            key = self._rotate(self._norm(key, layer["self_attn.k_norm.weight"]), start, stop)
            if start == 0:
                self.prompts[0][index], self.prompts[1][index] = key, value
                out = F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
            else:
                own = slice(start - self.shape.prompt, stop - self.shape.prompt)
                self.answers[0][index, :, :, own], self.answers[1][index, :, :, own] = key, value
                out = self._attend(index, query, own.stop)
            hidden = hidden + layer["self_attn.o_proj.weight"].of(out.transpose(1, 2).reshape(rows, tokens, -1))
            x = self._norm(hidden, layer["post_attention_layernorm.weight"])
            gate, up = layer["gate_up"].of(x).chunk(2, -1)
            hidden = hidden + layer["mlp.down_proj.weight"].of(F.silu(gate) * up)
        return self.head.of(self._norm(hidden[:, -1], self.norm))

    def _attend(self, index: int, query: torch.Tensor, answered: int) -> torch.Tensor:
        """(rows, heads, 1, dim): the prompt and what was answered, merged by their sums of exponentials."""
        shape, kv_heads = self.shape, self.kv_heads
        folded = query.reshape(shape.rows, kv_heads, -1, self.dim)
        own, total = attention(folded, *(store[index, :, :, :answered] for store in self.answers))
        asked = folded.view(shape.groups, shape.repeat, kv_heads, -1, self.dim).transpose(1, 2).flatten(2, 3)
        common, weight = attention(asked, *(store[index] for store in self.prompts))
        common = common.unflatten(2, (shape.repeat, -1)).transpose(1, 2).reshape(own.shape)
        weight = weight.unflatten(2, (shape.repeat, -1)).transpose(1, 2).reshape(total.shape)
        return torch.lerp(own, common, torch.sigmoid(weight - total)[..., None]).view(shape.rows, self.heads, 1, -1)

    def _norm(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x, weight.shape, weight, self.eps)

    def _rotate(self, x: torch.Tensor, start: int, stop: int) -> torch.Tensor:
        left, right = x.chunk(2, -1)
        return x * self.cos[start:stop] + torch.cat([-right, left], -1) * self.sin[start:stop]


def read_bandwidth() -> float:
    """Bytes per second, the best of five."""
    numbers, seconds = torch.ones(2**26), []
    for _ in range(5):
        started = time.perf_counter()
        numbers.sum()
        seconds.append(time.perf_counter() - started)
    return numbers.nbytes / min(seconds)


@torch.inference_mode()
def generation_seconds(model: Any, shape: Shape) -> float:
    plain = PlainQwen3(model, shape)
    prompts = torch.randint(model.config.vocab_size, (shape.groups, shape.prompt))
    started = time.perf_counter()
    logits = plain.forward(prompts, 0).repeat_interleave(shape.repeat, 0)
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
    seen = _seen(model.config, shape)
    started = time.perf_counter()
    logits = model(input_ids=ids, use_cache=False, logits_to_keep=kept).logits
    logprobs = torch.log_softmax(logits, -1).gather(-1, ids[:, -kept:, None])
    (-logprobs.mean()).backward()
    for _ in range(model.config.num_hidden_layers):
        for query, key, value, causal in seen:
            out, total = attention(query, key, value, 0.0, causal)
            attention_backward(out, query, key, value, out, total, 0.0, causal)
    seconds = time.perf_counter() - started
    model.zero_grad(set_to_none=True)
    return seconds


def _seen(config: Any, shape: Shape) -> list[tuple[torch.Tensor, torch.Tensor, torch.Tensor, bool]]:
    """What a layer computes of prompts that rows of answers leave out: queries, keys and values of all answers behind
    their prompt, the queries that share a key side by side; and of the prompts themselves."""
    heads, kv_heads, dim = config.num_attention_heads, config.num_key_value_heads, config.head_dim
    asked = torch.randn(shape.groups, kv_heads, shape.repeat * shape.answer * heads // kv_heads, dim)
    query, key, value = torch.randn(3, shape.groups, heads, shape.prompt, dim)
    return [(asked, key[:, :kv_heads], value[:, :kv_heads], False), (query, key, value, True)]

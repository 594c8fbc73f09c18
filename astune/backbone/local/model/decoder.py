"""The forward pass of the usual decoder, written out over the weights of transformers' modules: what a step of the
sampler costs is mostly the call of modules and of small operators, and here are fewer.

The usual decoder is known by its parts and not by its name: RMSNorm, rotary positions, grouped queries with or without
norms and biases, a gated feed-forward layer, and no parameter besides. Nothing is believed: before it is used its
logits are compared with the model's own, and a model of another build is sampled by its own forward pass.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import torch
from torch import nn
from torch.nn import functional

from astune.backbone.local.model.attention import Layout, Rule, additive_mask, attend_in_groups
from astune.backbone.local.model.norms import scales
from astune.backbone.local.model.products import Product, linear

TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-4}
"""Mean difference of two logits that count as equal, in standard deviations of all; more below float32."""
REDUCED_TOLERANCE = 0.05
PROBE_ROWS, PROBE_TOKENS = 3, 12
MODEL = {"model", "lm_head"}
TRUNK = {"embed_tokens", "layers", "norm", "rotary_emb"}
LAYER = {"self_attn", "mlp", "input_layernorm", "post_attention_layernorm"}
ATTENTION_PARTS = {"q_proj", "k_proj", "v_proj", "o_proj"}
HEAD_NORMS = {"q_norm", "k_norm"}
MLP_PARTS = {"gate_proj", "up_proj", "down_proj", "act_fn"}
FOREIGN_ERRORS = (TypeError, ValueError, RuntimeError, AttributeError, LookupError, NotImplementedError)


class Keeping(Layout, Protocol):
    """A layout that keeps keys and values beyond the pass."""

    def keep(self, layer: int, key: torch.Tensor, value: torch.Tensor) -> object:
        """Write `key` and `value` as `attend` does before a query sees them."""


class Joined:
    """Linear layers as one. Their parameters become views of one tensor: training, loading or copying weights in place
    changes the joined ones too, and no second copy is kept. Where a parameter was given other memory since, as by
    `model.to`, `refresh` joins anew."""

    def __init__(self, layers: Sequence[nn.Linear]) -> None:
        self.layers = layers
        self.weight, self._weights = _join([layer.weight for layer in layers])
        self.bias: torch.Tensor | None = None
        self._biases: list[tuple[torch.Tensor, int]] = []
        if layers[0].bias is not None:
            self.bias, self._biases = _join([layer.bias for layer in layers])

    def refresh(self) -> None:
        if any(parameter.data_ptr() != place for parameter, place in (*self._weights, *self._biases)):
            self.__init__(self.layers)  # type: ignore[misc]


def _join(parameters: Sequence[torch.Tensor]) -> tuple[torch.Tensor, list[tuple[torch.Tensor, int]]]:
    """One tensor of all, and each parameter with the address at which it now begins."""
    with torch.inference_mode(False), torch.no_grad():  # they are trained, too
        whole = torch.cat([parameter.detach() for parameter in parameters])
        for parameter, part in zip(parameters, torch.split(whole, [len(each) for each in parameters]), strict=True):
            parameter.data = part
    return whole, [(parameter, parameter.data_ptr()) for parameter in parameters]


class DecoderLayer:
    """The weights of one layer."""

    def __init__(self, layer: Any, rule: Rule) -> None:
        attention, mlp = layer.self_attn, layer.mlp
        self.rule = rule
        self.norm, self.after_norm = layer.input_layernorm, layer.post_attention_layernorm
        self.qkv = Joined([attention.q_proj, attention.k_proj, attention.v_proj])
        self.gate_up = Joined([mlp.gate_proj, mlp.up_proj])
        self.products = tuple(map(Product, (self.qkv, attention.o_proj, self.gate_up, mlp.down_proj)))
        self.act = mlp.act_fn
        self.dim: int = attention.head_dim
        self.heads = attention.q_proj.out_features // self.dim
        self.kv_heads = attention.k_proj.out_features // self.dim
        self.norms = (attention.q_norm, attention.k_norm) if "q_norm" in attention._modules else None

    def forward(self, index: int, hidden: torch.Tensor, turn: tuple[torch.Tensor, ...], layout: Layout) -> torch.Tensor:
        """`hidden` (n, t, width) is overwritten; `turn` are cosines and signed sines (n, t, 1, dim)."""
        n, t, _ = hidden.shape
        turned, value = self._compute_heads(hidden, turn, 0)
        seen = layout.attend(index, turned[:, : self.heads], turned[:, self.heads :], value, self.rule)
        _, out, gate_up, down = self.products
        hidden += out.of(seen.reshape(n, t, -1))
        gate, up = gate_up.of(_apply_norm(hidden, self.after_norm)).chunk(2, dim=-1)
        hidden += down.of(self.act(gate).mul_(up))
        return hidden

    def keep(self, index: int, hidden: torch.Tensor, turn: tuple[torch.Tensor, ...], layout: Keeping) -> None:
        """Compute keys and values alone."""
        layout.keep(index, *self._compute_heads(hidden, turn, self.heads))

    def _compute_heads(
        self, hidden: torch.Tensor, turn: tuple[torch.Tensor, ...], first: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Queries and keys as one, from head `first` on, and values: (n, heads, t, dim)."""
        n, t, _ = hidden.shape
        states = _apply_norm(hidden, self.norm)
        if first == 0:
            new = self.products[0].of(states)
        else:
            weight, bias = self.qkv.weight[first * self.dim :], self.qkv.bias
            new = linear(states, weight, bias if bias is None else bias[first * self.dim :])
        new = new.view(n, t, -1, self.dim)
        turned, value = new[:, :, : -self.kv_heads], new[:, :, -self.kv_heads :]
        if self.norms is not None:  # all heads at once but for their weights
            turned = _normalize(turned, (self.dim,), None, self.norms[0].variance_epsilon)
            turned[:, :, : -self.kv_heads].mul_(self.norms[0].weight)
            turned[:, :, -self.kv_heads :].mul_(self.norms[1].weight)
        turned = torch.addcmul(turned * turn[0], turned.roll(self.dim // 2, -1), turn[1])
        return turned.transpose(1, 2), value.transpose(1, 2)


class Decoder:
    """`model` written out. A hook on a module has to be called: then `hooked` is true, and the model's own forward pass
    is to be used."""

    def __init__(self, model: Any, rules: Sequence[Rule]) -> None:
        trunk = model.model
        self._embedding, self._norm, self._rotary = trunk.embed_tokens, trunk.norm, trunk.rotary_emb
        self._head = Product(model.lm_head)
        self.layers = [DecoderLayer(layer, rule) for layer, rule in zip(trunk.layers, rules, strict=True)]
        self._hooks, self._own_hooks = _list_hooks(model), _count_own_hooks(model)

    def renew(self) -> None:
        """The weights changed."""
        for product in self.products():
            product.renew()

    def products(self) -> Iterator[Product]:
        """Give the products of hidden states and weights."""
        yield self._head
        for layer in self.layers:
            yield from layer.products

    @property
    def hooked(self) -> bool:
        return sum(map(len, self._hooks)) > self._own_hooks

    def forward(self, tokens: torch.Tensor, positions: torch.Tensor, layout: Layout) -> torch.Tensor:
        """Logits (n, vocabulary) behind the last of `tokens` (n, t), which stand at `positions` (n, t)."""
        hidden, turn = self._begin(tokens, positions)
        for index, layer in enumerate(self.layers):
            hidden = layer.forward(index, hidden, turn, layout)
        return self._head.of(_apply_norm(hidden[:, -1], self._norm))

    def keep(self, tokens: torch.Tensor, positions: torch.Tensor, layout: Keeping) -> None:
        """Leave keys and values of `tokens` in `layout`, and compute nothing that these do not need."""
        hidden, turn = self._begin(tokens, positions)
        *layers, last = self.layers
        for index, layer in enumerate(layers):
            hidden = layer.forward(index, hidden, turn, layout)
        last.keep(len(layers), hidden, turn, layout)

    def _begin(self, tokens: torch.Tensor, positions: torch.Tensor) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
        """Compute the embeddings, and the cosines and sines that turn queries and keys to their positions."""
        self.refresh()
        hidden = functional.embedding(tokens, self._embedding.weight)
        cos, sin = (each[:, :, None] for each in self._rotary(hidden, positions))
        half = sin.shape[-1] // 2
        return hidden, (cos, torch.cat([-sin[..., :half], sin[..., half:]], dim=-1))

    def refresh(self) -> None:
        """Have layers of the same input be one again, where they were given other memory."""
        for layer in self.layers:
            layer.qkv.refresh()
            layer.gate_up.refresh()


def find_decoder(model: Any) -> Decoder | None:
    """`model` written out, if it is a usual decoder and computes the same so. Its forward pass takes a `Layout`."""
    if not _is_usual(model) or sum(map(len, _list_hooks(model))) > _count_own_hooks(model):
        return None
    most = int(model.config.get_text_config().max_position_embeddings)
    vocabulary = min(len(model.model.embed_tokens.weight), 500)
    counted = torch.arange(PROBE_ROWS * PROBE_TOKENS, device=model.device).view(PROBE_ROWS, PROBE_TOKENS)
    tokens = (counted * 7 + 3) % vocabulary
    starts = torch.tensor([0, most // 2, max(most - PROBE_TOKENS, 0)], device=model.device)
    positions = starts[:, None] + torch.arange(PROBE_TOKENS, device=model.device)
    layout = _Rows()
    with torch.inference_mode():
        expected = model(
            input_ids=tokens, position_ids=positions, use_cache=False, logits_to_keep=1, layout=layout
        ).logits[:, -1]
        if sorted(layout.rules) != list(range(len(model.model.layers))) or not bool(expected.isfinite().all()):
            return None
    decoder = Decoder(model, [layout.rules[index] for index in sorted(layout.rules)])
    with torch.inference_mode():
        try:
            found = decoder.forward(tokens, positions, layout)
        except FOREIGN_ERRORS:
            return None
        most_off = TOLERANCE.get(found.dtype, REDUCED_TOLERANCE) * float(expected.std())
        return decoder if float((found - expected).abs().mean()) <= most_off else None


class _Rows:
    """Rows by themselves. Remembers the rule of each layer."""

    def __init__(self) -> None:
        self.rules: dict[int, Rule] = {}

    def attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, rule: Rule
    ) -> torch.Tensor:
        self.rules[layer] = rule
        order = torch.arange(query.shape[2], device=query.device)
        seen = (order[None, :] <= order[:, None])[None, None].expand(len(query), 1, -1, -1)
        return attend_in_groups(query, key, value, additive_mask(seen, query, key), rule)


def _apply_norm(states: torch.Tensor, norm: Any) -> torch.Tensor:
    weight: torch.Tensor = norm.weight
    return _normalize(states, weight.shape, weight, norm.variance_epsilon)


def _normalize(states: torch.Tensor, shape: Sequence[int], weight: torch.Tensor | None, eps: float) -> torch.Tensor:
    """RMSNorm. On a CPU PyTorch's takes half as long again in float32 and a quarter in bfloat16, with few rows."""
    if states.dtype not in (torch.float32, torch.bfloat16) or states.device.type != "cpu":
        return functional.rms_norm(states, shape, weight, eps)
    wide = states.float()
    found = wide * scales(wide, eps)
    return (found if weight is None else found.mul_(weight)).to(states.dtype)


def _list_hooks(model: nn.Module) -> list[Any]:
    """List the hooks of each module of a model, as the module has them: they stay up to date."""
    return [hooks for module in model.modules() for hooks in (module._forward_hooks, module._forward_pre_hooks)]


def _count_own_hooks(model: nn.Module) -> int:
    """Count the hooks that transformers put there for layers that are recomputed: they change no number."""
    return len(vars(model).get("_require_grads_hooks") or ())


def _is_usual(model: Any) -> bool:
    """True if a model has the parts of a usual decoder, on a device with numbers, and no other parameters."""
    if set(model._modules) != MODEL or set(model.model._modules) != TRUNK or model.device.type == "meta":
        return False
    trunk = model.model
    norms, linears, bare = [trunk.norm], [model.lm_head], [model, trunk]
    for layer in trunk.layers:
        if set(layer._modules) != LAYER or set(layer.mlp._modules) != MLP_PARTS:
            return False
        attention = layer.self_attn
        named = set(attention._modules)
        if named not in (ATTENTION_PARTS, ATTENTION_PARTS | HEAD_NORMS) or "head_dim" not in vars(attention):
            return False
        norms += [
            layer.input_layernorm,
            layer.post_attention_layernorm,
            *map(attention.get_submodule, named & HEAD_NORMS),
        ]
        if named > ATTENTION_PARTS and attention.q_norm.variance_epsilon != attention.k_norm.variance_epsilon:
            return False
        joined = [[attention.q_proj, attention.k_proj, attention.v_proj], [layer.mlp.gate_proj, layer.mlp.up_proj]]
        if any(len({type(one) for one in group}) != 1 for group in joined):
            return False
        if any(len({one.bias is None for one in group}) != 1 for group in joined if type(group[0]) is nn.Linear):
            return False
        linears += [*joined[0], *joined[1], attention.o_proj, layer.mlp.down_proj]
        bare += [layer, attention, layer.mlp]
    return (
        type(trunk.embed_tokens) is nn.Embedding
        and all(type(linear) is nn.Linear for linear in linears)
        and all(set(norm._parameters) == {"weight"} and "variance_epsilon" in vars(norm) for norm in norms)
        and not any(part._parameters or part._buffers for part in bare)
    )

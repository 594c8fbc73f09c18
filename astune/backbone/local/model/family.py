"""The abilities of a model's architecture in sampler and learner, found out before the first task.

    tree    tokens meet in attention only, and there the model lets `attention.py` take its place: a key-value cache
            with slots, prefix-tree batches
    rows    anything else that reads from left to right, as layers of linear attention: transformers' own attention and
            cache, one conversation and one row at a time

Nothing is believed: a short forward pass in the layout is compared with transformers' own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from astune.backbone.local.learning.batch import LayoutName
from astune.backbone.local.learning.forward import head, trunk
from astune.backbone.local.learning.prefix_tree import PackedTree, TreeLayout, pack
from astune.backbone.local.model.attention import ATTENTION, FLASH, FUSED, NAMES, PRODUCTS, Rule
from astune.backbone.local.model.flash import refuse_flash, unfit_for_flash
from astune.backbone.local.sampling.state_cache import StateCache
from astune.errors import ModelError

TREE_TYPES = ("full_attention", "sliding_attention")
"""Kinds of layers, in transformers' words, in which a tree can say what a token sees."""
TOLERANCE = {torch.float32: 1e-3, torch.float64: 1e-6}
"""Mean difference of two logits that count as equal, in standard deviations of all; more below float32."""
REDUCED_TOLERANCE = 0.1
PREFIX, TAILS = 23, (14, 11, 17)
"""Tokens that the rows of the probe share, and those that each has for itself."""
PROBE_WINDOW = 8
FOREIGN_ERRORS = (ModelError, TypeError, ValueError, RuntimeError, AttributeError, LookupError, NotImplementedError)
"""Errors that the code of a model raises where it is called in a way that it does not know."""


@dataclass(frozen=True)
class Family:
    """`attention` is transformers' name of what the model attends with. `reason` says why the layout is not a tree. A
    model with `continues` takes in several tokens at once behind those that its cache holds; without, all anew (only
    matters with rows)."""

    layout: LayoutName
    attention: str = ATTENTION
    continues: bool = True
    reason: str | None = None

    def give_attention(self, model: Any) -> None:
        """Let another copy of the model attend as this family does."""
        model.set_attn_implementation(self.attention)
        model.config._attn_implementation = self.attention  # the oldest families are not asked by the line above


TREE = Family("tree")
OF_ROWS = {"auto": (FUSED, PRODUCTS), FUSED: (FUSED,), PRODUCTS: (PRODUCTS,)}
"""Attention of a model with rows, by `astune.model.attention`: the first of transformers' own that serves it."""


def find_family(model: Any, attention: str = "auto") -> Family:
    """Find the family of a model that was loaded with an `attention` that takes a `Layout`. With rows the model has
    transformers' own attention afterwards. Raises ModelError for a model that cannot be computed with rows either, or
    not with flash-attn where that is asked for."""
    rows = _make_rows(model)
    with torch.inference_mode(), _use_precision(model, attention):
        with _narrow(model):
            reason = _find_tree_fault(model, rows, NAMES[attention])
        if reason is None:
            return Family("tree", NAMES[attention])
        if attention == FLASH:
            refuse_flash(reason)
        faults = []
        for plain in OF_ROWS[attention]:
            for continues in (True, False):
                fault = _find_rows_fault(model, rows[0], plain, continues)
                if fault is None:
                    return Family("rows", plain, continues, reason)
                faults.append(fault)
    raise ModelError(f"the local backbone cannot sample from {type(model).__name__}: {faults[-1]} ({reason})")


def require_tree(model: Any) -> Any:
    """Raise ModelError for a model whose layout is not a tree; else give it back."""
    if (reason := find_family(model).reason) is not None:
        raise ModelError(f"{type(model).__name__} is trained by --backbone=local only: {reason}")
    return model


def _use_precision(model: Any, attention: str) -> AbstractContextManager[object]:
    """The precision that flash-attn computes in, as training has it; else that of the weights."""
    reduced = attention == FLASH and model.dtype == torch.float32
    return torch.autocast(model.device.type, torch.bfloat16) if reduced else nullcontext()


@contextmanager
def _narrow(model: Any) -> Iterator[None]:
    """Make the window of a model whose layers all have the same one so small that the rows of the probe pass it."""
    text = model.config.get_text_config()
    settings = text.to_dict()
    window = settings.get("sliding_window")
    if settings.get("layer_types") or not window:
        yield
        return
    text.sliding_window = min(window, PROBE_WINDOW)
    try:
        yield
    finally:
        text.sliding_window = window


def _make_rows(model: Any) -> list[np.ndarray]:
    """Rows of small token ids with a common beginning."""
    most = min(int(model.config.get_text_config().vocab_size), 500)
    lengths = [PREFIX + tail for tail in TAILS]
    own = [np.arange(length) >= PREFIX for length in lengths]
    rows = [(np.arange(len(mask)) * 7 + 3 + number * mask) % most for number, mask in enumerate(own)]
    return sorted(rows, key=lambda row: row.tolist())


class _Watched(TreeLayout):
    """Remembers the window of each layer that asked; `unfit` is why flash-attn, where it is asked for, does not compute
    one of them."""

    def __init__(self, tree: PackedTree, device: torch.device) -> None:
        super().__init__(tree, device)
        self.windows: dict[int, int | None] = {}
        self.unfit: str | None = None

    def attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, rule: Rule
    ) -> torch.Tensor:
        self.windows[layer] = rule.window
        if rule.kernel == FLASH and (unfit := unfit_for_flash(query, value, rule)) is not None:
            self.unfit = unfit
            rule = replace(rule, kernel="auto")
        return super().attend(layer, query, key, value, rule)


def _find_tree_fault(model: Any, rows: Sequence[np.ndarray], attention: str) -> str | None:
    """Why a tree cannot serve the model, if it cannot. Raises ModelError where flash-attn is asked for
    and cannot."""
    text = model.config.get_text_config()
    settings = text.to_dict()
    layers = int(text.num_hidden_layers)
    types = settings.get("layer_types") or []
    if odd := sorted({kind for kind in types if kind not in TREE_TYPES}):
        return f"its layers of type {' and '.join(map(repr, odd))} need the tokens of one row one after another"
    tree = pack(rows)
    watched = _Watched(tree, model.device)
    try:
        packed = _compute_logits(model, tree.tokens, position_ids=_make_tensor(tree.positions, model), layout=watched)
    except FOREIGN_ERRORS as error:
        return f"{_name_layer(model, 0)} takes no attention from outside: {type(error).__name__}: {error}"
    if watched.unfit is not None:
        refuse_flash(watched.unfit)
    if silent := sorted(set(range(layers)) - set(watched.windows)):
        return (
            f"layer {silent[0]} ({_name_layer(model, silent[0])}) has no attention that another can take the place of"
        )
    unsaid = [index for index, kind in enumerate(types) if kind == "sliding_attention" and not watched.windows[index]]
    if unsaid:
        return f"layer {unsaid[0]} ({_name_layer(model, unsaid[0])}) slides and does not tell its window"
    model.set_attn_implementation("eager")
    try:
        plain = [_compute_logits(model, row) for row in rows]
    finally:
        model.set_attn_implementation(attention)
    differs = any(_differ(packed[path], logits) for path, logits in zip(tree.paths, plain, strict=True))
    return f"{_name_layer(model, 0)} in a tree computes other logits than in a row" if differs else None


def _find_rows_fault(model: Any, row: np.ndarray, attention: str, continues: bool) -> str | None:
    """Why rows and transformers' cache cannot serve the model with this attention of transformers', if they cannot."""
    half = len(row) // 2
    try:
        Family("rows", attention).give_attention(model)
        plain, begun = _compute_logits(model, row), _compute_logits(model, row[:half])
        cache = StateCache(model, 1, model.device, continues=continues)
        for start, stop in ((0, 5), (5, half)):  # a prompt, and what is said to the first answer
            cache.extend(model, [0], [row[start:stop]])
        stepped = []
        for token in row[half:].tolist():
            stepped.append(cache.step(model, {0: token})[0])
            cache.append(0, [token])
    except FOREIGN_ERRORS as error:
        return f"{_name_layer(model, 0)} fails with {attention} attention: {type(error).__name__}: {error}"
    if _differ(begun, plain[:half]):
        return f"{_name_layer(model, 0)} sees tokens that come later"
    if _differ(torch.stack(stepped), plain[half:]):
        return f"{_name_layer(model, 0)} computes other logits with its cache than without"
    return None


def _compute_logits(model: Any, ids: np.ndarray, **layout: object) -> torch.Tensor:
    """Logits (n, vocabulary) of one row or tree. Raises ModelError if the parts of the model, which training calls one
    after another, do not give the same."""
    tokens = _make_tensor(ids, model)
    logits: torch.Tensor = model(input_ids=tokens, use_cache=False, **layout).logits[0]
    last = trunk(model)(input_ids=tokens, use_cache=False, **layout)
    if _differ(head(model, type(last), last.last_hidden_state), logits):
        raise ModelError(f"{type(trunk(model)).__name__} and the head after it compute other logits than both at once")
    return logits


def _make_tensor(ids: np.ndarray, model: Any) -> torch.Tensor:
    return torch.as_tensor(ids, dtype=torch.long, device=model.device)[None]


def _differ(logits: torch.Tensor, expected: torch.Tensor) -> bool:
    """True if two logits of the same tokens (n, vocabulary) are not the same numbers. Broken weights never differ: the
    run reports them later."""
    if not bool(expected.isfinite().all()):
        return False
    most = TOLERANCE.get(expected.dtype, REDUCED_TOLERANCE)
    return not float((logits - expected).abs().mean()) <= most * float(expected.std())


def _name_layer(model: Any, index: int) -> str:
    """The class of a layer."""
    lists = [module for module in model.modules() if isinstance(module, torch.nn.ModuleList)]
    return type(lists[0][index]).__name__ if lists and len(lists[0]) > index else type(model).__name__

"""LoRA (arXiv 2106.09685): adapters, by name, over one frozen base, with the layers and the files of peft.

    y = W x + scaling B A x    W is frozen; A (rank, inputs) and B (outputs, rank) are trained in float32; B begins as 0

The model is trained and sampled with the same modules, so an adapter that changed is sampled at once and there is no
second copy of the base. `Adapters.using` says which adapter a forward pass is for, for each row of its batch. Where a
model is sampled while it is trained, `Adapters.copy_over_base` gives the sampler modules and adapters of its own.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError

from astune.backbone.local.model.decoder import Joined
from astune.backbone.lora.folder import base_digest_in, base_mark, check_shapes, read_adapter, save_adapter
from astune.backbone.lora.settings import SOLE, base_digest, import_peft, peft_settings, target_names
from astune.config.schema import LoraConfig
from astune.errors import MissingDependency, ModelError, name_error

BASE = "__base__"
"""In the place of an adapter's name: the base model alone. peft's name for it."""


class Adapters:
    """Adapters over `model`, whose linear layers are replaced in place. The base stays as it is, bit for bit; only what
    `parameters` gives has a gradient.

    `base` is where others find the base model: it stands in the files. `shapes` are the adapters by name, with settings
    of their own; by itself there is one, of `config`.
    """

    def __init__(
        self, model: Any, config: LoraConfig, base: str, shapes: Mapping[str, LoraConfig] | None = None
    ) -> None:
        peft = import_peft()
        shapes = shapes or {SOLE: config}
        names = tuple(shapes)
        if config.dora and len(names) > 1:
            raise ModelError(
                "astune.model.lora.dora: DoRA cannot tell the rows of a batch apart, so it has one adapter"
            )
        self.names = names
        made = {name: peft_settings(own, target_names(model, own.targets), base) for name, own in shapes.items()}
        self._mark = base_mark(config.base, base_digest(model.named_parameters()))
        try:
            with _silence_warnings():
                self._peft = peft.PeftModel(model, made[names[0]], adapter_name=names[0])
        except ValueError as error:  # layers whose kernels read the weights past the adapter, as Mamba's out_proj
            raise ModelError(f"astune.model.lora.targets: {error}") from error
        for name in names[1:]:
            self._peft.add_adapter(name, made[name])
        self._parameters: dict[str, list[torch.nn.Parameter]] = {name: [] for name in names}
        for path, parameter in model.named_parameters():
            _, lora, inside = path.rpartition(".lora_")  # as in `q_proj.lora_A.wolf.weight`
            owner = next((name for name in names if name in inside.split(".")[1:]), None) if lora else None
            parameter.requires_grad_(owner is not None)
            if owner is not None:
                self._parameters[owner].append(parameter)
        self._rows: tuple[str, ...] | None = None
        self._shares: _Shares | None = None
        self._active = names[0]
        self._layers = [module for module in model.modules() if isinstance(module, peft.tuners.lora.LoraLayer)]
        self._joined: dict[Any, _JoinedAdapters] = {}
        """Of the layers in which all adapters compute alike."""
        for layer in self._layers:
            if len(names) > 1 and type(layer) is peft.tuners.lora.Linear and _are_alike(layer, names):
                self._joined[layer] = _JoinedAdapters(layer, names)
                layer.register_forward_hook(self._add_each)
            else:
                layer.register_forward_pre_hook(self._select, with_kwargs=True)

    def parameters(self, name: str = SOLE) -> list[torch.nn.Parameter]:
        """The trained parameters of an adapter, in the order of the model's layers."""
        return self._parameters[name]

    @contextmanager
    def using(self, *rows: str) -> Iterator[None]:
        """Forward passes in this block compute row i of their batch with the adapter `rows[i]`; one name, which may be
        `BASE`, is for all rows. Without such a block they compute with the adapter that was named first. Where rows
        differ nothing has a gradient."""
        before = self._rows, self._shares, self._active
        several = len(set(rows)) > 1
        plain = not several and BASE not in rows  # peft's own path, which is quicker, and takes layers that give views
        self._rows, self._shares = None if plain else rows, self._share_out(rows) if several else None
        self._activate(rows[0] if plain else BASE)
        try:
            yield
        finally:
            self._rows, self._shares = before[:2]
            self._activate(before[2])

    def _activate(self, name: str) -> None:
        """Have rows of which nothing is said computed with that adapter. peft's own way would also say what has a
        gradient."""
        if name != self._active:
            for layer in self._layers:
                layer._active_adapter = [name]  # of an adapter that it does not have, as BASE, a layer adds nothing
            self._active = name

    def _share_out(self, rows: Sequence[str]) -> _Shares:
        assert set(rows) <= set(self.names), "of several each is an adapter"
        own = [[row for row, each in enumerate(rows) if each == name] for name in self.names]
        there = [number for number, found in enumerate(own) if found]
        most = max(map(len, own))
        padded = np.array([own[number] + own[number][:1] * (most - len(own[number])) for number in there])
        places = np.zeros(len(rows), np.int64)
        for share, number in enumerate(there):
            places[own[number]] = share * most + np.arange(len(own[number]))
        device = self._parameters[self.names[0]][0].device
        which = slice(None) if len(there) == len(own) else torch.tensor(there, device=device)
        found, back = (torch.as_tensor(each, device=device) for each in (padded.flatten(), places))
        return _Shares(which, len(there), found, back)

    def _add_each(self, layer: Any, arguments: tuple[torch.Tensor], result: torch.Tensor) -> torch.Tensor:
        """Add what the adapters of the rows compute to what the base does: all of them in two products. peft's own way
        finds the rows anew in each layer, and has two products for each adapter."""
        return result if self._shares is None else result + self._joined[layer].compute(arguments[0], self._shares)

    def _select(self, module: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
        """Tell a layer of peft's in which adapters differ in more than their numbers for which one each row is."""
        if self._rows is None:
            return None
        each = len(arguments[0]) // len(self._rows)
        return arguments, options | {"adapter_names": [name for name in self._rows for _ in range(each)]}

    def _tensors(self, name: str) -> dict[str, torch.Tensor]:
        """The parameters of an adapter under the names that they have in peft's file. The base is left out from the
        start: to ask bitsandbytes for its tensors may change them."""
        own = {path: value for path, value in self._peft.named_parameters() if "lora_" in path}
        found: dict[str, torch.Tensor] = import_peft().get_peft_model_state_dict(
            self._peft, own, adapter_name=name, save_embedding_layers=False
        )
        return {key: found[key].detach() for key in sorted(found)}

    def save(self, directory: Path, name: str = SOLE) -> None:
        """Write one adapter as a folder of peft's."""
        save_adapter(directory, self._tensors(name), self._peft.peft_config[name], self._mark)

    def load(self, directory: Path, name: str = SOLE) -> None:
        """Take over an adapter that `save` wrote, bit for bit. Raises ModelError for one of another base, or whose
        settings `astune.model.lora` does not have."""
        weights = read_adapter(directory, self._peft.peft_config[name], self._mark)
        check_shapes(directory, weights, self._tensors(name))
        self.take(weights, name)

    def copy_over_base(self, model: Any) -> tuple[Any, Adapters]:
        """Copy the adapters, and the modules of `model`, which is theirs, over the same base: nothing ever changes it.
        A pass of the one and a pass of the other may be under way at a time."""
        shared = {id(each): each for each in model.parameters() if not each.requires_grad}
        made, adapters = copy.deepcopy((model, self), shared)
        for joined in adapters._joined.values():
            joined.refresh()
        return made, adapters

    def copy(self, source: str, name: str) -> None:
        """Have an adapter compute as another of its shape does."""
        with torch.no_grad():
            self.take(self._tensors(source), name)

    def take(self, weights: Mapping[str, torch.Tensor], name: str = SOLE) -> None:
        """Take over the tensors of an adapter of this shape, under the names that they have in peft's file."""
        for key, parameter in self._tensors(name).items():
            parameter.copy_(weights[key])


@dataclass(frozen=True)
class _Shares:
    """The rows of a batch by their adapters: `which` of them there are, k by `number`, and the `rows` (k m,) of each,
    its first one again where another has more. `places` (n,) says where each row is among those."""

    which: slice | torch.Tensor
    number: int
    rows: torch.Tensor
    places: torch.Tensor


class _JoinedAdapters:
    """The adapters of a layer, a tensor for all of them."""

    def __init__(self, layer: Any, names: Sequence[str]) -> None:
        self._down = Joined([layer.lora_A[name] for name in names])
        self._up = Joined([layer.lora_B[name] for name in names])
        self._scaling = torch.tensor([[[layer.scaling[name]]] for name in names], device=self._down.weight.device)

    def refresh(self) -> None:
        """The adapters were given other memory."""
        self._down.refresh()
        self._up.refresh()

    def compute(self, states: torch.Tensor, shares: _Shares) -> torch.Tensor:
        """Compute what a layer gets beside its base. Where tokens are rows, as of experts, each row of the batch has
        several."""
        rows, width = len(shares.places), states.shape[-1]
        down, up = self._down.weight.view(len(self._scaling), -1, width), self._up.weight
        up = up.view(len(down), -1, up.shape[1])
        own = states.reshape(rows, -1, width).index_select(0, shares.rows).view(shares.number, -1, width)
        inner = own.to(down.dtype) @ down[shares.which].mT * self._scaling[shares.which]
        found = (inner @ up[shares.which].mT).view(len(shares.rows), -1, up.shape[1])
        return found.index_select(0, shares.places).view(*states.shape[:-1], -1).to(states.dtype)


def _are_alike(layer: Any, names: Sequence[str]) -> bool:
    """True if the adapters of a layer differ in their numbers alone."""
    return len({layer.lora_A[name].weight.shape if name in layer.lora_A else None for name in names}) == 1


def make_quantization(config: LoraConfig, device: torch.device, dtype: torch.dtype) -> dict[str, Any]:
    """Make the options by which transformers reads the base in 4 bits onto the device; none where it is read as it is.
    Raises MissingDependency without bitsandbytes."""
    if config.base == "dtype":
        return {}
    if find_spec("bitsandbytes") is None:
        raise MissingDependency(f"astune.model.lora.base {config.base!r} needs bitsandbytes: pip install bitsandbytes")
    from transformers import BitsAndBytesConfig

    how: Any = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type=config.base, bnb_4bit_compute_dtype=dtype)
    return {"quantization_config": how, "device_map": {"": device}}


@contextmanager
def _silence_warnings() -> Iterator[None]:
    """Silence two warnings of peft: it uses a deprecated part of transformers, and reports experts that get no adapter
    here."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        warnings.filterwarnings("ignore", message=r"The following (rank|alpha)_pattern keys", category=RuntimeWarning)
        yield


def merge(model: Any, directory: Path) -> Any:
    """Give `model`, the base in float32, the weights that it has with the adapter in `directory`. Raises ModelError if
    that was trained over other weights, or does not load."""
    peft = import_peft()
    try:
        if base_digest_in(directory) not in (None, base_digest(model.named_parameters())):
            raise ModelError(f"the adapter in {directory} was trained over other weights than those of its base model")
        with _silence_warnings():
            return peft.PeftModel.from_pretrained(model, str(directory)).merge_and_unload()
    except (OSError, ValueError, TypeError, RuntimeError, SafetensorError) as error:
        raise ModelError(f"the adapter in {directory} does not load: {name_error(error)}") from error

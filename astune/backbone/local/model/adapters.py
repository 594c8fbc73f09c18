"""LoRA (arXiv 2106.09685): adapters, by name, over one frozen base, with the layers and the files of peft.

    y = W x + scaling B A x    W is frozen; A (rank, inputs) and B (outputs, rank) are trained in float32; B begins as 0

The model is trained and sampled with the same modules, so an adapter that changed is sampled at once and there is no
second copy of the base. `Adapters.using` says which adapter a forward pass is for, for each row of its batch.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

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
        self._functions = peft
        self._parameters: dict[str, list[torch.nn.Parameter]] = {name: [] for name in names}
        for path, parameter in model.named_parameters():
            _, lora, inside = path.rpartition(".lora_")  # as in `q_proj.lora_A.wolf.weight`
            owner = next((name for name in names if name in inside.split(".")[1:]), None) if lora else None
            parameter.requires_grad_(owner is not None)
            if owner is not None:
                self._parameters[owner].append(parameter)
        self._rows: tuple[str, ...] | None = None
        self._active = names[0]
        self._layers = [module for module in model.modules() if isinstance(module, peft.tuners.lora.LoraLayer)]
        for layer in self._layers:
            layer.register_forward_pre_hook(self._select, with_kwargs=True)

    def parameters(self, name: str = SOLE) -> list[torch.nn.Parameter]:
        """The trained parameters of an adapter, in the order of the model's layers."""
        return self._parameters[name]

    @contextmanager
    def using(self, *rows: str) -> Iterator[None]:
        """Forward passes in this block compute row i of their batch with the adapter `rows[i]` (or `BASE`); one name
        is for all rows. Without such a block they compute with the adapter that was named first."""
        before = self._rows, self._active
        one = set(rows) if set(rows) <= set(self.names) else set()
        if len(one) == 1:  # peft's plain path, which is quicker, and takes layers that give views
            self._rows = None
            self._activate(*one)
        else:
            self._rows = rows
        try:
            yield
        finally:
            self._rows = before[0]
            self._activate(before[1])

    def _activate(self, name: str) -> None:
        """Have rows of which nothing is said computed with that adapter. peft's own way would also say what has a
        gradient."""
        if name != self._active:
            for layer in self._layers:
                layer._active_adapter = [name]
            self._active = name

    def _select(self, module: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
        """Tell a layer of peft's for which adapter each row is. Experts and the like get several rows for each."""
        if self._rows is None:
            return None
        each = len(arguments[0]) // len(self._rows)
        return arguments, options | {"adapter_names": [name for name in self._rows for _ in range(each)]}

    def _tensors(self, name: str) -> dict[str, torch.Tensor]:
        """The parameters of an adapter under the names that they have in peft's file. The base is left out from the
        start: to ask bitsandbytes for its tensors may change them."""
        own = {path: value for path, value in self._peft.named_parameters() if "lora_" in path}
        found: dict[str, torch.Tensor] = self._functions.get_peft_model_state_dict(
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

    def copy(self, source: str, name: str) -> None:
        """Have an adapter compute as another of its shape does."""
        with torch.no_grad():
            self.take(self._tensors(source), name)

    def take(self, weights: Mapping[str, torch.Tensor], name: str = SOLE) -> None:
        """Take over the tensors of an adapter of this shape, under the names that they have in peft's file."""
        for key, parameter in self._tensors(name).items():
            parameter.copy_(weights[key])


def make_quantization(config: LoraConfig, device: torch.device, dtype: torch.dtype) -> dict[str, Any]:
    """Make the options by which transformers reads the base in 4 bits onto the device; none where it is read as it is.
    Raises MissingDependency without bitsandbytes."""
    if config.base == "dtype":
        return {}
    if find_spec("bitsandbytes") is None:
        raise MissingDependency(f"astune.model.lora.base {config.base!r} needs bitsandbytes: pip install bitsandbytes")
    from transformers import BitsAndBytesConfig

    how: Any = BitsAndBytesConfig(  # type: ignore[no-untyped-call]
        load_in_4bit=True, bnb_4bit_quant_type=config.base, bnb_4bit_compute_dtype=dtype
    )
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

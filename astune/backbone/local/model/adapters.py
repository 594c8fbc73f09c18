"""LoRA (arXiv 2106.09685): adapters, by name, over one frozen base, with the layers and the files of peft.

    y = W x + scaling B A x    W is frozen; A (rank, inputs) and B (outputs, rank) are trained in float32; B begins as 0

The model is trained and sampled with the same modules, so an adapter that changed is sampled at once and there is no
second copy of the base. `Adapters.using` says which adapter a forward pass is for, for each row of its batch.
"""

from __future__ import annotations

import copy
import hashlib
import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from astune.config.schema import LoraConfig
from astune.context_tracker.model_dir import ADAPTER_CONFIG
from astune.errors import MissingDependency, ModelError, named, nearest

SOLE = "default"
"""The name of the adapter where there is one, which is also peft's."""
BASE = "__base__"
"""In the place of an adapter's name: the base model alone. peft's name for it."""
BASE_MARK = "base_"
"""Begins the name by which the file of an adapter says `base_digest`; then comes `astune.model.lora.base`: weights in
4 bits have another one."""
WEIGHTS_FILE = "adapter_model.safetensors"


class Adapters:
    """Adapters of one shape over `model`, whose linear layers are replaced in place. The base stays as it is, bit for
    bit; only what `parameters` gives has a gradient.

    `base` is where others find the base model: it stands in the files.
    """

    def __init__(self, model: Any, config: LoraConfig, base: str, names: Sequence[str] = (SOLE,)) -> None:
        peft = import_peft()
        if config.dora and len(names) > 1:
            raise ModelError(
                "astune.model.lora.dora: DoRA cannot tell the rows of a batch apart, so it has one adapter"
            )
        self.names = tuple(names)
        made = peft.LoraConfig(
            r=config.rank,
            lora_alpha=config.alpha,
            target_modules=_targets(model, config.targets),
            use_rslora=config.rslora,
            use_dora=config.dora,
            task_type="CAUSAL_LM",
            base_model_name_or_path=base,
        )
        self._mark = {f"{BASE_MARK}{config.base}": base_digest(model)}
        try:
            with _quiet():
                self._peft = peft.PeftModel(model, made, adapter_name=names[0])
        except ValueError as error:  # layers whose kernels read the weights past the adapter, as Mamba's out_proj
            raise ModelError(f"astune.model.lora.targets: {error}") from error
        for name in names[1:]:
            self._peft.add_adapter(name, made)
        self._functions = peft
        self._parameters: dict[str, list[torch.nn.Parameter]] = {name: [] for name in names}
        for path, parameter in model.named_parameters():
            owner = next((name for name in names if name in path.split(".")), None) if "lora_" in path else None
            parameter.requires_grad_(owner is not None)
            if owner is not None:
                self._parameters[owner].append(parameter)
        self._rows: tuple[str, ...] | None = None
        for module in model.modules():
            if isinstance(module, peft.tuners.lora.LoraLayer):
                module.register_forward_pre_hook(self._select, with_kwargs=True)

    def parameters(self, name: str = SOLE) -> list[torch.nn.Parameter]:
        """What is trained of an adapter, in the order of the model's layers."""
        return self._parameters[name]

    @contextmanager
    def using(self, *rows: str) -> Iterator[None]:
        """Forward passes in this block compute row i of their batch with the adapter `rows[i]` (or `BASE`); one name
        is for all rows. Without such a block they compute with the adapter that was named first."""
        before = self._rows
        self._rows = None if set(rows) == set(self.names[:1]) == set(self.names) else rows  # peft's plain path
        try:
            yield
        finally:
            self._rows = before

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
        directory.mkdir(parents=True, exist_ok=True)
        save_file(self._tensors(name), directory / WEIGHTS_FILE, metadata={"format": "pt"} | self._mark)
        settings = copy.copy(self._peft.peft_config[name])
        settings.target_modules = sorted(settings.target_modules)  # a set, whose order is another in each process
        settings.save_pretrained(str(directory))

    def load(self, directory: Path, name: str = SOLE) -> None:
        """Take over an adapter that `save` wrote, bit for bit. Raises ModelError for one of another base, or whose
        settings `astune.model.lora` does not have."""
        own = self._peft.peft_config[name]
        if not (directory / ADAPTER_CONFIG).is_file():
            raise ModelError(f"{directory} holds no adapter: it has no {ADAPTER_CONFIG}")
        try:
            saved = self._functions.LoraConfig.from_pretrained(str(directory))
            with safe_open(directory / WEIGHTS_FILE, "pt") as file:
                mark = self._mark | (file.metadata() or {})
                weights = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 (no mapping)
        except (OSError, ValueError, TypeError, SafetensorError) as error:
            raise ModelError(f"the adapter in {directory} does not load: {named(error)}") from error
        different = [
            f"astune.model.lora.{key} is {_plain(getattr(own, field))}, and was {_plain(getattr(saved, field))}"
            for key, field in SETTINGS.items()
            if getattr(own, field) != getattr(saved, field)
        ]
        if different:
            raise ModelError(f"the adapter in {directory} is another one: {'; '.join(different)}")
        if not self._mark.items() <= mark.items():
            raise ModelError(
                f"the adapter in {directory} was trained over other weights than those of "
                f"{own.base_model_name_or_path} (it says {saved.base_model_name_or_path})"
            )
        parameters = self._tensors(name)
        if {key: value.shape for key, value in weights.items()} != {
            key: value.shape for key, value in parameters.items()
        }:
            raise ModelError(f"the adapter in {directory} has not the tensors that its {ADAPTER_CONFIG} promises")
        for key, parameter in parameters.items():
            parameter.copy_(weights[key])


SETTINGS = {
    "rank": "r",
    "alpha": "lora_alpha",
    "targets": "target_modules",
    "rslora": "use_rslora",
    "dora": "use_dora",
}
"""Keys of `astune.model.lora` by which adapters differ, with the names they have in peft's file."""


def import_peft() -> Any:
    """The package peft. Raises MissingDependency without it."""
    try:
        import peft
    except ImportError as error:
        raise MissingDependency('astune.model.lora needs the package peft: pip install "astune[lora]"') from error
    return peft


def quantized(config: LoraConfig, device: torch.device, dtype: torch.dtype) -> dict[str, Any]:
    """What transformers is told to read the base in 4 bits onto the device; nothing where it is to be read as it is.
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
def _quiet() -> Iterator[None]:
    """peft asks transformers for what that calls deprecated, and tells of experts that get no adapter here."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        warnings.filterwarnings("ignore", message=r"The following (rank|alpha)_pattern keys", category=RuntimeWarning)
        yield


def merge(model: Any, directory: Path) -> Any:
    """Give `model`, the base in float32, the weights that it has with the adapter in `directory`. Raises ModelError if
    that was trained over other weights, or does not load."""
    peft = import_peft()
    try:
        with safe_open(directory / WEIGHTS_FILE, "pt") as file:
            digest = (file.metadata() or {}).get(f"{BASE_MARK}dtype")
        if digest not in (None, base_digest(model)):
            raise ModelError(f"the adapter in {directory} was trained over other weights than those of its base model")
        with _quiet():
            return peft.PeftModel.from_pretrained(model, str(directory)).merge_and_unload()
    except (OSError, ValueError, TypeError, RuntimeError, SafetensorError) as error:
        raise ModelError(f"the adapter in {directory} does not load: {named(error)}") from error


def linear_layers(model: torch.nn.Module) -> list[str]:
    """The full names of the layers that can have an adapter: all linear ones but the head."""
    head = model.get_output_embeddings()  # type: ignore[operator]
    return [
        name for name, module in model.named_modules() if isinstance(module, torch.nn.Linear) and module is not head
    ]


def _targets(model: torch.nn.Module, wanted: Sequence[str]) -> list[str]:
    """The last parts of the names of the layers that get an adapter: those wanted, or all. Raises ModelError for one
    that no layer has."""
    layers = linear_layers(model)
    ends = sorted({name.rpartition(".")[2] for name in layers})
    for target in wanted:
        if not any(name == target or name.endswith(f".{target}") for name in layers):
            raise ModelError(
                f"astune.model.lora.targets: no linear layer of the model is called {target!r}.{nearest(target, ends)} "
                f"There are: {', '.join(ends)}"
            )
    return sorted(set(wanted)) or ends


def base_digest(model: torch.nn.Module) -> str:
    """Tell base models apart by the first row of each matrix, in whatever precision they were loaded."""
    digest = hashlib.sha256()
    for name, parameter in model.named_parameters():
        if parameter.ndim > 1:
            row = parameter.detach().reshape(-1)[: math.prod(parameter.shape[1:])]
            number = row.to(torch.bfloat16) if row.is_floating_point() else row
            digest.update(name.encode())
            digest.update(number.cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _plain(value: Any) -> Any:
    return sorted(value) if isinstance(value, set | frozenset) else value

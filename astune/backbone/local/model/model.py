"""Loading and saving models in Hugging Face's format."""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM
from transformers.utils import logging as transformers_logging

from astune.backbone.local.model.adapters import BASE, Adapters, make_quantization
from astune.backbone.local.model.attention import FLASH, NAMES
from astune.backbone.local.model.family import TREE, Family, find_family
from astune.backbone.local.model.flash import require_flash
from astune.backbone.local.model.norms import fuse, quicken
from astune.backbone.local.model.products import quicken_linear
from astune.backbone.local.model.recomputing import recompute, recomputing, silence_dropout
from astune.backbone.lora.settings import SOLE, find_begun_adapter, locate_base
from astune.config.schema import LoraConfig, ModelConfig
from astune.context_tracker.model_dir import base_name, copy_tokenizer, resolve_base_dir
from astune.errors import ModelError
from astune.monitor.disk import follow_umask

logger = logging.getLogger(__name__)

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
DISK_ERRORS = (RuntimeError, SafetensorError)
"""Errors by which torch and safetensors tell of a disk that takes no more."""
GROWING_ROPE = ("dynamic", "longrope")
MOST_NAMED = 5
"""Tensors that a message names."""


@dataclass
class LoadedModel:
    """`model` holds the float32 weights that are trained. `sampling_model` is the same object where sampling is in
    float32 too, or where only `adapters` are trained; else a copy in bfloat16. `adapter` is the one that is trained;
    `begun` if it began with weights from a file, as something other than nothing. `sampling_adapters` are those of
    `sampling_model`: the same objects, unless that is a copy."""

    model: Any
    sampling_model: Any
    directory: Path
    device: torch.device
    dtype: torch.dtype
    context_length: int
    checkpointing: bool
    family: Family = TREE
    adapters: Adapters | None = None
    adapter: str = SOLE
    begun: bool = False
    sampling_adapters: Adapters | None = None

    def __post_init__(self) -> None:
        if self.sampling_adapters is None:
            self.sampling_adapters = self.adapters

    def of(self, adapter: str) -> LoadedModel:
        """The same model, with another of its adapters as the one that is trained."""
        return replace(self, adapter=adapter)

    def begin_adapter(self, directory: Path) -> None:
        """Have the adapter that is trained begin with the one in the folder. Raises ModelError for one of another base
        or shape, with no other adapter touched."""
        assert self.adapters is not None, "astune.config.rules asks for them"
        with torch.no_grad():
            self.adapters.load(directory, self.adapter)

    def with_copy(self) -> LoadedModel:
        """The same model, sampled from a copy of its weights, which stays as it is while they are trained. Of one with
        adapters only these are copied."""
        if self.sampling_model is not self.model:
            return self
        if self.adapters is not None:
            model, adapters = self.adapters.copy_over_base(self.model)
            return replace(self, sampling_model=model, sampling_adapters=adapters)
        return replace(self, sampling_model=copy.deepcopy(self.model).requires_grad_(False))

    def trainable(self) -> list[torch.nn.Parameter]:
        """The parameters that an optimizer has: those of the adapter, or all."""
        return list(self.model.parameters()) if self.adapters is None else self.adapters.parameters(self.adapter)

    @contextmanager
    def training(self) -> Iterator[None]:
        """Compute as in sampling, so that probabilities agree: the same precision, no dropout."""
        own = self.dtype == torch.float32 or self.adapters is not None  # the weights are in the precision of sampling
        precision = nullcontext() if own else torch.autocast(self.device.type, self.dtype)
        adapter = nullcontext() if self.adapters is None else self.adapters.using(self.adapter)
        with precision, adapter, recomputing(self.model) if self.checkpointing else nullcontext():
            yield

    @contextmanager
    def base_alone(self) -> Iterator[None]:
        """Compute without the adapters, as the model that training began with. Only a model with adapters has it."""
        assert self.adapters is not None
        with self.adapters.using(BASE):
            yield

    def copy_to_sampler(self) -> None:
        """Hand over what is trained: all weights, or one adapter."""
        if self.sampling_model is self.model:
            return
        own = self.sampling_adapters
        targets = self.sampling_model.parameters() if own is None else own.parameters(self.adapter)
        with torch.no_grad():
            for target, source in zip(targets, self.trainable(), strict=True):
                target.copy_(source)

    def load_weights(self, directory: Path) -> None:
        """Take over the weights of a checkpoint of the same model."""
        if self.adapters is not None:
            self.adapters.load(directory, self.adapter)
            return
        self.model.load_state_dict(read_weights(directory).state_dict())


def load_model(
    config: ModelConfig,
    names: Sequence[str] | Mapping[str, LoraConfig] = (SOLE,),
    *,
    sampled: bool = True,
    trained: bool = True,
) -> LoadedModel:
    """Load weights onto the device, ready for training and sampling; with `astune.model.lora` below an adapter of each
    of `names`, drawn from torch's global seed, or that of the folder `astune.model.path` over the base it names. Names
    may have settings of their own. Without `sampled` no copy is made to sample from; without `trained` there is only
    that."""
    lora = config.lora.rank is not None
    as_sampled = lora or not trained
    begin = find_begun_adapter(config)
    path = config.path if begin is None else base_name(begin)
    directory = resolve_base_dir(config.path)
    device, dtype = placement(config)
    if config.attention == FLASH:
        require_flash(device, dtype)
    more = make_quantization(config.lora, device, dtype)
    model = read_weights(directory, dtype if as_sampled else torch.float32, config.attention, **more)
    model = model.eval() if more else model.to(device).eval()
    family = find_family(model, config.attention)
    if family.reason is not None:
        logger.warning(
            "%s trains one row and samples one conversation at a time, which is slow: %s",
            type(model).__name__,
            family.reason,
        )
    if (device.type, dtype) == ("cpu", torch.float32):
        quicken(model)
        quicken_linear(model)
    elif device.type == "cuda":
        fuse(model)
    if silenced := silence_dropout(model):
        logger.info("dropout is off, so that training computes as sampling does: %s", ", ".join(silenced))
    shapes = names if isinstance(names, Mapping) else dict.fromkeys(names, config.lora)
    adapters = Adapters(model, config.lora, locate_base(path, directory), shapes) if lora else None
    if begin is not None and adapters is not None:
        for name in shapes:
            adapters.load(begin, name)
    if config.gradient_checkpointing:
        recompute(model)
    one = as_sampled or dtype == torch.float32 or not sampled
    sampling_model = model if one else _reduce(model, dtype).requires_grad_(False)
    made_for = longest_context(model)
    _check_positions(model, config.max_model_len or made_for)
    if config.max_model_len is not None and config.max_model_len > made_for:
        raise ModelError(
            f"astune.model.max_model_len is {config.max_model_len}, but the model in {directory} was made for "
            f"{made_for} tokens"
        )
    context_length = config.max_model_len or made_for
    checkpointing = config.gradient_checkpointing
    facts = (directory, device, dtype, context_length, checkpointing, family)
    return LoadedModel(model, sampling_model, *facts, adapters, next(iter(shapes)), begin is not None)


def _reduce(model: Any, dtype: torch.dtype) -> Any:
    """A copy with weights in `dtype`. What no file has stays as it is: by frequencies in bfloat16 the thousandth token
    would turn by another angle than in training."""
    made = copy.deepcopy(model)
    kept = {name: buffer for name, buffer in made.named_buffers() if name not in made.state_dict()}
    made.to(dtype)
    for name, buffer in kept.items():
        place, _, own = name.rpartition(".")
        setattr(made.get_submodule(place), own, buffer)
    return made


def placement(config: ModelConfig) -> tuple[torch.device, torch.dtype]:
    """Choose the device on which the model computes, and its precision."""
    name = config.device if config.device != "auto" else ("cuda" if torch.cuda.is_available() else "cpu")
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise ModelError(f"astune.model.device is {name!r}, but torch sees no CUDA device; use 'auto' or 'cpu'")
    device = torch.device(name)
    auto = "bfloat16" if device.type == "cuda" else "float32"
    return device, DTYPES[auto if config.dtype == "auto" else config.dtype]


def longest_context(model: Any) -> int:
    """Most tokens that the model was made for."""
    return int(model.config.get_text_config().max_position_embeddings)


def _check_positions(model: Any, context: int) -> None:
    """Raise ModelError where the rotation of all positions depends on how long the longest row is: what the sampler has
    computed of a conversation would be wrong as soon as it is longer."""
    rope = model.config.get_text_config().to_dict().get("rope_parameters") or {}
    nested = [rope, *(part for part in rope.values() if isinstance(part, dict))]
    for part in nested:
        most = part.get("original_max_position_embeddings") or longest_context(model)
        if part.get("rope_type") in GROWING_ROPE and context > most:
            raise ModelError(
                f"the positions of {type(model).__name__} are of type {part['rope_type']!r}, which turns all of them "
                f"another way as soon as a row has more than {most} tokens: set astune.model.max_model_len to {most}"
            )


def read_weights(directory: Path, dtype: torch.dtype = torch.float32, attention: str = "auto", **more: Any) -> Any:
    """The model in `directory`, in `dtype`, with an `attention` that takes a `Layout`. Raises ModelError also where its
    files lack a tensor of the model, have one too many or one of another shape: transformers would draw at random what
    is not there. Tied weights may be left out."""
    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity_error()
    if not (directory / "config.json").is_file():
        raise ModelError(f"{directory} has no config.json, so it is no model folder in Hugging Face's format")
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            directory,
            dtype=dtype,
            attn_implementation=NAMES[attention],
            output_loading_info=True,
            ignore_mismatched_sizes=True,
            **more,
        )
    except (OSError, ValueError, KeyError, TypeError, *DISK_ERRORS) as error:
        raise ModelError(f"the model in {directory} does not load: {type(error).__name__}: {error}") from error
    model, found = loaded
    _check_tensors(directory, found)
    return model


def _check_tensors(directory: Path, found: dict[str, Any]) -> None:
    """`found` is what transformers tells of loading."""
    mismatched = [f"{name} {tuple(saved)} for {tuple(own)}" for name, saved, own in sorted(found["mismatched_keys"])]
    wrong = {"lack": sorted(found["missing_keys"]), "have too much": sorted(found["unexpected_keys"])}
    wrong["have in another shape"] = mismatched
    said = [f"{what} {_list_names(names)}" for what, names in wrong.items() if names]
    if said:
        raise ModelError(
            f"the weights in {directory} are not those of the model that its config.json describes: they "
            f"{'; they '.join(said)}. Fetch or copy the model again, all its files"
        )


def _list_names(names: Sequence[str]) -> str:
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return ", ".join(names[:MOST_NAMED]) + more


def let_go(model: Any) -> None:
    """Have the weights leave memory with the last reference to `model`, which computes no more: the own `forward` of a
    module refers back to it, and Python looks for such cycles late."""
    for module in model.modules():
        vars(module).pop("forward", None)


def empty_cache() -> None:
    """Give the GPU back what torch holds of it and nobody uses."""
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def save_model(loaded: LoadedModel, directory: Path) -> None:
    """Write weights, configuration and tokenizer: a folder that any tool for Hugging Face models reads. Of a model with
    adapters only the adapter, as peft has it."""
    if loaded.adapters is None:
        loaded.model.save_pretrained(directory)
        follow_umask(directory)
    else:
        loaded.adapters.save(directory, loaded.adapter)
    copy_tokenizer(loaded.directory, directory)

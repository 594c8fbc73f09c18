"""verl's configuration for a run, with the origin of every value.

Later ones win: `default_config/verl_default.yaml`, on a CPU `verl_cpu.yaml`, what is converted from `astune.*` as the
schema says of each key (`OnVerl`), the section `verl:` of the user's file. Only `compose_settings` imports verl, so
that `astune config convert --backbone verl` runs without it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import Any, cast

from astune.backbone.base import covers
from astune.backbone.foreign.keys import (
    at,
    clashes,
    leaves,
    origin_of,
    place_of,
    read_shipped,
    rows,
    tree_of,
    with_origin,
)
from astune.backbone.foreign.packages import FLASH, attention_of
from astune.backbone.verl.demand import Demand
from astune.backbone.verl.trainer.limits import GPUS_OF_THEIR_OWN, attention_in, beyond, not_apart, unread, way_in
from astune.config.keys import fates, value_at
from astune.config.load import LoadedConfig
from astune.config.schema import AstuneConfig
from astune.config.section import OnVerl
from astune.context_tracker.model_dir import adapter_dir, base_name, resolve_base_dir
from astune.errors import ConfigError
from astune.support.resources import tiny_model_dir

DEFAULTS = "verl_default.yaml"
CPU = "verl_cpu.yaml"
DEVICE = "trainer.device"

OWNED: Mapping[str, str] = {
    DEVICE: "astune.model.device",
    "actor_rollout_ref.model.path": "astune.model.path",
    "actor_rollout_ref.model.lora": "astune.model.lora",
    "actor_rollout_ref.model.lora_rank": "astune.model.lora.rank",
    "actor_rollout_ref.model.lora_alpha": "astune.model.lora.alpha",
    "actor_rollout_ref.model.target_modules": "astune.model.lora.targets",
    "actor_rollout_ref.model.target_parameters": "astune.model.lora.targets",
    "actor_rollout_ref.model.exclude_modules": "astune.model.lora.targets",
    "actor_rollout_ref.model.lora_adapter_path": "astune.model.path",
    "actor_rollout_ref.actor.optim.lr": "astune.trainer.learning_rate",
    "actor_rollout_ref.actor.loss_agg_mode": "astune.algorithm.loss_aggregation",
    "actor_rollout_ref.actor.policy_loss": "astune.algorithm.loss",
    "actor_rollout_ref.actor.clip_ratio": "astune.algorithm.clip_low and clip_high",
    "actor_rollout_ref.actor.clip_ratio_low": "astune.algorithm.clip_low",
    "actor_rollout_ref.actor.clip_ratio_high": "astune.algorithm.clip_high",
    "actor_rollout_ref.actor.clip_ratio_c": "astune.algorithm.clip_dual",
    "actor_rollout_ref.actor.entropy_coeff": "astune.algorithm.entropy_bonus",
    "actor_rollout_ref.actor.use_kl_loss": "astune.algorithm.kl_beta",
    "actor_rollout_ref.actor.kl_loss_coef": "astune.algorithm.kl_beta",
    "actor_rollout_ref.actor.kl_loss_type": "astune.algorithm.kl_estimator",
    "actor_rollout_ref.rollout.n": "astune.rollout.num_repeat",
    "actor_rollout_ref.rollout.temperature": "astune.rollout.temperature",
    "actor_rollout_ref.rollout.top_k": "astune.rollout.top_k",
    "actor_rollout_ref.rollout.top_p": "astune.rollout.top_p",
    "actor_rollout_ref.rollout.response_length": "astune.rollout.max_tokens",
    "algorithm": "astune.algorithm",
    "data": "astune.task_reader",
    "reward": "astune.task_judge",
    "critic": "astune.algorithm.critic",
    "trainer.total_epochs": "astune.trainer.total_epochs",
    "trainer.total_training_steps": "astune.trainer.total_steps",
    "trainer.save_freq": "astune.trainer.save_every",
    "trainer.test_freq": "astune.evaluation.every",
}
"""Keys and sections of verl's that ASTune's own loop and loss go by, or that nothing would read, each with the key of
ours that says it."""


@dataclass(frozen=True)
class Settings:
    """What is set of verl's configuration, as plain data. `origins` has the place of every value by dotted key."""

    tree: dict[str, Any]
    origins: Mapping[str, str]

    @property
    def server(self) -> str:
        """The name of what answers episodes."""
        return str(self.tree["actor_rollout_ref"]["rollout"]["name"])

    @property
    def attention(self) -> str:
        """transformers' name of the attention in training workers."""
        return attention_in(self.tree)

    @property
    def way(self) -> str:
        """verl's name of how weights travel to servers on GPUs of their own."""
        return way_in(self.tree)

    def yaml(self) -> str:
        """One value in a line, its origin behind it."""
        return "".join(with_origin(text, self.origins.get(key)) for key, text in rows(self.tree))


def settings_of(loaded: LoadedConfig) -> Settings:
    """Raises `ConfigError` with every key that would have no effect, each with its place and what to do instead."""
    users = {key: value for key, value in leaves(loaded.config.verl) if value != {}}  # empty sections set nothing
    if problems := [
        *_find_unsupported(loaded),
        *_find_owned(loaded, users),
        *clashes(loaded, "verl", users, read_shipped(DEFAULTS)),
    ]:
        raise ConfigError("\n".join(problems))
    found = read_shipped(DEFAULTS)
    origins = dict.fromkeys(found, DEFAULTS)
    if on_cpu(loaded):
        cpu = read_shipped(CPU)
        found |= cpu
        origins |= dict.fromkeys(cpu, CPU)
    for key, rule in fates(OnVerl).items():
        value = value_at(loaded.config, key)
        for place, name in rule.to.items():
            converted = CONVERSIONS[name](value, loaded)
            if converted is not None:
                found[place] = converted
                origins[place] = origin_of(loaded, [key])
    found |= users
    tree = tree_of(found)
    refused = [*unread(users), *beyond(users, tree, cpu=on_cpu(loaded)), *not_apart(tree, cpu=on_cpu(loaded))]
    if refused:
        raise ConfigError("\n".join(f"{at(loaded, f'verl.{key}')}: {why}" for key, why in refused))
    if loaded.config.astune.synchronizer.style == "async" and not Demand.of(tree).server_nodes:
        raise ConfigError(
            f"{loaded.where('astune.synchronizer.style')}: got 'async', but servers share the GPUs of the training "
            f"workers and sleep while these learn; expected 'fixed', or {GPUS_OF_THEIR_OWN}"
        )
    origins |= {key: str(place_of(loaded, f"verl.{key}")) for key in users}
    return Settings(tree, origins)


def _find_unsupported(loaded: LoadedConfig) -> Iterator[str]:
    for key, rule in fates(OnVerl).items():
        value = value_at(loaded.config, key)
        why = rule.refused.get(str(value), rule.unsupported if loaded.differs_from_default(key) else "")
        if why:
            yield f"{loaded.where(key)}: got {value!r}: {why}"


def _find_owned(loaded: LoadedConfig, users: Mapping[str, Any]) -> Iterator[str]:
    for key in users:
        for owned, ours in OWNED.items():
            if covers([owned], key):
                yield f"{at(loaded, f'verl.{key}')}: ASTune goes by {ours}; set that instead"


def on_cpu(loaded: LoadedConfig) -> bool:
    """True if everything is computed on CPUs. The model that ships is made for one; any other is taken for one that
    wants GPUs, wherever the run is started: a cluster's GPUs need not be in that machine."""
    model = loaded.config.astune.model
    return model.device == "cpu" or (model.device == "auto" and model.path == "tiny")


def as_it_runs(loaded: LoadedConfig, config: AstuneConfig) -> LoadedConfig:
    """Give what was loaded ASTune's section as it runs now. The model of a later stage is a checkpoint of the run,
    which does not say where the run computes."""
    if on_cpu(loaded):
        config = config.model_copy(update={"model": config.model.model_copy(update={"device": "cpu"})})
    return replace(loaded, config=loaded.config.model_copy(update={"astune": config}))


def compose_settings(loaded: LoadedConfig, settings: Settings) -> Any:
    """verl's whole configuration (an OmegaConf tree). Raises `ConfigError` for every key of the user's section that
    verl does not know."""
    import verl
    from hydra import compose, initialize_config_dir
    from omegaconf import OmegaConf, open_dict

    with initialize_config_dir(str(Path(verl.__file__).parent / "trainer" / "config"), version_base=None):
        config = compose("ppo_trainer")
    with open_dict(config):
        config.merge_with(
            OmegaConf.create(tree_of(read_shipped(DEFAULTS)))
        )  # with keys that verl takes and does not name
        check_verl_keys(loaded, config)
        config.merge_with(OmegaConf.create(settings.tree))
        model = config.actor_rollout_ref.model
        model.override_config.update(own_tokens(loaded.config.astune.model.path))
        if loaded.config.astune.model.lora.rank is not None:
            model.target_modules = _layers(loaded)
            # servers on GPUs of their own get no adapter from verl
            model.lora.merge = bool(config.actor_rollout_ref.rollout.nnodes)
    OmegaConf.resolve(config)
    return config


def check_verl_keys(loaded: LoadedConfig, config: Any) -> None:
    """Raises `ConfigError` for every key of the section that `config`, verl's own tree, does not know."""
    problems = [
        f"{at(loaded, f'verl.{key}')}: unknown key of verl's.{meant}"
        for key, meant in _unknown(loaded.config.verl, config, "")
    ]
    if problems:
        raise ConfigError("\n".join(problems))


def _unknown(users: Mapping[str, Any], known: Any, prefix: str) -> Iterator[tuple[str, str]]:
    """The keys that are not known, each with what may be meant. A section that is empty in verl's tree takes any."""
    names = [*known, *_fields(known)]
    for name, value in users.items():
        if name not in names:
            close = get_close_matches(name, names, n=1)
            said = f"Did you mean 'verl.{prefix}{close[0]}'?" if close else f"There are: {', '.join(sorted(names))}"
            yield f"{prefix}{name}", f" {said}"
        elif isinstance(value, dict) and name in known and _is_section(known, name):
            yield from _unknown(value, known[name], f"{prefix}{name}.")


def _is_section(known: Any, name: str) -> bool:
    from omegaconf import DictConfig, OmegaConf

    if OmegaConf.is_missing(known, name) or OmegaConf.is_interpolation(known, name):
        return False
    return isinstance(known[name], DictConfig) and len(known[name]) > 0


def _fields(known: Any) -> list[str]:
    """The fields of the dataclass that verl makes of a section, of which its files name only some."""
    if "_target_" not in known:
        return []
    module, _, name = known["_target_"].rpartition(".")
    made = vars(import_module(module))[name]
    return [each.name for each in fields(made)] if is_dataclass(made) else []


def own_tokens(path: str) -> dict[str, Any]:
    """Read what the model's own configuration says of its special tokens. By itself verl takes those of the tokenizer:
    a padding token that the model does not know as one would no longer be learned where a text has it, and checkpoints
    would say other things than the model they came of."""
    from transformers import AutoConfig

    own = AutoConfig.from_pretrained(resolve_base_dir(path, weights=False)).to_dict()
    return {name: own.get(name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}


def _layers(loaded: LoadedConfig) -> list[str]:
    """The names of the layers that get an adapter. Raises ModelError for one that the model does not have: by itself
    verl would train the others and say nothing."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    from astune.backbone.lora.settings import target_names

    model, models = loaded.config.astune.model, cast("Any", AutoModelForCausalLM)
    with torch.device("meta"):
        shape = models.from_config(AutoConfig.from_pretrained(resolve_base_dir(model.path, weights=False)))
    return target_names(shape, model.lora.targets)


def _device(value: str, loaded: LoadedConfig) -> str:
    if value.startswith("cuda:"):
        raise ConfigError(
            f"{loaded.where('astune.model.device')}: got {value!r}, but Ray gives each process its GPU; expected 'cuda'"
        )
    return "cpu" if on_cpu(loaded) else "cuda"


def _attention(value: str, loaded: LoadedConfig) -> str:
    if on_cpu(loaded) and value == FLASH:
        raise ConfigError(
            f"{loaded.where('astune.model.attention')}: got {value!r}, whose kernels a CPU has not; expected 'auto', "
            "'sdpa' or 'eager'"
        )
    return attention_of(loaded.config.astune.model, gpus=not on_cpu(loaded))


def model_folder(path: str) -> str:
    """The place where verl finds a model: a folder or a hub id; of an adapter, that of its base."""
    adapter = adapter_dir(path)
    name = path if adapter is None else base_name(adapter)
    return str(tiny_model_dir()) if name == "tiny" else name


def _precisions(value: str, loaded: LoadedConfig) -> dict[str, str] | None:
    """Precisions of computing; verl keeps the weights that are trained in float32 whatever this says."""
    if value == "auto":
        return None
    name = {"float32": "fp32", "bfloat16": "bf16"}[value]
    return {"param_dtype": name, "reduce_dtype": "fp32", "buffer_dtype": "fp32"}


CONVERSIONS: Mapping[str, Callable[[Any, LoadedConfig], Any]] = {
    "same": lambda value, loaded: value,
    "as_list": lambda value, loaded: list(value),
    "seed": lambda value, loaded: value % 2**31,
    "model_folder": lambda value, loaded: model_folder(value),
    "of_adapter": lambda value, loaded: None if loaded.config.astune.model.lora.rank is None else value,
    "targets": lambda value, loaded: list(value) or None,
    "base_of_adapter": lambda value, loaded: None if value is None else "safetensors",  # servers read the base once
    "device": _device,
    "attention": _attention,
    "precision": lambda value, loaded: None if value == "auto" else value,
    "precisions": _precisions,
    "optimizer": lambda value, loaded: {"fused": True} if value == "adamw_fused" else None,
}

"""Check the user's section `verl:` against verl's own configuration."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from difflib import get_close_matches
from importlib import import_module
from typing import Any

from astune.backbone.foreign.keys import at
from astune.config.load import LoadedConfig
from astune.errors import ConfigError


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

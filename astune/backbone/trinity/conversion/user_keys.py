"""Check the user's section `trinity:`: keys that ASTune needs for itself, and keys that Trinity does not know."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import is_dataclass
from difflib import get_close_matches
from typing import Any, get_args, get_origin, get_type_hints

from astune.backbone.base import covers
from astune.backbone.foreign.keys import at, clashes
from astune.backbone.trinity.conversion.values import wants_tinker
from astune.config.load import LoadedConfig
from astune.errors import ConfigError

OPERATORS = "data_processor.experience_pipeline.operators"

OWNED = (
    "name",
    "checkpoint_root_dir",
    "algorithm.sample_strategy",
    "buffer.explorer_input",
    OPERATORS,
    "monitor.monitor_type",
)
"""Where ASTune's own parts plug into Trinity. Without them it would not be ASTune that runs, so nobody sets them."""

BOUND: Mapping[str, str] = {
    "algorithm.repeat_times": "astune.rollout.num_repeat",
    "buffer.batch_size": "astune.trainer.tasks_per_step",
    "buffer.total_steps": "astune.trainer.total_steps",
    "continue_from_checkpoint": "astune.resume",
    "model.max_response_tokens": "astune.rollout.max_tokens",
    "model.temperature": "astune.rollout.temperature",
    "model.top_k": "astune.rollout.top_k",
    "model.top_p": "astune.rollout.top_p",
}
"""Keys of Trinity's, each with the key of ours that it comes from. Our reader, workflow and operator go by ours, so a
second value would raise no error and be wrong."""


ADAPTERS = "model.lora_configs"


def check_users_keys(loaded: LoadedConfig, users: Mapping[str, Any], known: Mapping[str, Any]) -> None:
    """Raises `ConfigError` with every key that may not be set, or is a value where Trinity has a section.

    `users` are the user's values by dotted key, `known` those of Trinity's tree without them.
    """
    problems = [
        f"{at(loaded, f'trinity.{key}')}: a part of ASTune stands there; take the key out"
        for key in users
        if covers(OWNED, key)
    ]
    problems += [*_find_bound(loaded, users), *clashes(loaded, "trinity", users, known)]
    if problems:
        raise ConfigError("\n".join(problems))


def _find_bound(loaded: LoadedConfig, users: Mapping[str, Any]) -> Iterator[str]:
    """Keys with which a run would be trained otherwise than it was played, or wait for ever."""
    for key in users:
        if key in BOUND:
            yield f"{at(loaded, f'trinity.{key}')}: ASTune's own parts go by {BOUND[key]}; set that instead"
    if users.get(ADAPTERS):
        yield (
            f"{at(loaded, f'trinity.{ADAPTERS}')}: our rollouts ask the completions endpoint of Trinity's "
            "engine, which answers without the adapter; take the key out, or use the backbone 'local'"
        )
    key = "synchronizer.sync_method"
    method = users.get(key)
    if wants_tinker(loaded) and method not in (None, "memory") and loaded.config.astune.trainer.save_every:
        yield (
            f"{at(loaded, f'trinity.{key}')}: got {method!r}, with which Trinity's explorer waits in vain "
            "for a tinker trainer at every step that is saved; expected 'memory'"
        )


def check_trinity_keys(loaded: LoadedConfig, schema: type) -> None:
    """Raises `ConfigError` for every key of the user's section `trinity:` that is none of `schema`, Trinity's dataclass
    of the whole configuration."""
    problems = [
        f"{at(loaded, f'trinity.{key}')}: unknown key of Trinity's.{_meant(key, schema)}"
        for key in _unknown(loaded.config.trinity, schema, "")
    ]
    if problems:
        raise ConfigError("\n".join(problems))


def _unknown(tree: Mapping[str, Any], schema: type, prefix: str) -> Iterator[str]:
    sections = _sections(schema)
    for name, value in tree.items():
        section = sections.get(name)
        if name not in sections:
            yield f"{prefix}{name}"
        elif section is not None:
            for item in value if isinstance(value, list) else [value]:
                yield from _unknown(item if isinstance(item, dict) else {}, section, f"{prefix}{name}.")


def _sections(schema: type) -> dict[str, type | None]:
    """The names of a dataclass's fields, with the dataclass that each holds, itself or in a list, if any."""
    return {name: _dataclass_in(kind) for name, kind in get_type_hints(schema).items()}


def _dataclass_in(kind: Any) -> type | None:
    """None for a mapping: its keys are the user's."""
    if isinstance(kind, type) and is_dataclass(kind):
        return kind
    if get_origin(kind) is dict:
        return None
    return next((found for inner in get_args(kind) if (found := _dataclass_in(inner))), None)


def _meant(key: str, schema: type) -> str:
    """The key that was probably meant: a name alike beside it, or the same name in another section."""
    known = list(_keys(schema, ""))
    section, _, name = key.rpartition(".")
    beside = {other.rpartition(".")[2]: other for other in known if other.rpartition(".")[0] == section}
    meant = [beside[found] for found in get_close_matches(name, beside, n=1)]
    meant += [other for other in known if other.rpartition(".")[2] == name]
    return f" Did you mean 'trinity.{meant[0]}'?" if meant else f" There are: {', '.join(beside)}"


def _keys(schema: type, prefix: str) -> Iterator[str]:
    for name, section in _sections(schema).items():
        yield f"{prefix}{name}"
        if section is not None:
            yield from _keys(section, f"{prefix}{name}.")

"""Configurations of other programs as plain data: trees and dotted keys, shipped files, places in the user's file."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from copy import deepcopy
from functools import cache
from typing import Any

import yaml

from astune.config.load import LoadedConfig
from astune.config.render import inline
from astune.config.source import Loader
from astune.support.resources import default_config_dir


def leaves(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Values by dotted key. An empty section and a list are values."""
    for name, value in tree.items():
        if isinstance(value, dict) and value:
            yield from leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def tree_of(leaves: Mapping[str, Any]) -> dict[str, Any]:
    """The tree of values by dotted key.

    >>> tree_of({"a.b": 1, "a.c": 2})
    {'a': {'b': 1, 'c': 2}}
    """
    tree: dict[str, Any] = {}
    for key, value in leaves.items():
        put(tree, key, value)
    return tree


def put(tree: dict[str, Any], key: str, value: Any) -> None:
    """Set the value of a dotted key."""
    *sections, name = key.split(".")
    inner = tree
    for section in sections:
        inner = inner.setdefault(section, {})
    inner[name] = value


def read_shipped(name: str) -> dict[str, Any]:
    """The values of a file of `default_config/`, by dotted key."""
    return dict(leaves(deepcopy(_read(name))))


@cache
def _read(name: str) -> Any:
    return yaml.load((default_config_dir() / name).read_text(encoding="utf-8"), Loader)


def place_of(loaded: LoadedConfig, key: str) -> object:
    """Find the file and line where the user wrote a key of another program, such as `trinity.model.temperature`. A key
    that came with a merged or interpolated section has the place of that section."""
    while key not in loaded.origins:
        key = key.rpartition(".")[0]
    return loaded.origins[key]


def at(loaded: LoadedConfig, key: str) -> str:
    """Such a key with its place, as it stands before an error message."""
    return f"{place_of(loaded, key)}: {key}"


def rows(tree: Mapping[str, Any], prefix: str = "", whole: Collection[str] = ()) -> Iterator[tuple[str, str]]:
    """Every dotted key of a tree with its line of YAML. The sections `whole` take one line."""
    for name, value in tree.items():
        key, indent = f"{prefix}{name}", "  " * prefix.count(".")
        if isinstance(value, dict) and value and key not in whole:
            yield key, f"{indent}{inline(name)}:"
            yield from rows(value, f"{key}.", whole)
        else:
            yield key, f"{indent}{inline(name)}: {inline(value)}"


def with_origin(text: str, origin: str | None) -> str:
    return f"{text}  # {origin}\n" if origin else f"{text}\n"


def origin_of(loaded: LoadedConfig, keys: list[str]) -> str:
    """Name the keys that a converted value comes from: those that the user set, or all that count where none is set."""
    chosen = [key for key in keys if loaded.origins[key] != "default"]
    return ", ".join(f"{key} ({loaded.origins[key]})" for key in chosen) or f"{', '.join(keys)} (default)"


def clashes(loaded: LoadedConfig, section: str, users: Mapping[str, Any], known: Mapping[str, Any]) -> Iterator[str]:
    """Keys of the user's with a value where the other program's tree has a section, or with a section where it has a
    value; `known` is that tree by dotted key."""
    for key, value in users.items():
        inside = dict.fromkeys(
            other[len(key) + 1 :].partition(".")[0] for other in known if other.startswith(f"{key}.")
        )
        above = [other for other in known if key.startswith(f"{other}.") and not isinstance(known[other], dict)]
        where = at(loaded, f"{section}.{key}")
        if inside and value != {}:
            yield f"{where}: expected a section with {', '.join(inside)}, got {value!r}"
        elif above:
            yield f"{where}: {section}.{above[0]} is a value, not a section"

"""The dotted keys of the configuration, read off the schema."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from functools import cache
from typing import Any, get_args, get_origin

from pydantic.fields import FieldInfo

from astune.config.schema import Config
from astune.config.section import AnyFate, Section


def section_of(field: FieldInfo) -> type[Section] | None:
    """The section that a field holds, None if it holds a value."""
    kind = field.annotation
    return kind if isinstance(kind, type) and issubclass(kind, Section) else None


def section_by_name(field: FieldInfo) -> type[Section] | None:
    """The section that each entry of a field is, where the field holds sections by name; else None."""
    inner = get_args(field.annotation)[1:]
    kind = inner[0] if get_origin(field.annotation) is dict and inner else None
    return kind if isinstance(kind, type) and issubclass(kind, Section) else None


def _walk(model: type[Section], prefix: str) -> Iterator[tuple[str, FieldInfo]]:
    for name, field in model.model_fields.items():
        key = f"{prefix}{name}"
        yield key, field
        if section := section_of(field):
            yield from _walk(section, f"{key}.")


FIELDS: dict[str, FieldInfo] = dict(_walk(Config, ""))
"""Every dotted key, sections included, in the order of the schema."""

LEAVES: tuple[str, ...] = tuple(key for key, field in FIELDS.items() if section_of(field) is None)
"""The keys that hold a value."""


FREE_FORM: frozenset[str] = frozenset({"trinity", "verl"})
"""Values that are trees of keys of another program's: each of their keys has a place of its own."""


@cache
def fates(kind: type[AnyFate]) -> Mapping[str, AnyFate]:
    """Give what becomes of each key of `astune` on the engine that `kind` is for, in the order of the schema. Raises
    `TypeError` for a key of which neither its field nor a section around it says so."""
    stated: dict[str, AnyFate] = {}
    for key, field in FIELDS.items():
        above = stated.get(key.rpartition(".")[0])
        own = field.json_schema_extra.get(kind.engine) if isinstance(field.json_schema_extra, dict) else None
        if isinstance(own, kind):
            stated[key] = own.within(above)
        elif above is not None:
            stated[key] = above
    keys = [key for key in LEAVES if key not in FREE_FORM]
    if silent := [key for key in keys if key not in stated]:
        how = f"json_schema_extra=fate({kind.__name__}(...))"
        raise TypeError(f"{silent[0]}: say in its field what becomes of it on {kind.engine}: {how}")
    return {key: stated[key] for key in keys}


def value_at(config: Config, key: str) -> Any:
    """The value of a dotted key, such as `astune.trainer.total_steps`."""
    value: Any = config
    for name in key.split("."):
        value = getattr(value, name)
    return value


def children(key: str) -> list[str]:
    """Names of the keys directly under a section; `""` is the top. That may be one of those that users name."""
    above = FIELDS.get(key.rpartition(".")[0])
    if above is not None and (named := section_by_name(above)):
        return list(named.model_fields)
    prefix = f"{key}." if key else ""
    return [k[len(prefix) :] for k in FIELDS if k.startswith(prefix) and "." not in k[len(prefix) :]]


def describe(key: str) -> str:
    """Its description, where the key may be one of a section that users name, or a value of a list."""
    key = re.sub(r"\.\d+$", "", key)
    if key in FIELDS:
        return FIELDS[key].description or ""
    section, _, name = key.rpartition(".")
    above = FIELDS.get(section) or FIELDS[section.rpartition(".")[0]]
    kinds = [above.annotation, *get_args(above.annotation)]
    field = next(kind.model_fields[name] for kind in kinds if isinstance(kind, type) and issubclass(kind, Section))
    return field.description or ""


def unknown_key(key: str) -> str:
    """Advice about a key that is not in the schema: the one that was probably meant, or those there are.

    A misspelt name among the siblings goes before the same name in another section, of those the least deep.
    """
    if key in FIELDS:
        return "a key with dots; write it as sections inside each other"
    parent, _, name = key.rpartition(".")
    siblings = children(parent)
    prefix = f"{parent}." if parent else ""
    meant = [prefix + found for found in get_close_matches(name, siblings, n=1)]
    meant += sorted((other for other in FIELDS if other.rpartition(".")[2] == name), key=lambda found: found.count("."))
    if meant:
        return f"unknown key. Did you mean {meant[0]!r}?"
    return f"unknown key. {parent or 'The top level'} has: {', '.join(siblings)}"

"""Read the file of a rubric with the line of everything in it, and name the place of all that is wrong."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, get_args

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from astune.config import load as config_load
from astune.config.source import Loader, yaml_errors
from astune.errors import ConfigError, nearest
from astune.support.file_kinds import Kind, other_kind

M = TypeVar("M", bound=BaseModel)
Loc = tuple[str | int, ...]

EXPECTED = {
    **config_load.EXPECTED,
    "model_type": "a section of keys and values",
    "string_too_short": "a text",
    "too_short": "at least one",
}
"""Plain words for the schema's complaints, beside those of the configuration."""


@dataclass(frozen=True)
class RubricFile:
    path: Path
    values: dict[str, Any]
    lines: Mapping[Loc, int]
    """The line of every key and list item, by the way to it: `("criteria", 2, "weight")`."""

    def problem(self, loc: Loc, what: str) -> str:
        line = next((self.lines[loc[:n]] for n in range(len(loc), -1, -1) if loc[:n] in self.lines), 1)
        return f"{self.path}:{line}: {self._key(loc)}: {what}"

    def _key(self, loc: Loc) -> str:
        """`criteria[names-the-fee].weight`: a criterion goes by its id, or by its number from 1."""
        key, value = "", self.values
        for part in loc:
            value = _inside(value, part)
            if isinstance(part, int):
                name = value.get("id") if isinstance(value, dict) else None
                key += f"[{name if isinstance(name, str) else part + 1}]"
            else:
                key += f".{part}" if key else part
        return key


def read_rubric_file(path: Path, versions: Sequence[int]) -> RubricFile:
    """Reads values and lines. Raises `ConfigError` for what is no file, no YAML, or says another schema than
    `versions`."""
    if wrong := other_kind(path, "a rubric", Kind.RUBRIC):
        raise ConfigError(wrong)
    text, lines = _read_text(path), dict[Loc, int]()
    with yaml_errors(path):
        loader = Loader(text)
        root = loader.get_single_node()
        values = None if root is None else _read_node(loader, root, (), lines, path)
    if not isinstance(values, dict):
        raise ConfigError(f"{path}: expected a rubric: schema, name and criteria")
    file = RubricFile(path, values, lines)
    known = [f"astune.rubric/{version}" for version in versions]
    if (schema := values.pop("schema", None)) not in known:
        found = "nothing" if schema is None else repr(schema)
        raise ConfigError(file.problem(("schema",), f"expected {' or '.join(known)}, found {found}"))
    return RubricFile(path, {"schema_version": int(str(schema).rpartition("/")[2]), **values}, lines)


def validate(model: type[M], file: RubricFile) -> M:
    """Read the file's content as `model`. Raises `ConfigError` with all that does not fit, one problem in a line."""
    try:
        return model.model_validate(file.values)
    except ValidationError as error:
        problems = [_complaint(file, model, details) for details in error.errors() if not _follows(details)]
        listed = problems if len(problems) == 1 else [f"{file.path}: {len(problems)} errors", *problems]
        raise ConfigError("\n  ".join(listed)) from error


def _follows(details: ErrorDetails) -> bool:
    """True if the error only follows from another one: a list is too short because all of its items are wrong."""
    return details["type"] == "too_short" and bool(details["input"])


def _read_text(path: Path) -> str:
    if not path.is_file():
        folder = path.parent
        names = [other.name for other in folder.iterdir() if other.is_file()] if folder.is_dir() else []
        raise ConfigError(f"{path}: no such file.{nearest(path.name, names)} Expected a rubric (YAML)")
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not a text file in UTF-8: {error}") from error


def _read_node(loader: Loader, node: yaml.Node, loc: Loc, lines: dict[Loc, int], path: Path) -> Any:
    """The value of a node; notes the lines of all inside. Raises `ConfigError` for a key that stands twice."""
    if isinstance(node, yaml.SequenceNode):
        lines.update({(*loc, i): item.start_mark.line + 1 for i, item in enumerate(node.value)})
        return [_read_node(loader, item, (*loc, i), lines, path) for i, item in enumerate(node.value)]
    if not isinstance(node, yaml.MappingNode):
        return loader.construct_object(node, deep=True)
    values: dict[str, Any] = {}
    for name, inner in node.value:
        key, line = str(name.value), name.start_mark.line + 1
        place = (*loc, key)
        if key in values:
            raise ConfigError(f"{path}:{line}: {key}: stands twice, first in line {lines[place]}")
        lines[place] = line
        values[key] = _read_node(loader, inner, (*loc, key), lines, path)
    return values


def _complaint(file: RubricFile, model: type[BaseModel], details: ErrorDetails) -> str:
    loc, kind, value = details["loc"], details["type"], details["input"]
    if kind == "extra_forbidden":
        known = _fields_at(model, loc[:-1])
        hint = nearest(str(loc[-1]), known)
        return file.problem(loc, f"no such key.{hint} There are: {', '.join(known)}")
    if kind == "missing":
        return file.problem(loc, "missing")
    if kind == "literal_error":
        expected = str(details["ctx"]["expected"])
        quoted = re.findall(r"'(.*?)'", expected)
        return file.problem(loc, f"expected {expected}, got {value!r}.{nearest(str(value), quoted)}")
    if kind == "string_pattern_mismatch":
        return file.problem(loc, f"expected a name in one line without '|', got {value!r}")
    plain = details["msg"].removeprefix("Input should be ").removeprefix("Value error, ")
    shown = "" if isinstance(value, dict | list | tuple) else f", got {value!r}"
    return file.problem(loc, f"expected {EXPECTED.get(kind, plain)}{shown}")


def _fields_at(model: type[BaseModel], loc: Loc) -> list[str]:
    """The keys that a section at `loc` may have, as the file calls them."""
    for part in loc:
        if isinstance(part, str):
            model = next(_models(model.model_fields[part].annotation))
    return ["schema" if name == "schema_version" else name for name in model.model_fields]


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from _models(inner)


def _inside(value: Any, part: str | int) -> Any:
    if isinstance(value, dict):
        return value.get(str(part))
    return value[part] if isinstance(value, list) and isinstance(part, int) and part < len(value) else None

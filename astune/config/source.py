"""Read one file or the command line, with the place of every key; nothing is checked against the schema yet.

YAML has the scalars of version 1.2: `1e-6` is a number; `off`, `no` and `2024-01-01` are text.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import yaml

from astune.errors import ConfigError, nearest

logger = logging.getLogger(__name__)

SCALARS = (
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("int", r"[-+]?(0|[1-9][0-9_]*)|0x[0-9a-fA-F]+", list("-+0123456789")),
    (
        "float",
        r"[-+]?([0-9][0-9_]*(\.[0-9_]*)?|\.[0-9][0-9_]*)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
        list("-+0123456789."),
    ),
    ("merge", r"<<", ["<"]),
)
"""Tag, pattern and possible first characters of what is not plain text; the first that fits counts."""


class Loader(yaml.SafeLoader):
    """Reads by these rules alone."""


class SavedLoader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """The same, ten times as fast where PyYAML was built with libyaml, for files that ASTune wrote: text of others may
    nest deeper than C can follow."""


class Dumper(yaml.SafeDumper):
    """Quotes text that would be something else by these rules or by those of YAML 1.1, so that anyone can read it."""


Loader.yaml_implicit_resolvers, SavedLoader.yaml_implicit_resolvers = {}, {}
for _tag, _pattern, _first in SCALARS:
    for _class in (Loader, SavedLoader, Dumper):
        _class.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(f"^(?:{_pattern})$"), _first)


@dataclass(frozen=True)
class Origin:
    """A line of a file."""

    file: Path
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


Place = Origin | Literal["default", "command line", "argument"]
"""Where a value comes from; "argument": of a function of `astune.api`."""


@dataclass(frozen=True)
class Layer:
    """A tree of values, the place of each of its dotted keys, and what was wrong with the writing itself."""

    values: dict[str, Any] = field(default_factory=dict)
    places: dict[str, Place] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def put(self, key: str, value: Any, place: Place) -> None:
        """Sets one dotted key, making the sections around it."""
        *sections, name = key.split(".")
        tree, above = self.values, ""
        for section in sections:
            above = f"{above}.{section}" if above else section
            self.places[above] = place
            inner = tree.get(section)
            tree[section] = inner if isinstance(inner, dict) else {}
            tree = tree[section]
        tree[name] = value
        self.places.update((inside, place) for inside in _keys(value, key))

    def take(self, key: str) -> tuple[Any, Place | None]:
        """Take out a dotted key, and give its value and place; None as its place says that it is not there."""
        *sections, name = key.split(".")
        tree: Any = self.values
        for section in sections:
            tree = tree.get(section) if isinstance(tree, dict) else None
        if not isinstance(tree, dict) or name not in tree:
            return None, None
        return tree.pop(name), self.places.pop(key)


@dataclass(frozen=True)
class OlderKey:
    """What became of a key that an earlier version had: the key that has its meaning now and what its value is there,
    or why nothing has it."""

    now: str | None
    why: str = ""
    read: Callable[[Any], Any] = lambda value: value


OF_THE_MODEL = "the price stands with the model that plays, in astune.model.path"
OLDER_KEYS: Mapping[str, OlderKey] = {
    "astune.monitor.tensorboard": OlderKey("astune.monitor.trackers", read=lambda on: ["tensorboard"] if on else []),
    "astune.prompts.prompt_price": OlderKey(None, OF_THE_MODEL),
    "astune.prompts.completion_price": OlderKey(None, OF_THE_MODEL),
    "astune.rubrics.proposals": OlderKey(None, "three criteria are proposed at a time"),
    "astune.rubrics.dev_share": OlderKey(None, "a quarter of the examples is for selection"),
    "astune.rubrics.test_share": OlderKey(None, "a quarter of the examples is for the report"),
}
"""Every key that was ever renamed or taken out."""


def read_older_keys(layer: Layer) -> None:
    """Put what stands at keys of earlier versions where it belongs now, with a note for each."""
    for key, older in OLDER_KEYS.items():
        value, place = layer.take(key)
        if place is None:
            continue
        if older.now is None:
            logger.warning("%s: %s is no key any more, and is not read: %s", place, key, older.why)
        elif older.now in layer.places:
            logger.warning("%s: %s is not read, as %s, its newer name, is there too", place, key, older.now)
        else:
            read = older.read(value)
            layer.put(older.now, read, place)
            logger.warning("%s: %s is now %s, and is read as %r", place, key, older.now, read)


def _keys(value: Any, key: str) -> Iterator[str]:
    """`key` and every dotted key inside its value."""
    yield key
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _keys(inner, f"{key}.{name}")


@contextmanager
def yaml_errors(path: Path) -> Iterator[None]:
    """Turn errors of the YAML reader into a `ConfigError` with line and column."""
    try:
        yield
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        at = f"{path}:{mark.line + 1}:{mark.column + 1}" if mark else str(path)
        raise ConfigError(f"{at}: not valid YAML: {error.problem or error.context}") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: not valid YAML: {error}") from error


def read_yaml(path: Path) -> Layer:
    """Raises `ConfigError` for a file that is not there, is not YAML, or holds no sections."""
    text = _text(path)
    with yaml_errors(path):
        loader = Loader(text)
        root = loader.get_single_node()
        problems = list(_find_repeated_keys(root, "", path))
        values = loader.construct_document(root) if root else None
    if root is None or values is None:
        raise ConfigError(f"{path}: the file is empty; expected a section 'astune:'")
    if not isinstance(values, dict):
        kind = "a list" if isinstance(values, list) else "a single value"
        raise ConfigError(f"{path}:{root.start_mark.line + 1}: expected a section 'astune:', got {kind}")
    places: dict[str, Place] = {key: Origin(path, line) for key, line in _lines(root, "")}
    return Layer(values, places, problems)


def read_saved(path: Path) -> dict[str, Any]:
    """The values in the config.yaml of a run. Raises `ConfigError` for a file that holds no sections."""
    text = _text(path)
    with yaml_errors(path):
        values = yaml.load(text, SavedLoader)
    if not isinstance(values, dict):
        raise ConfigError(f"{path}: expected a section 'astune:', got {type(values).__name__}")
    return values


def read_overrides(overrides: Sequence[str]) -> Layer:
    """`key=value` pairs, values in YAML: `astune.trainer.learning_rate=1e-5`, `astune.trainer.betas=[0.9, 0.99]`."""
    layer = Layer()
    for override in overrides:
        key, equals, text = override.partition("=")
        if not equals or not key.strip(". ") or "" in key.split("."):
            layer.problems.append(f"command line: {override!r}: expected key=value, as astune.trainer.total_steps=10")
            continue
        try:
            loader = Loader(text)
            root = loader.get_single_node()
            layer.problems.extend(_find_repeated_keys(root, f"{key}.", None))
            value = loader.construct_document(root) if root else None
        except yaml.YAMLError as error:
            problem = error.problem if isinstance(error, yaml.MarkedYAMLError) else error
            layer.problems.append(f"command line: {key}: cannot read the value {text!r}: {problem}")
            continue
        layer.put(key, value, "command line")
    return layer


def _text(path: Path) -> str:
    if path.is_dir():
        raise ConfigError(f"{path} is a folder; expected a YAML file")
    if not path.is_file():
        folder = path.parent
        if not folder.is_dir():
            raise ConfigError(f"{path}: no such file: there is no folder {folder}")
        hint = nearest(path.name, [other.name for other in folder.iterdir() if other.is_file()])
        raise ConfigError(f"{path}: no such file.{hint}")
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not a text file in UTF-8: {error}") from error


def _find_repeated_keys(node: yaml.Node | None, prefix: str, path: Path | None) -> Iterator[str]:
    """Problems: keys that stand twice in one section, of a file or, without a path, of a command line. Raises
    `ConfigError` for a key that is not text."""
    if isinstance(node, yaml.SequenceNode):
        for item in node.value:
            yield from _find_repeated_keys(item, prefix, path)
    if not isinstance(node, yaml.MappingNode):
        return
    seen: dict[str, int] = {}
    for name, value in node.value:
        line, key = name.start_mark.line + 1, f"{prefix}{name.value}"
        place = "command line" if path is None else Origin(path, line)
        if name.tag not in ("tag:yaml.org,2002:str", "tag:yaml.org,2002:merge"):
            raise ConfigError(f"{place}: {key}: a key must be text; put it in quotes")
        if key in seen:
            yield f"{place}: {key}: stands twice" + ("" if path is None else f", first in line {seen[key]}")
        seen.setdefault(key, line)
        yield from _find_repeated_keys(value, f"{key}.", path)


def _lines(node: yaml.Node, prefix: str) -> Iterator[tuple[str, int]]:
    """The line of every dotted key."""
    if isinstance(node, yaml.MappingNode):
        for name, value in node.value:
            key = f"{prefix}{name.value}"
            yield key, name.start_mark.line + 1
            yield from _lines(value, f"{key}.")

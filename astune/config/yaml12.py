"""YAML with the scalars of version 1.2: `1e-6` is a number; `off`, `no` and `2024-01-01` are text."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import yaml

from astune.errors import ConfigError

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

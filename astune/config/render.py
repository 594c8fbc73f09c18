"""Write a configuration as YAML, plain or with a comment after every value."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from astune.config.keys import FIELDS, FREE_FORM, section_of
from astune.config.schema import Config
from astune.config.yaml12 import Dumper

WIDEST = 56
"""Column of the comments; longer values push theirs to the right."""


def default_yaml() -> str:
    """The text of `default_config/default.yaml`: every key, its default, its meaning."""
    head = "# Every key, its default and its meaning. Written by `astune config defaults`; do not edit.\n"
    return head + annotated(Config(), lambda key: FIELDS[key].description or "")


def annotated(config: Config, note: Callable[[str], str]) -> str:
    """YAML with `note(dotted key)` behind each line; an empty note leaves the line alone."""
    rows = list(_rows(config.model_dump(mode="json"), "", note))
    column = min(WIDEST, max(len(text) for text, _ in rows))
    return "".join(f"{text:<{column}}  # {comment}\n" if comment else f"{text}\n" for text, comment in rows)


def _rows(tree: Mapping[str, Any], prefix: str, note: Callable[[str], str]) -> list[tuple[str, str]]:
    rows = []
    for name, value in tree.items():
        key = f"{prefix}{name}"
        indent = "  " * key.count(".")
        free_form = key.partition(".")[0] in FREE_FORM and isinstance(value, dict) and value
        if free_form or (key in FIELDS and section_of(FIELDS[key])):
            rows += [(f"{indent}{inline(name)}:", note(key)), *_rows(value, f"{key}.", note)]
        else:
            rows.append((f"{indent}{inline(name)}: {inline(value)}", note(key)))
    return rows


def inline(value: Any) -> str:
    """Write one value on one line."""
    return _inline_again(value) if value is None or isinstance(value, str | int) else _inline(value)


@lru_cache(maxsize=4096, typed=True)
def _inline_again(value: str | int | None) -> str:
    """Write a value that many configurations have, such as the name of a key: a run writes and compares hundreds."""
    return _inline(value)


def _inline(value: Any) -> str:
    text: str = yaml.dump(_escaped(value), Dumper=Dumper, default_flow_style=True, width=10**9, sort_keys=False)
    return text.removesuffix("\n").removesuffix("\n...")


def save_config(config: Config, path: Path) -> None:
    """Writes what `load_config` reads back as an equal `Config`. Values that look like interpolations stay text."""
    path.write_text(annotated(config, lambda key: ""), encoding="utf-8")


def _escaped(value: Any) -> Any:
    if isinstance(value, str):
        return re.sub(r"(\\*)\$\{", lambda match: f"{match[1] * 2}\\${{", value)
    if isinstance(value, dict):
        return {key: _escaped(inner) for key, inner in value.items()}
    return [_escaped(inner) for inner in value] if isinstance(value, list) else value

"""Write a configuration as YAML, plain or with a comment after every value; compare it with one that was written."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import yaml

from astune.config.keys import FIELDS, FREE_FORM, LEAVES, section_of
from astune.config.schema import Config
from astune.config.source import Dumper, SavedLoader, read_saved

WIDEST = 56
"""Column of the comments; longer values push theirs to the right."""


def default_yaml() -> str:
    """The text of `default_config/default.yaml`: every key, its default, its meaning."""
    head = "# Every key, its default and its meaning. Written by `astune config defaults`; do not edit.\n"
    return head + annotate(Config(), lambda key: FIELDS[key].description or "")


def annotate(config: Config, note: Callable[[str], str]) -> str:
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
    text: str = yaml.dump(_escape(value), Dumper=Dumper, default_flow_style=True, width=10**9, sort_keys=False)
    return text.removesuffix("\n").removesuffix("\n...")


def save_config(config: Config, path: Path) -> None:
    """Writes what `load_config` reads back as an equal `Config`. Values that look like interpolations stay text."""
    path.write_text(annotate(config, lambda key: ""), encoding="utf-8")


def _escape(value: Any) -> Any:
    if isinstance(value, str):
        return re.sub(r"(\\*)\$\{", lambda match: f"{match[1] * 2}\\${{", value)
    if isinstance(value, dict):
        return {key: _escape(inner) for key, inner in value.items()}
    return [_escape(inner) for inner in value] if isinstance(value, list) else value


CLOCK = "astune.model.clock"
MAY_CHANGE = (
    "astune.algorithm.preset",
    "astune.allow_changes",
    "astune.debug",
    "astune.evaluation",
    "astune.experiment_name",
    "astune.model.attention",
    "astune.model.device",
    "astune.model.gradient_checkpointing",
    "astune.monitor",
    "astune.online",
    "astune.project_name",
    "astune.resume",
    "astune.rollout.max_concurrent",
    "astune.rollout.workers",
    "astune.rubrics",
    "astune.runs_dir",
    "astune.task_judge.llm.cache",
    "astune.task_reader.env_service.create_timeout",
    "astune.task_reader.env_service.env_url",
    "astune.task_reader.env_service.retries",
    "astune.task_reader.env_service.timeout",
    "astune.task_reader.env_service.token_variable",
    "astune.trainer.keep_best",
    "astune.trainer.keep_checkpoints",
    "astune.trainer.max_failed_tool_steps",
    "astune.trainer.max_skipped_updates",
    "astune.trainer.max_unjudged_steps",
    "astune.trainer.micro_batch_tokens",
    "astune.trainer.save_every",
    "astune.trainer.save_minutes",
    "astune.trainer.total_epochs",
    "astune.trainer.total_steps",
)
"""Keys and sections that say how far, where and with what means a run goes, not what it learns. What a preset says
is compared key by key."""


def changes(former: Path, config: Config) -> list[str]:
    """Options in which `config` differs from the config.yaml of a run, one in a line, less `MAY_CHANGE`. Keys that one
    version of ASTune has and the other has not count with their defaults. Raises ConfigError for a file that is no
    YAML."""
    old, new, default = read_saved(former), _as_saved(config), _defaults()
    found = []
    for key in LEAVES:
        before, after = _value(old, key, _value(default, key)), _value(new, key)
        if key == CLOCK and None in (before, after):  # none is given or, by an older version, none was kept
            continue
        if before != after and not any(f"{key}.".startswith(f"{free}.") for free in MAY_CHANGE):
            found.append(f"{key}: {inline(before)} before, {inline(after)} now")
    return found


@cache
def _defaults() -> Mapping[str, Any]:
    """The configuration in which nothing is set."""
    return _as_saved(Config())


def _as_saved(config: Config) -> Mapping[str, Any]:
    tree: Mapping[str, Any] = yaml.load(annotate(config, lambda key: ""), SavedLoader)
    return tree


def _value(tree: Mapping[str, Any], key: str, otherwise: Any = None) -> Any:
    node: Any = tree
    for name in key.split("."):
        if not isinstance(node, Mapping) or name not in node:
            return otherwise
        node = node[name]
    return node

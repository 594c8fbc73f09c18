"""Find the options in which a resumed run differs from what it was, and that make it another run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from astune.config.keys import LEAVES
from astune.config.render import annotated, inline
from astune.config.schema import Config
from astune.config.source import read_yaml
from astune.config.yaml12 import Loader

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
    old, new, default = read_yaml(former).values, _as_saved(config), _as_saved(Config())
    found = []
    for key in LEAVES:
        before, after = _value(old, key, _value(default, key)), _value(new, key)
        if key == CLOCK and None in (before, after):  # none is given or, by an older version, none was kept
            continue
        if before != after and not any(f"{key}.".startswith(f"{free}.") for free in MAY_CHANGE):
            found.append(f"{key}: {inline(before)} before, {inline(after)} now")
    return found


def _as_saved(config: Config) -> Mapping[str, Any]:
    tree: Mapping[str, Any] = yaml.load(annotated(config, lambda key: ""), Loader)
    return tree


def _value(tree: Mapping[str, Any], key: str, otherwise: Any = None) -> Any:
    node: Any = tree
    for name in key.split("."):
        if not isinstance(node, Mapping) or name not in node:
            return otherwise
        node = node[name]
    return node

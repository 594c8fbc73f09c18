"""A run's configuration and the texts of its tokens, as far as its folder still tells."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from astune.config.section import flatten
from astune.config.source import SavedLoader
from astune.context_tracker.prompt.chat_format import ChatFormat
from astune.monitor import RunDir
from astune.support.resources import tiny_model_dir

Pieces = Callable[[Sequence[int]], list[str]]
"""Token ids to one text each."""
LOGPROB_DIGITS = 4
"""Of a log-probability on a page."""


def config_of(run: RunDir) -> dict[str, Any]:
    """The run's configuration by dotted keys. It may be that of an older version: a key can be missing."""
    return dict(flatten(yaml.load(run.config_path.read_text(encoding="utf-8"), SavedLoader) or {}))


def pieces_of(run: RunDir, config: Mapping[str, Any]) -> Pieces | None:
    """Token texts from the newest checkpoint, or from the model's folder; None if neither is there (any more)."""
    path = str(config.get("astune.model.path"))
    latest = run.latest_checkpoint()
    of_models = [] if latest is None else [file.parent for file in sorted(latest.glob("*/tokenizer.json"))]
    folders = [latest, *of_models, tiny_model_dir() if path == "tiny" else Path(path)]
    for folder in folders:
        if folder is not None and (folder / "tokenizer.json").is_file():
            return ChatFormat.load(folder).pieces
    return None

"""A run's configuration and the texts of its tokens, as far as its folder still tells."""

from __future__ import annotations

import re
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
OWN_PATH = re.compile(r"astune\.models\.([^.]+)\.path")
LOGPROB_DIGITS = 4
"""Of a log-probability on a page."""


def config_of(run: RunDir) -> dict[str, Any]:
    """The run's configuration by dotted keys. It may be that of an older version: a key can be missing."""
    return dict(flatten(yaml.load(run.config_path.read_text(encoding="utf-8"), SavedLoader) or {}))


def pieces_of(run: RunDir, config: Mapping[str, Any]) -> dict[str, Pieces]:
    """Token texts by the names of models that have a path of their own, and of all others by "": from the newest
    checkpoint, or from the model's folder. Those of which neither is there (any more) are left out."""
    latest = run.latest_checkpoint()
    own = {named[1]: path for key, path in config.items() if (named := OWN_PATH.fullmatch(key)) and path}
    found: dict[str, Pieces] = {}
    for name, path in {"": config.get("astune.model.path"), **own}.items():
        folders = [tiny_model_dir() if path == "tiny" else Path(str(path))]
        if latest is not None:
            others = [file.parent for file in sorted(latest.glob("*/tokenizer.json")) if file.parent.name not in own]
            folders = [latest / name, *([] if name else others), *folders]
        if folder := next((each for each in folders if (each / "tokenizer.json").is_file()), None):
            found[name] = ChatFormat.load(folder).pieces
    return found

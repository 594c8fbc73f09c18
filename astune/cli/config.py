"""`astune config show` and `astune config defaults`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from astune.config.load import load_config
from astune.config.render import annotated, default_yaml


def show(conf: Path, overrides: Sequence[str], backbone: str | None) -> int:
    """Prints the resolved YAML, each value with its origin; on a terminal, what is not a default stands out."""
    loaded = load_config(conf, overrides, backbone=backbone)
    text = annotated(loaded.config, lambda key: str(loaded.origins.get(key, "")))
    if sys.stdout.isatty():
        from rich.console import Console
        from rich.text import Text

        shown = Text(text.rstrip("\n"))
        shown.highlight_regex(r"(?m)  # default$", "dim")
        shown.highlight_regex(r"(?m)  # (?!default$).*$", "cyan")
        Console().print(shown, soft_wrap=True)
    else:
        print(text, end="")
    return 0


def defaults() -> int:
    print(default_yaml(), end="")
    return 0

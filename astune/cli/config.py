"""`astune config show`, `astune config defaults` and `astune config convert`."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path

from astune.config.load import LoadedConfig, load_config
from astune.config.render import annotated, default_yaml
from astune.errors import ConfigError


def show(conf: Path, overrides: Sequence[str], backbone: str | None) -> int:
    """Prints the resolved YAML, each value with its origin; on a terminal, what is not a default stands out."""
    loaded = load_config(conf, overrides, backbone=backbone)
    _print(annotated(loaded.config, lambda key: str(loaded.origins.get(key, ""))), dim="default")
    return 0


def defaults() -> int:
    sys.stdout.write(default_yaml())
    return 0


def convert(conf: Path, overrides: Sequence[str], backbone: str | None) -> int:
    """Prints the configuration that the backbone's own program gets, each value with its origin."""
    loaded = load_config(conf, overrides, backbone=backbone)
    config = loaded.config.astune
    if config.backbone == "trinity":
        from astune.backbone.trinity.conversion.convert import convert as convert_to_trinity
        from astune.backbone.trinity.conversion.table import DEFAULTS

        run_path = Path(config.runs_dir) / config.project_name / (config.experiment_name or "run")
        _print(convert_to_trinity(loaded, run_path, _num_tasks(loaded)).yaml(), dim=DEFAULTS)
    elif config.backbone == "verl":
        from astune.backbone.verl.trainer.settings import DEFAULTS as VERL_DEFAULTS
        from astune.backbone.verl.trainer.settings import settings_of

        _print(settings_of(loaded).yaml(), dim=VERL_DEFAULTS)
    else:
        raise ConfigError(
            f"{loaded.where('astune.backbone')}: {config.backbone!r} is not configured by another program's file; "
            "expected --backbone=trinity or --backbone=verl"
        )
    return 0


def _num_tasks(loaded: LoadedConfig) -> int | None:
    """The number of training tasks, or examples, where the length of the run depends on it."""
    from astune.backbone.trinity.shared.parts import RunParts
    from astune.examples.read import read_examples
    from astune.training.tasks import read_tasks

    config = loaded.config.astune
    if config.trainer.total_epochs is None:
        return None
    if config.algorithm.method == "rl":
        return len(read_tasks(config).training)
    return len(read_examples(config, RunParts(config).chat_format))


def _print(text: str, dim: str) -> None:
    """Annotated YAML; on a terminal the comments stand out, but for those that are `dim`."""
    if not sys.stdout.isatty():
        sys.stdout.write(text)
        return
    from astune.support.terminal import Console, Text

    shown = Text(text.rstrip("\n"))
    shown.highlight_regex(rf"(?m)  # {re.escape(dim)}$", "dim")
    shown.highlight_regex(rf"(?m)  # (?!{re.escape(dim)}$).*$", "cyan")
    Console().print(shown, soft_wrap=True)

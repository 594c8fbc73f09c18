"""`astune config show`, `astune config defaults`, `astune config schema` and `astune config convert`."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from astune.cli.run import add_backbone_and_overrides
from astune.cli.suggesting_parser import Commands, add_conf
from astune.errors import ConfigError

if TYPE_CHECKING:
    from astune.config.load import LoadedConfig


def add_config(commands: Commands) -> None:
    command = commands.add_parser("config", help="look at a configuration")
    command.set_defaults(execute=_execute)
    actions = command.add_subparsers(dest="action", required=True, metavar="ACTION")
    words = {
        "show": "every value and where it comes from",
        "convert": "what another program gets, as --backbone=trinity or verl runs one",
    }
    for action, meaning in words.items():
        each = actions.add_parser(action, help=meaning)
        add_conf(each)
        add_backbone_and_overrides(each)
    actions.add_parser("defaults", help="every key, its default and its meaning")
    actions.add_parser("schema", help="the same as a JSON schema, by which editors complete and check")


def _execute(known: argparse.Namespace) -> int:
    if known.action in ("defaults", "schema"):
        return defaults() if known.action == "defaults" else schema()
    action = show if known.action == "show" else convert
    return action(known.conf, known.overrides, known.backbone)


def show(conf: Path, overrides: Sequence[str], backbone: str | None) -> int:
    """Prints the resolved YAML, each value with its origin; on a terminal, what is not a default stands out."""
    from astune.config.load import load_config
    from astune.config.render import annotate

    loaded = load_config(conf, overrides, backbone=backbone)
    _print(annotate(loaded.config, lambda key: str(loaded.origins.get(key, ""))), dim="default")
    return 0


def defaults() -> int:
    from astune.config.render import default_yaml

    sys.stdout.write(default_yaml())
    return 0


def schema() -> int:
    from astune.cli.json_schema import schema_text

    sys.stdout.write(schema_text())
    return 0


def convert(conf: Path, overrides: Sequence[str], backbone: str | None) -> int:
    """Prints the configuration that the backbone's own program gets, each value with its origin."""
    from astune.config.load import load_config

    loaded = load_config(conf, overrides, backbone=backbone)
    config = loaded.config.astune
    if config.backbone == "trinity":
        from astune.backbone.trinity.conversion.convert import DEFAULTS_FILE
        from astune.backbone.trinity.conversion.convert import convert as convert_to_trinity

        run_path = Path(config.runs_dir) / config.project_name / (config.experiment_name or "run")
        _print(convert_to_trinity(loaded, run_path, _num_tasks(loaded)).yaml(), dim=DEFAULTS_FILE)
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
    from astune.config.rules.method import rules_of
    from astune.examples.read import read_examples
    from astune.training.tasks import read_tasks

    config = loaded.config.astune
    if config.trainer.total_epochs is None:
        return None
    if rules_of(config.algorithm).plays:
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

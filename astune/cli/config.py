"""`astune config show`, `astune config defaults`, `astune config schema` and `astune config convert`."""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from astune.cli.run import add_backbone_and_overrides
from astune.cli.suggesting_parser import Commands, add_conf
from astune.errors import ConfigError

if TYPE_CHECKING:
    from astune.config.load import LoadedConfig


def add_config(commands: Commands) -> None:
    command = commands.add_parser("config", help="look at a configuration")
    actions = command.add_subparsers(dest="action", required=True, metavar="ACTION")
    show = actions.add_parser("show", help="every value and where it comes from")
    show.set_defaults(execute=_show)
    convert = actions.add_parser("convert", help="what another program gets, as --backbone=trinity or verl runs one")
    convert.set_defaults(execute=_convert)
    for each in (show, convert):
        add_conf(each)
        add_backbone_and_overrides(each)
    defaults = actions.add_parser("defaults", help="every key, its default and its meaning")
    defaults.set_defaults(execute=_defaults)
    schema = actions.add_parser("schema", help="the same as a JSON schema, by which editors complete and check")
    schema.set_defaults(execute=_schema)


def _show(known: argparse.Namespace) -> int:
    """Prints the resolved YAML, each value with its origin; on a terminal, what is not a default stands out."""
    from astune.config.load import load_config
    from astune.config.render import annotate

    loaded = load_config(known.conf, known.overrides, backbone=known.backbone)
    _print(annotate(loaded.config, lambda key: str(loaded.origins.get(key, ""))), dim="default")
    return 0


def _defaults(known: argparse.Namespace) -> int:
    from astune.config.render import default_yaml

    sys.stdout.write(default_yaml())
    return 0


def _schema(known: argparse.Namespace) -> int:
    from astune.cli.json_schema import schema_text

    sys.stdout.write(schema_text())
    return 0


def _convert(known: argparse.Namespace) -> int:
    """Prints the configuration that the backbone's own program gets, each value with its origin."""
    from astune.config.load import load_config

    loaded = load_config(known.conf, known.overrides, backbone=known.backbone)
    config = loaded.config.astune
    if config.backbone == "trinity":
        from astune.backbone.trinity.conversion.convert import DEFAULTS_FILE, convert

        run_path = Path(config.runs_dir) / config.project_name / (config.experiment_name or "run")
        _print(convert(loaded, run_path, _num_tasks(loaded)).yaml(), dim=DEFAULTS_FILE)
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

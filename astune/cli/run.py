"""`astune run`, `astune demo` and `astune report`."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from astune.backbone.base import Backbone, check_keys, covers
from astune.config.load import load_config
from astune.errors import ConfigError, PluginError
from astune.plugins import load_plugin
from astune.resources import tutorial_dir
from astune.types import RunReport
from astune.visible import tell

BACKBONES = {
    "debug": "astune.backbone.debug:DebugBackbone",
    "local": "astune.backbone.local:LocalBackbone",
    "trinity": "astune.backbone.trinity.backbone:TrinityBackbone",
}
EXIT_CODES = {"completed": 0, "failed": 1, "learned_nothing": 3, "interrupted": 130}
"""By how a run ended; 2 is for what is wrong in the command or the configuration."""


def run(
    conf: Path,
    overrides: Sequence[str],
    backbone: str | None,
    resume: bool,
    options: Mapping[str, object],
    command_line: str,
) -> int:
    """Loads, checks, runs, reports. `options` are values by key; `command_line` is what the user typed, for the
    command that resumes."""
    loaded = load_config(conf, overrides, backbone=backbone, resume=resume, options=options)
    _refuse_debug_options(loaded.config.astune.backbone, options)
    try:
        chosen: Backbone = load_plugin(loaded.config.astune.backbone, kind="backbone", builtin=BACKBONES)()
    except PluginError as error:
        raise PluginError(f"{loaded.where('astune.backbone')}: {error}") from error
    ignored = check_keys(chosen, loaded)
    if ignored:
        tell(f"not used by {chosen.name}: {', '.join(ignored)}")
    result = chosen.run(loaded)
    can_resume = covers(chosen.honours, "astune.resume") and not covers(chosen.ignored_sections, "astune.resume")
    _tell(result, can_resume=can_resume, command_line=command_line)
    return EXIT_CODES[result.status]


def _refuse_debug_options(backbone: str, options: Mapping[str, object]) -> None:
    given = [key.removeprefix("astune.debug.") for key in options if key.startswith("astune.debug.")]
    if backbone != "debug" and given:
        raise ConfigError(
            f"command line: {', '.join(given)}: options of the debugger, but the backbone is {backbone!r}; "
            "add --backbone=debug"
        )


def demo_config() -> Path:
    return tutorial_dir() / "math_agent" / "demo.yaml"


def report(run_dir: Path) -> int:
    from astune.viewer.report import write_report

    if not run_dir.is_dir():
        raise ConfigError(f"{run_dir}: no such folder; expected the folder of a run, as runs/project/name")
    tell(f"report  {write_report(run_dir)}")
    return 0


def _tell(result: RunReport, can_resume: bool, command_line: str) -> None:
    """Writes the report of a run that left a folder, and says where things are."""
    if result.run_dir.is_dir():
        from astune.viewer.report import write_report

        tell(f"run     {result.run_dir}")
        tell(f"report  {write_report(result.run_dir)}")
        tell(f"view    astune view {os.path.relpath(result.run_dir)} --open")
    if result.status == "learned_nothing":
        tell(f"nothing was learned: {result.summary['nothing_learned']}", file=sys.stderr)
    if result.status == "interrupted":
        resume = command_line if "--resume" in command_line else f"{command_line} --resume"
        hint = f" after step {result.steps}; to go on:\n  {resume}" if can_resume else ""
        tell(f"interrupted{hint}", file=sys.stderr)

"""`astune run`, `astune demo` and `astune report`."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from astune.backbone.base import Backbone, check_keys, covers
from astune.cli.exit_codes import DONE, FAILED, INTERRUPTED, LEARNED_NOTHING
from astune.cli.input_check import check_input
from astune.config.load import LoadedConfig, load_config
from astune.errors import AstuneError, ConfigError, PluginError
from astune.monitor.run_dir import RunDir
from astune.plugins import load_plugin
from astune.support.resources import tutorial_dir
from astune.support.visible import mute, tell
from astune.types import RunReport

BACKBONES = {
    "debug": "astune.backbone.debug:DebugBackbone",
    "local": "astune.backbone.local:LocalBackbone",
    "trinity": "astune.backbone.trinity.backbone:TrinityBackbone",
    "verl": "astune.backbone.verl.backbone:VerlBackbone",
}
EXIT_CODES = {"completed": DONE, "failed": FAILED, "learned_nothing": LEARNED_NOTHING, "interrupted": INTERRUPTED}
"""By how a run ended."""


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
    started_in = Path.cwd()
    loaded = load_config(conf, overrides, backbone=backbone, resume=resume, options=options)
    _refuse_debug_options(loaded.config.astune.backbone, options)
    _check_before_loading(loaded)
    try:
        chosen: Backbone = load_plugin(loaded.config.astune.backbone, kind="backbone", builtin=BACKBONES)()
    except PluginError as error:
        raise PluginError(f"{loaded.where('astune.backbone')}: {error}") from error
    ignored = check_keys(chosen, loaded)
    if ignored:
        tell(f"not used by {chosen.name}: {', '.join(ignored)}")
    result = chosen.run(loaded)
    can_resume = covers(chosen.honours, "astune.resume") and not covers(chosen.ignored_sections, "astune.resume")
    _tell(result, started_in, can_resume=can_resume, command_line=command_line)
    if result.error is not None:
        raise result.error
    return EXIT_CODES[result.status]


def _check_before_loading(loaded: LoadedConfig) -> None:
    """Look first at what takes no time: a backbone's libraries take seconds to load."""
    config = loaded.config.astune
    if config.backbone not in BACKBONES:
        return
    for number, stage in enumerate(loaded.stages, start=1):
        try:
            check_input(stage.config.astune)
        except AstuneError as error:
            raise type(error)(f"stage {number}: {error}") from error
    if not loaded.stages:
        check_input(config)
    tell(f"loading the {config.backbone} backbone and the model {config.model.path} ...")
    sys.stdout.flush()


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
    from astune.viewer import write_report

    if not run_dir.is_dir():
        raise ConfigError(f"{run_dir}: no such folder; expected the folder of a run, as runs/project/name")
    tell(f"report  {write_report(run_dir)}")
    return 0


def _tell(result: RunReport, started_in: Path, can_resume: bool, command_line: str) -> None:
    """Writes the report of a run that left a folder, and says where things are, if anybody still listens."""
    lines = list(_places(result.run_dir, started_in)) if result.run_dir.is_dir() else []
    try:
        for line in lines:
            tell(line)
        sys.stdout.flush()
        if result.status == "learned_nothing":
            tell(f"nothing was learned: {result.summary['nothing_learned']}", file=sys.stderr)
        if result.status == "interrupted":
            tell(f"interrupted{_hint(result, command_line) if can_resume else ''}", file=sys.stderr)
        checkpoint = RunDir(result.run_dir).latest_checkpoint()
        if result.status == "failed" and can_resume and checkpoint is not None:
            tell(
                f"failed; the last checkpoint is {checkpoint.name}; to go on:\n  {_again(command_line)}",
                file=sys.stderr,
            )
    except OSError:  # the terminal was closed
        mute()


def _places(run_dir: Path, started_in: Path) -> Iterator[str]:
    from astune.viewer import write_report

    here = run_dir.relative_to(started_in) if run_dir.is_relative_to(started_in) else run_dir
    yield f"run     {here}"
    try:
        yield f"report  {here / write_report(run_dir).name}"
    except AstuneError as error:
        yield f"report  not written: {error}. Then: astune report {here}"
    yield f"view    astune view {here} --open"


def _hint(result: RunReport, command_line: str) -> str:
    if result.steps == 0:
        return " before the first step was done; start again without --resume"
    return f" after step {result.steps}; to go on:\n  {_again(command_line)}"


def _again(command_line: str) -> str:
    """The command that goes on with a run."""
    return command_line if "--resume" in command_line else f"{command_line} --resume"

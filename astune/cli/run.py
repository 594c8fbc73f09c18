"""`astune run`, `astune demo` and `astune report`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from astune.cli.endings import DONE, FAILED, INTERRUPTED, LEARNED_NOTHING
from astune.cli.suggesting_parser import add_conf, add_overrides
from astune.errors import AstuneError, ConfigError, PluginError
from astune.support.resources import tutorial_dir
from astune.support.run_log import file_logger
from astune.support.visible import mute, tell

if TYPE_CHECKING:
    from astune.backbone.base import Backbone
    from astune.cli.suggesting_parser import Commands
    from astune.config.load import LoadedConfig
    from astune.config.schema import AstuneConfig
    from astune.types import RunReport

log = file_logger(__name__)

BACKBONES = {
    "debug": "astune.backbone.debug:DebugBackbone",
    "local": "astune.backbone.local:LocalBackbone",
    "trinity": "astune.backbone.trinity.backbone:TrinityBackbone",
    "verl": "astune.backbone.verl.backbone:VerlBackbone",
}
EXIT_CODES = {"completed": DONE, "failed": FAILED, "learned_nothing": LEARNED_NOTHING, "interrupted": INTERRUPTED}
"""By how a run ended."""
DEBUG_OPTIONS = ("tasks", "index", "split", "num_tasks", "num_repeat", "filter", "step", "commands", "with_update")
"""Options of the command line that are keys of `astune.debug`."""
EXAMPLES = """\
  {program} --conf my_agent.yaml
  {program} --conf my_agent.yaml --backbone=debug --task task-12 --repeat 4 --with-update
  {program} --conf my_agent.yaml --backbone=debug --step --model scripted:answers.yaml
  {program} --conf my_agent.yaml --backbone=debug --step --model http://127.0.0.1:8000/v1#Qwen3-8B
  {program} --conf my_agent.yaml --backbone=debug --model replay:runs/p/n --filter "reward<0.5\""""


def add_run(commands: Commands) -> None:
    command = commands.add_parser(
        "run", help="run a configuration (the default: `run` may be left out)", examples=EXAMPLES
    )
    add_conf(command)
    _add_run_options(command)


def add_demo(commands: Commands) -> None:
    _add_run_options(commands.add_parser("demo", help="train the small agent of tutorial/math_agent"))


def add_report(commands: Commands) -> None:
    command = commands.add_parser("report", help="write report.html of a run anew")
    command.set_defaults(execute=_execute_report)
    command.add_argument("run_dir", type=Path, metavar="RUN", help="folder of the run, as runs/project/name")


def _add_run_options(command: argparse.ArgumentParser) -> None:
    command.set_defaults(execute=_execute_run)
    _add_debug_options(command)
    command.add_argument("--resume", action="store_true", help="go on from the newest checkpoint")
    command.add_argument(
        "--allow-changes",
        action="store_true",
        help="with --resume: go on though options are not those that the run began with",
    )
    add_backbone_and_overrides(command)


def add_backbone_and_overrides(command: argparse.ArgumentParser) -> None:
    names = "'debug', 'local', 'trinity', 'verl' or a plug-in"
    command.add_argument("--backbone", help=f"{names}; sets astune.backbone")
    add_overrides(command, "replaces a value, as astune.trainer.total_steps=10")


def _add_debug_options(command: argparse.ArgumentParser) -> None:
    debug = command.add_argument_group("with --backbone=debug")
    debug.add_argument(
        "--model",
        help="what answers: 'human', 'scripted:FILE', 'replay:FILE', 'endpoints', an address of a chat API "
        "(http://...#name), or as with any backbone 'tiny', a folder or a hub id",
    )
    debug.add_argument("--task", action="append", dest="tasks", metavar="ID", help="this task; may be repeated")
    debug.add_argument("--index", type=int, metavar="N", help="number of the first task, from 0")
    debug.add_argument("--split", choices=("training", "validation"), help="where the tasks come from")
    debug.add_argument("--limit", type=int, dest="num_tasks", metavar="N", help="how many tasks")
    debug.add_argument("--repeat", type=int, dest="num_repeat", metavar="N", help="attempts at each: a group")
    debug.add_argument("--filter", metavar="F", help="with --model replay: which episodes, as 'reward<0.5' or 'error'")
    add_step_options(debug)
    debug.add_argument(
        "--with-update", action="store_true", default=None, help="show what one optimizer step would change"
    )


def add_step_options(group: argparse._ActionsContainer) -> None:
    group.add_argument("--step", action="store_true", default=None, help="stop at every call, tool result and verdict")
    group.add_argument("--commands", metavar="FILE", help="commands for the stops, one in a line; implies --step")


def _execute_run(known: argparse.Namespace) -> int:
    conf = known.conf if known.command == "run" else demo_config()
    options = debug_options(known)
    if known.allow_changes:
        options["astune.allow_changes"] = True
    return run(conf, known.overrides, known.backbone, known.resume, options, known.command_line)


def _execute_report(known: argparse.Namespace) -> int:
    return report(known.run_dir)


def debug_options(known: argparse.Namespace) -> dict[str, object]:
    """The values by key for the options of the debugger that were given."""
    given = {f"astune.debug.{name}": getattr(known, name, None) for name in DEBUG_OPTIONS}
    model = getattr(known, "model", None)
    if model is not None:
        debugs = model in ("human", "endpoints") or model.startswith(("scripted:", "replay:", "http://", "https://"))
        given["astune.debug.model" if debugs else "astune.model.path"] = model
    return {key: value for key, value in given.items() if value is not None}


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
    from astune.backbone.base import check_keys, covers, refuse_problems
    from astune.config.load import load_config
    from astune.plugins import load_plugin

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
        unused = f"not used by {chosen.name}: {', '.join(ignored)}"
        tell(unused)
        log.info("%s", unused)
    refuse_problems(chosen, loaded)
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

    tell(f"report  {write_report(run_dir)}")
    return 0


def _tell(result: RunReport, started_in: Path, can_resume: bool, command_line: str) -> None:
    """Writes the report of a run that left a folder, and says where things are, if anybody still listens."""
    from astune.monitor.run_dir import RunDir

    lines = list(_places(result.run_dir, started_in)) if result.run_dir.is_dir() else []
    try:
        for line in lines:
            tell(line)
        sys.stdout.flush()
        if result.status == "learned_nothing":
            why = f"nothing was learned: {result.summary['nothing_learned']}"
            log.warning("%s", why)
            tell(why, file=sys.stderr)
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


def check_input(config: AstuneConfig) -> None:
    """Raises what the run would raise later: for a workflow or a judge that does not load, a file of tasks that is not
    there, a first task that cannot be read."""
    from astune.config.rules.method import rules_of
    from astune.plugins import load_plugin
    from astune.task_judge import BUILTIN_JUDGES
    from astune.task_reader import TaskReaderJsonl
    from astune.task_reader.task_reader_base import SPLITS
    from astune.workflow.workflow_base import as_workflow

    protocol = config.rollout.agentscope_learn_protocol
    if not rules_of(config.algorithm).plays or protocol is None:
        return
    as_workflow(load_plugin(protocol, kind="workflow"))
    for judge in config.task_judge.judges:
        load_plugin(judge.judge, kind="judge", builtin=BUILTIN_JUDGES)
    if config.task_reader.type != "jsonl" or config.backbone == "debug":  # which may play recorded tasks instead
        return
    for split in SPLITS:
        tasks = TaskReaderJsonl(config.task_reader).read(split)
        if config.task_reader.on_bad_record == "error":
            next(iter(tasks), None)

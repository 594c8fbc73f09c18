"""`astune run`, `astune demo` and `astune report`."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path

from astune.cli.endings import DONE, FAILED, INTERRUPTED, LEARNED_NOTHING
from astune.cli.suggesting_parser import Commands, add_conf, add_overrides
from astune.errors import ConfigError
from astune.support.chinese import localize
from astune.support.resources import tutorial_dir
from astune.support.visible import tell

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
    command.set_defaults(execute=report)
    command.add_argument("run_dir", type=Path, metavar="RUN", help="folder of the run, as runs/project/name")


def _add_run_options(command: argparse.ArgumentParser) -> None:
    command.set_defaults(execute=run)
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


def debug_options(known: argparse.Namespace) -> dict[str, object]:
    """The values by key for the options of the debugger that were given."""
    from astune.api.settings import model_key

    given = {f"astune.debug.{name}": getattr(known, name, None) for name in DEBUG_OPTIONS}
    model = getattr(known, "model", None)
    if model is not None:
        given[model_key(model)] = model
    return {key: value for key, value in given.items() if value is not None}


def run(known: argparse.Namespace) -> int:
    """Run as `astune.tune` does."""
    from astune.api.tune import run_loaded
    from astune.config.load import load_config

    conf = known.conf if known.command == "run" else demo_config()
    keys = [] if known.command == "run" else demo_keys()
    options = debug_options(known)
    if known.allow_changes:
        options["astune.allow_changes"] = True
    loaded = load_config(conf, [*keys, *known.overrides], backbone=known.backbone, resume=known.resume, options=options)
    _refuse_debug_options(loaded.config.astune.backbone, options)
    again = known.command_line if "--resume" in known.command_line else f"{known.command_line} --resume"
    return EXIT_CODES[run_loaded(loaded, again, "start again without --resume").status]


def _refuse_debug_options(backbone: str, options: Mapping[str, object]) -> None:
    given = [key.removeprefix("astune.debug.") for key in options if key.startswith("astune.debug.")]
    if backbone != "debug" and given:
        raise ConfigError(
            f"command line: {', '.join(given)}: options of the debugger, but the backbone is {backbone!r}; "
            "add --backbone=debug"
        )


def demo_config() -> Path:
    return tutorial_dir() / "math_agent" / "demo.yaml"


def demo_keys() -> list[str]:
    """The agent for AgentScope 1.x, where that is installed: `demo.yaml` names the one for 2.x."""
    from astune.doctor.checks.packages import version_of

    if not (version_of("agentscope") or "").startswith("1."):
        return []
    agent = demo_config().with_name("workflow_agentscope1.py")
    return [f"astune.rollout.agentscope_learn_protocol={agent}:MathAgent"]


def report(known: argparse.Namespace) -> int:
    from astune.viewer import write_report

    tell(localize(f"report  {write_report(known.run_dir)}"))
    return 0

"""The commands and their options. Imports nothing but argparse until a command is chosen."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

DESCRIPTION = "Tunes AgentScope agents by reinforcement learning."

EXAMPLES = """\
examples:
  {program} --conf my_agent.yaml --backbone=debug     run a few tasks and show everything; nothing is trained
  {program} --conf my_agent.yaml                      train
  {program} --conf my_agent.yaml --resume             go on from the newest checkpoint
  {program} --conf my_agent.yaml astune.trainer.total_steps=10 astune.model.path=Qwen/Qwen3-0.6B
  {program} demo                                      watch a small agent learn, on this machine, in minutes
  {program} config show --conf my_agent.yaml          every value and where it comes from

exit codes:
  0    done
  1    the run failed
  2    bad input: configuration, plug-in, data set, model, or a package that is not installed
  130  interrupted; what was done is saved, and the command to resume is printed
"""


def parse(arguments: Sequence[str], program: str) -> Callable[[], int]:
    """The command to run. Exits with 2 where the arguments make no sense, with 0 after --help and --version."""
    parser = _parser(program)
    if not arguments:
        parser.print_help()
        parser.exit(2)
    first = arguments[0]
    is_run = (first.startswith("-") and first not in ("-h", "--help", "--version")) or "=" in first
    known, rest = parser.parse_known_args(["run", *arguments] if is_run else arguments)
    for extra in rest:
        if extra.startswith("-"):
            parser.error(f"unknown option {extra}")
        if "overrides" not in known:
            parser.error(f"unexpected argument {extra!r}")
    if "overrides" in known:  # argparse leaves those that stand after an option in `rest`
        known.overrides += rest
    return _command(known, f"{program} {shlex.join(arguments)}")


def _command(known: argparse.Namespace, command_line: str) -> Callable[[], int]:
    from astune.cli import config, run

    if known.command == "run":
        return partial(run.run, known.conf, known.overrides, known.backbone, known.resume, command_line)
    if known.command == "demo":
        return partial(run.demo, known.overrides, known.backbone, known.resume, command_line)
    if known.command == "report":
        return partial(run.report, known.run_dir)
    if known.action == "show":
        return partial(config.show, known.conf, known.overrides, known.backbone)
    return config.defaults


def _parser(program: str) -> argparse.ArgumentParser:
    parser = _Parser(
        prog=program,
        description=DESCRIPTION,
        epilog=EXAMPLES.format(program=program),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action=_Version)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    run = commands.add_parser("run", help="run a configuration (the default: `run` may be left out)")
    run.add_argument("--conf", type=Path, required=True, metavar="X.yaml", help="the configuration")
    demo = commands.add_parser("demo", help="train the small agent of tutorial/math_agent")
    config = commands.add_parser("config", help="look at a configuration")
    actions = config.add_subparsers(dest="action", required=True, metavar="ACTION")
    show = actions.add_parser("show", help="every value and where it comes from")
    show.add_argument("--conf", type=Path, required=True, metavar="X.yaml", help="the configuration")
    actions.add_parser("defaults", help="every key, its default and its meaning")
    for command in (run, demo):
        command.add_argument("--resume", action="store_true", help="go on from the newest checkpoint")
    for command in (run, demo, show):
        command.add_argument("--backbone", help="'debug', 'local' or a plug-in; sets astune.backbone")
        command.add_argument(
            "overrides", nargs="*", metavar="key=value", help="replaces a value, as astune.trainer.total_steps=10"
        )
    report = commands.add_parser("report", help="write report.html of a run anew")
    report.add_argument("run_dir", type=Path, metavar="RUN_DIR", help="folder of the run, as runs/project/name")
    return parser


class _Parser(argparse.ArgumentParser):
    def __init__(self, **options: object) -> None:
        super().__init__(allow_abbrev=False, **options)  # type: ignore[arg-type]


class _Version(argparse.Action):
    def __init__(self, option_strings: list[str], dest: str) -> None:
        super().__init__(option_strings, dest, nargs=0, help="show the version and exit")

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from astune import __version__

        print(f"astune {__version__}")
        parser.exit()

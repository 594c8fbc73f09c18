"""From arguments to the command that they name. Each command's module says its options; nothing heavy is imported
until a command is chosen, so that `--help` stays fast."""

from __future__ import annotations

import os
import shlex
import textwrap
from collections.abc import Callable, Sequence
from functools import partial

from astune.cli import config, doctor, env, export, init, prompt, run, tinker_server, tools, view
from astune.cli.chinese import translate
from astune.cli.data import command as data
from astune.cli.endings import MEANINGS
from astune.cli.episodes import command as episodes
from astune.cli.eval import cells
from astune.cli.eval import command as evaluation
from astune.cli.judges import command as judges
from astune.cli.online import command as online
from astune.cli.suggesting_parser import ShowVersion, SuggestingParser, add_log_level
from astune.cli.tasks import command as tasks
from astune.support.chinese import wants_chinese
from astune.support.visible import keep_for_json

DESCRIPTION = "Tunes AgentScope agents by reinforcement learning."

EXAMPLES = """\
  {program} doctor --conf my_agent.yaml               find what would break a long run, before it starts
  {program} --conf my_agent.yaml --backbone=debug     run a task and show everything; nothing is trained
  {program} --conf my_agent.yaml --backbone=debug --step --model human --task task-12
  {program} --conf my_agent.yaml                      train
  {program} --conf my_agent.yaml --resume             go on from the newest checkpoint
  {program} --conf my_agent.yaml astune.trainer.total_steps=10 astune.model.path=Qwen/Qwen3-0.6B
  {program} tasks preview --conf my_agent.yaml        what the reader makes of the data
  {program} demo                                      watch a small agent learn, on this machine, in minutes
  {program} view runs/my_project/my_agent             look at the episodes of a run in the browser
  {program} prompt --conf my_agent.yaml               search for better prompts
  {program} rubrics --conf rubrics.yaml               learn from a few examples what to judge answers by
  {program} data expand --conf my_agent.yaml --target 200   more tasks like yours, each with a checked answer
  {program} config show --conf my_agent.yaml          every value and where it comes from
  {program} config convert --conf my_agent.yaml --backbone=trinity         the same for Trinity's own configuration
"""

COMMANDS = (
    *(run.add_run, run.add_demo, init.add_init, config.add_config, run.add_report, export.add_export, view.add_view),
    *(prompt.add_prompt, evaluation.add_eval, cells.add_compare, doctor.add_doctor),
    *(tasks.add_tasks, tasks.add_check_tasks, data.add_data),
    *(episodes.add_replay, episodes.add_rescore, episodes.add_diff, judges.add_judge_report, judges.add_rubrics),
    *(tinker_server.add_tinker_server, env.add_env, tools.add_tools, online.add_online),
)
"""In the order in which `--help` lists them."""


def make_parser(program: str) -> SuggestingParser:
    codes = (
        textwrap.fill(meaning, 112, initial_indent=f"  {code:<5}", subsequent_indent=" " * 7)
        for code, meaning in MEANINGS.items()
    )
    parser = SuggestingParser(prog=program, description=DESCRIPTION, examples=EXAMPLES)
    parser.add_argument("--version", action=ShowVersion)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND", default="run")
    for add_command in COMMANDS:
        add_command(commands)
    for command in (parser, *commands.choices.values(), *parser.actions()):
        command.show_examples(program)
    parser.epilog = "\n".join([f"{parser.epilog}\nexit codes:", *codes, ""])
    for command in parser.actions():
        add_log_level(command)
    if wants_chinese(os.environ):
        translate(parser)
    return parser


def parse(arguments: Sequence[str], program: str) -> tuple[Callable[[], int], int | None]:
    """The command to run, and the level of --log-level. Exits with 2 where the arguments make no sense, with 0 after
    --help and --version."""
    parser = make_parser(program)
    if not arguments:
        parser.print_help()
        parser.exit(2)
    known, rest = parser.parse_known_args(_with_command(parser, arguments))
    for extra in rest:
        if "overrides" not in known and "files" not in known:
            parser.error(f"unexpected argument {extra!r}")
    if getattr(known, "allow_changes", False) and not known.resume:
        parser.error("--allow-changes: it says what to do with changed options at --resume, which is not given")
    if "overrides" in known:  # argparse leaves those that stand after an option in `rest`
        known.overrides += rest
    elif "files" in known:
        known.files += rest
    if arguments[0] == "doctor" and known.conf is None and (known.overrides or known.backbone):
        parser.commands["doctor"].error("--conf is missing")
    known.command_line = f"{program} {shlex.join(arguments)}"
    execute = partial(known.execute, known)
    return partial(keep_for_json, execute) if getattr(known, "json", False) else execute, known.log_level


def _with_command(parser: SuggestingParser, arguments: Sequence[str]) -> Sequence[str]:
    """`arguments` with the word that may be left out: `run`, `learn` after `rubrics`, `both` after `online`, and
    `list` after `versions`."""
    first = arguments[0]
    if (first.startswith("-") and first not in ("-h", "--help", "--version")) or "=" in first:
        return [str(parser.default_action), *arguments]
    command = parser.commands.get(first)
    if command is None:
        return arguments
    rest = arguments[1:]
    if command.default_action is not None and not {*command.commands, "-h", "--help"} & {*rest[:1]}:
        rest = [command.default_action, *rest]
    return [first, *(_with_command(command, rest) if rest and rest[0] in command.commands else rest)]

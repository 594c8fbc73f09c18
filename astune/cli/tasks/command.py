"""The options of `astune tasks` and `astune check-tasks`."""

from __future__ import annotations

import argparse
from pathlib import Path

from astune.cli.suggesting_parser import Commands, add_conf, add_overrides

TASKS_EXAMPLES = """\
  {program} tasks preview --conf my_agent.yaml
  {program} tasks preview --conf my_agent.yaml --show 9 astune.task_reader.fields.query="{{ask}}\\n{{options:letters}}"
  {program} tasks preview --conf my_agent.yaml --json > tasks.json
  {program} tasks pools runs/my_project/my_run --show 20"""
CHECK_EXAMPLES = """\
  {program} check-tasks --conf my_agent.yaml
  {program} check-tasks --conf my_agent.yaml --split validation astune.task_judge.answer_format=boxed
  {program} check-tasks --conf my_agent.yaml --limit 20 --json > check.json"""


def add_tasks(commands: Commands) -> None:
    command = commands.add_parser("tasks", help="look at the tasks as the reader makes them", examples=TASKS_EXAMPLES)
    actions = command.add_subparsers(dest="action", required=True, metavar="ACTION")
    preview = actions.add_parser(
        "preview",
        help="counts, the first tasks, lengths, and what is wrong with the data",
        description="Exits with 1 if a run would stop at something in the data.",
    )
    preview.set_defaults(execute=_execute_preview)
    add_conf(preview)
    preview.add_argument("--show", type=int, default=3, metavar="N", help="tasks of each split to show; default: 3")
    preview.add_argument("--json", action="store_true", help="print JSON, with all problems")
    add_overrides(preview)

    pools = actions.add_parser(
        "pools",
        help="what a run with astune.trainer.curriculum knows of its tasks",
        description="How many tasks were new, being learned, mastered and hopeless, by step, and which they are now.",
    )
    pools.set_defaults(execute=_execute_pools)
    pools.add_argument("run_dir", type=Path, metavar="RUN", help="folder of the run, as runs/project/name")
    pools.add_argument("--show", type=int, default=5, metavar="N", help="tasks of each pool to name; default: 5")
    pools.add_argument("--json", action="store_true", help="print JSON, with all tasks")


def _execute_pools(known: argparse.Namespace) -> int:
    from astune.cli.tasks.pools import show_pools

    return show_pools(known.run_dir, known.show, known.json)


def _execute_preview(known: argparse.Namespace) -> int:
    from astune.cli.tasks.preview import preview

    return preview(known.conf, known.overrides, known.show, known.json)


def add_check_tasks(commands: Commands) -> None:
    command = commands.add_parser(
        "check-tasks",
        help="prove that the judge knows right from wrong, by task",
        description="For every task, without a model: the reference answer must count as right; an empty answer, "
        '"I don\'t know", the question repeated and all options at once must not. Exits with 1 if that fails.',
        examples=CHECK_EXAMPLES,
    )
    command.set_defaults(execute=_execute_check)
    add_conf(command)
    command.add_argument(
        "--split", choices=("training", "validation", "all"), default="all", help="which tasks; default: all"
    )
    command.add_argument("--limit", type=int, metavar="N", help="the first N of each split; default: every task")
    command.add_argument("--json", action="store_true", help="print JSON, with all that failed")
    add_overrides(command)


def _execute_check(known: argparse.Namespace) -> int:
    from astune.cli.tasks.check_tasks import check_tasks

    return check_tasks(known.conf, known.overrides, known.split, known.limit, known.json)

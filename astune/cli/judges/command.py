"""The options of `astune judge-report` and `astune rubrics`."""

from __future__ import annotations

import argparse
from pathlib import Path

from astune.cli.suggesting_parser import Commands, add_conf, add_overrides

REPORT_EXAMPLES = """\
  {program} judge-report --conf my_agent.yaml --examples labelled.jsonl
  {program} judge-report --conf my_agent.yaml --examples labelled.jsonl --judge MathAnswerAsJudge --judge mine.py:judge
  {program} judge-report --conf my_agent.yaml --examples graded.jsonl --pass-label 4 --out judges.html

one of the examples: {{"question": "6 * 12?", "answer": "72", "response": "Surely #### 72", "label": true}}"""
RUBRICS_EXAMPLES = """\
  {program} rubrics --conf rubrics.yaml                    learn: from 5 to 100 examples to a rubric in a file
  {program} rubrics --conf rubrics.yaml --keep-edited astune.rubrics.rounds=5
  {program} rubrics show learned.yaml
  {program} rubrics check learned.yaml --conf rubrics.yaml --examples new.jsonl
  {program} rubrics diff learned.yaml other.yaml"""


def add_judge_report(commands: Commands) -> None:
    command = commands.add_parser(
        "judge-report", help="how well judges agree with answers you have labelled", examples=REPORT_EXAMPLES
    )
    command.set_defaults(execute=_execute_report)
    add_conf(command)
    command.add_argument(
        "--examples", type=Path, required=True, metavar="FILE", help="JSON Lines: a task, `response` and `label` each"
    )
    command.add_argument(
        "--judge",
        action="append",
        dest="judges",
        default=[],
        metavar="J",
        help="as astune.task_judge.judge_protocol names it; may be repeated; default: the configured one",
    )
    command.add_argument("--response-field", default="response", metavar="KEY", help="of the answer to judge")
    command.add_argument("--label-field", metavar="KEY", help="of the label; default: label or is_correct")
    command.add_argument(
        "--pass-label", type=float, metavar="X", help="label from which an answer is right; default: the middle"
    )
    command.add_argument(
        "--pass-reward",
        type=float,
        default=0.5,
        metavar="X",
        help="reward from which an answer passes, where the verdict does not say whether it does; default: 0.5",
    )
    command.add_argument("--out", type=Path, metavar="FILE", help="write the report as a page, too")
    command.add_argument("--json", action="store_true", help="print JSON, with all disagreements")
    add_overrides(command)


def _execute_report(known: argparse.Namespace) -> int:
    from astune.cli.judges.report import judge_report

    return judge_report(known)


def add_rubrics(commands: Commands) -> None:
    command = commands.add_parser(
        "rubrics", help="learn from a few examples what to judge answers by", examples=RUBRICS_EXAMPLES
    )
    command.set_defaults(execute=_execute_rubrics)
    actions = command.add_subparsers(dest="action", required=True, metavar="ACTION", default="learn")
    learn = actions.add_parser("learn", help="learn a rubric (the default: `learn` may be left out)")
    add_conf(learn, "with astune.rubrics and the models")
    learn.add_argument(
        "--keep-edited", action="store_true", help="keep what was edited by hand in the file that is overwritten"
    )
    show = actions.add_parser("show", help="criteria, test report and origin of a rubric")
    check = actions.add_parser("check", help="whether a rubric is valid, what was edited, how it judges examples")
    check.add_argument("--conf", type=Path, metavar="X.yaml", help="judge examples with the models that it names")
    check.add_argument("--examples", type=Path, metavar="FILE", help="default: astune.rubrics.examples")
    for action in (show, check):
        action.add_argument("file", type=Path, metavar="RUBRIC")
    diff = actions.add_parser("diff", help="what differs between two rubrics")
    diff.add_argument("first", type=Path, metavar="A")
    diff.add_argument("second", type=Path, metavar="B")
    for action in (learn, check):
        add_overrides(action, "replaces a value, as astune.seed=1")


def _execute_rubrics(known: argparse.Namespace) -> int:
    from astune.cli.judges import rubrics

    if known.action == "learn":
        return rubrics.learn(known.conf, known.overrides, known.keep_edited)
    if known.action == "show":
        return rubrics.show(known.file)
    if known.action == "check":
        return rubrics.check(known.file, known.conf, known.examples, known.overrides)
    return rubrics.diff(known.first, known.second)

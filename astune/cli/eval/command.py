"""The options of `astune eval`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from astune.cli.suggesting_parser import add_overrides

if TYPE_CHECKING:
    from astune.cli.suggesting_parser import Commands

EXAMPLES = """\
  {program} eval --conf my_agent.yaml --checkpoint runs/p/n              the newest checkpoint of a run
  {program} eval --conf my_agent.yaml --checkpoint runs/p/n@best --limit 200 astune.evaluation.attempts=8
  {program} eval --conf my_agent.yaml --checkpoint none runs/p/n@40      the model before training, and after step 40
  {program} eval --conf my_agent.yaml --checkpoint none runs/p/n@5 runs/p/n@10 --figures judge/correct_tool judge/recall
  {program} eval --conf my_agent.yaml --checkpoint Qwen/Qwen3-0.6B models/mine
  {program} eval --compare runs/p/n-eval/base runs/p/n-eval/n_step_000040

Stopped with Ctrl-C it has lost nothing: the same command goes on."""


def add_eval(commands: Commands) -> None:
    command = commands.add_parser(
        "eval",
        help="play the held-out tasks with a checkpoint, or compare two",
        description="Plays the held-out tasks of a configuration, astune.evaluation.sets too, and tells each figure "
        "with its interval and its number of tasks. Exits with 1 if nothing could be judged.",
        examples=EXAMPLES,
    )
    command.set_defaults(execute=_execute)
    command.add_argument("--conf", type=Path, metavar="X.yaml", help="the configuration, with --checkpoint")
    chosen = command.add_mutually_exclusive_group(required=True)
    chosen.add_argument(
        "--checkpoint",
        nargs="+",
        dest="checkpoints",
        metavar="C",
        help="one, or more to compare with the first: a run, RUN@best, RUN@STEP, a checkpoint's folder, a model's "
        "folder or hub id, none: the model of the configuration, one of astune.rollout.auxiliary_models, or an API, "
        "ADDRESS#NAME or ADDRESS#NAME@VARIABLE, where that environment variable has its key",
    )
    chosen.add_argument(
        "--compare", nargs=2, type=Path, metavar=("A", "B"), help="folders that earlier evaluations were written into"
    )
    command.add_argument("--limit", type=int, metavar="N", help="the first N tasks of each set; default: every task")
    command.add_argument("--out", type=Path, metavar="FOLDER", help="default: beside the runs, as runs/p/n-eval/base")
    command.add_argument("--backbone", help="local, or verl: on its servers; sets astune.backbone")
    command.add_argument("--engine", metavar="E", help="one of your own in the place of both, 'my_engine.py:load'")
    command.add_argument("--figures", nargs="+", default=(), metavar="F", help="these alone, as success judge/recall")
    command.add_argument("--judge-pairs", action="store_true", help="the judge compares their attempts: win rates")
    command.add_argument("--json", action="store_true", help="print JSON")
    add_overrides(command)


def _execute(known: argparse.Namespace) -> int:
    from astune.cli.eval.evaluate import Shown, compare_folders, evaluate

    figures = [text for text in known.figures if "=" not in text]
    overrides = [*(text for text in known.figures if "=" in text), *known.overrides]
    shown = Shown(figures, known.judge_pairs, known.json)
    if known.compare is not None:
        unused = [name for name in ("conf", "backbone", "engine", "limit", "out") if getattr(known, name) is not None]
        return compare_folders(known.compare, shown, [*unused, *overrides])
    checkpoints = [text for text in known.checkpoints if "=" not in text]
    overrides = [*(text for text in known.checkpoints if "=" in text), *overrides]
    place = (known.backbone, known.engine)
    return evaluate(known.conf, overrides, checkpoints, *place, known.limit, known.out, shown)

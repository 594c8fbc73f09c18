"""The options of `astune eval`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from astune.cli.suggesting_parser import Commands, add_overrides, add_player
from astune.errors import ConfigError

UNUSED = ("conf", "backbone", "engine", "limit", "out", "pick", "stop-early")
"""Options that `--compare` has no use for."""
EXAMPLES = """\
  {program} eval --conf my_agent.yaml --checkpoint runs/p/n              the newest checkpoint of a run
  {program} eval --conf my_agent.yaml --checkpoint runs/p/n@best --limit 200 astune.evaluation.attempts=8
  {program} eval --conf my_agent.yaml --checkpoint none runs/p/n@40      the model before training, and after step 40
  {program} eval --conf my_agent.yaml --checkpoint none runs/p/n@5 runs/p/n@10 --figures judge/correct_tool judge/recall
  {program} eval --conf my_agent.yaml --checkpoint Qwen/Qwen3-0.6B models/mine
  {program} eval --conf my_agent.yaml --models small large runs/p/n    which one?
  {program} eval --conf my_agent.yaml --models small large --pick "cheapest within 3 points" --stop-early 0
  {program} eval --conf game.yaml --league none runs/p/n@40 runs/p/n@80    versions of two models against each other
  {program} eval --compare runs/p/n-eval/base runs/p/n-eval/n_step_000040

Stopped with Ctrl-C it has lost nothing: the same command goes on."""


def add_eval(commands: Commands) -> None:
    command = commands.add_parser(
        "eval",
        help="play the held-out tasks with a checkpoint, or compare two",
        description="Plays the held-out tasks of a configuration, astune.evaluation.sets too, and tells each figure "
        "with its interval and its number of tasks. Exits with 1 if nothing could be judged, with 3 if a model was to "
        "be picked and none solved a task.",
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
        "--models", nargs="+", metavar="M", help="two or more to choose from, named as with --checkpoint"
    )
    chosen.add_argument(
        "--compare", nargs=2, type=Path, metavar=("A", "B"), help="folders that earlier evaluations were written into"
    )
    chosen.add_argument(
        "--league",
        nargs="+",
        metavar="C",
        help="two or more checkpoints of a run with two models: each version of one plays against each of the other",
    )
    command.add_argument(
        "--pick",
        metavar="RULE",
        help="with --models: 'best', the default, 'cheapest within D points' or 'fastest within D points'",
    )
    command.add_argument(
        "--stop-early",
        type=float,
        metavar="E",
        help="with --models: leave out those that cannot win, with at most this chance that the best is among them; "
        "0: all play all tasks; default: 0.05",
    )
    command.add_argument("--limit", type=int, metavar="N", help="the first N tasks of each set; default: every task")
    command.add_argument("--out", type=Path, metavar="FOLDER", help="default: beside the runs, as runs/p/n-eval/base")
    add_player(command)
    command.add_argument("--figures", nargs="+", default=(), metavar="F", help="these alone, as success judge/recall")
    command.add_argument("--judge-pairs", action="store_true", help="the judge compares their attempts: win rates")
    command.add_argument("--json", action="store_true", help="print JSON")
    add_overrides(command)


def _execute(known: argparse.Namespace) -> int:
    from astune.api.evaluate import Playing
    from astune.cli.eval.evaluate import Shown, compare_folders, evaluate, play_league

    figures, overrides = part_overrides(known.figures, known.overrides)
    shown = Shown(figures, known.judge_pairs, known.json)
    if known.compare is not None:
        unused = [name for name in UNUSED if getattr(known, name.replace("-", "_")) is not None]
        return compare_folders(known.compare, shown, [*unused, *overrides])
    models, overrides = part_overrides(known.checkpoints or known.models or known.league, overrides)
    playing = Playing(known.limit, known.out, known.backbone, known.engine)
    if known.league is not None:
        unused = [
            name for name in ("pick", "stop-early", "figures", "judge-pairs") if getattr(known, name.replace("-", "_"))
        ]
        return play_league(known.conf, overrides, models, playing, unused, as_json=known.json)
    if known.models is not None:
        shown = shown._replace(pick="best" if known.pick is None else known.pick)
    elif wrong := [name for name in ("pick", "stop-early") if getattr(known, name.replace("-", "_")) is not None]:
        raise ConfigError(f"--{wrong[0]}: it is for --models; take it out, or name the checkpoints there")
    early = 0.05 if known.stop_early is None else known.stop_early
    return evaluate(known.conf, overrides, models, playing, shown, early)


def part_overrides(texts: Sequence[str], overrides: Sequence[str]) -> tuple[list[str], list[str]]:
    """Part keys of the configuration from names, behind which they stand on the line."""
    names = [text for text in texts if "=" not in text]
    return names, [*(text for text in texts if "=" in text), *overrides]

"""The options of `astune replay`, `astune rescore` and `astune diff`."""

from __future__ import annotations

import argparse
from pathlib import Path

from astune.cli.run import add_step_options, debug_options
from astune.cli.suggesting_parser import Commands

REPLAY_EXAMPLES = """\
  {program} replay runs/p/n-debug                          all recorded episodes of a run
  {program} replay runs/p/n-debug/episodes/debug.jsonl#0 --step
  {program} replay runs/p/n/episodes/train.jsonl#17        one of a training run"""
RESCORE_EXAMPLES = """\
  {program} rescore runs/p/n --judge my_judge.py:judge --filter "phase=train and step>=10"
  {program} rescore runs/p/n --judge MathAnswerAsJudge astune.task_judge.answer_format=boxed --out new.jsonl"""
DIFF_EXAMPLES = """\
  {program} diff runs/p/a-debug/episodes/debug.jsonl#0 runs/p/b-debug/episodes/debug.jsonl#0
  {program} diff runs/p/n/episodes/train.jsonl#3 runs/p/n/episodes/train.jsonl#4"""


def add_replay(commands: Commands) -> None:
    command = commands.add_parser(
        "replay",
        help="run recorded episodes again, with the recorded answers of the model",
        examples=REPLAY_EXAMPLES,
    )
    command.set_defaults(execute=_execute_replay)
    _add_episodes(command)
    add_step_options(command)


def add_rescore(commands: Commands) -> None:
    command = commands.add_parser(
        "rescore", help="judge recorded episodes with another judge, without running them", examples=RESCORE_EXAMPLES
    )
    command.set_defaults(execute=_execute_rescore)
    _add_episodes(command)
    command.add_argument("--judge", required=True, metavar="J", help="as astune.task_judge.judge_protocol names it")
    command.add_argument("--out", type=Path, metavar="FILE", help="write the episodes with their new verdicts")


def add_diff(commands: Commands) -> None:
    command = commands.add_parser(
        "diff", help="the first point where two recorded episodes part", examples=DIFF_EXAMPLES
    )
    command.set_defaults(execute=_execute_diff)
    command.add_argument("first", type=Path, metavar="A")
    command.add_argument("second", type=Path, metavar="B")


def _add_episodes(command: argparse.ArgumentParser) -> None:
    command.add_argument("files", nargs="+", metavar="FILE", help="recorded episodes, or a run's folder; key=value")
    command.add_argument("--conf", type=Path, metavar="X.yaml", help="default: the configuration in the recording")
    command.add_argument("--filter", metavar="F", help="which episodes, as 'reward<0.5' or 'error=judge'")


def _execute_replay(known: argparse.Namespace) -> int:
    from astune.cli.episodes.replay import replay

    files, overrides = _split(known.files)
    return replay(files, known.conf, overrides, debug_options(known))


def _execute_rescore(known: argparse.Namespace) -> int:
    from astune.cli.episodes.replay import rescore

    files, overrides = _split(known.files)
    return rescore(files, known.judge, known.conf, overrides, known.filter, known.out)


def _execute_diff(known: argparse.Namespace) -> int:
    from astune.cli.episodes.replay import diff

    return diff(known.first, known.second)


def _split(words: list[str]) -> tuple[list[Path], list[str]]:
    """Files, and values of the configuration."""
    return [Path(word) for word in words if "=" not in word], [word for word in words if "=" in word]

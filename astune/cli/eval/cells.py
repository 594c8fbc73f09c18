"""`astune compare`: is it the prompt or the weights? Both, each and neither, on the same held-out tasks."""

from __future__ import annotations

import argparse
from pathlib import Path

from astune.cli.eval.command import part_overrides
from astune.cli.suggesting_parser import Commands, add_conf, add_overrides, add_player
from astune.support.visible import tell, tell_json

EXAMPLES = """\
  {program} compare --conf my_agent.yaml --prompts runs/p/n-prompts --checkpoint runs/p/n
  {program} compare --conf my_agent.yaml --checkpoint runs/p/n@best --json      with astune.prompts.from of the file

Stopped with Ctrl-C it has lost nothing: the same command goes on."""


def add_compare(commands: Commands) -> None:
    command = commands.add_parser(
        "compare",
        help="is it the prompt or the weights? the four cells on held-out tasks",
        description="Plays the held-out tasks with the first prompt and the tuned one, each with the first weights and "
        "the trained ones, and tells what each adds, with intervals. Exits with 1 if nothing could be judged.",
        examples=EXAMPLES,
    )
    command.set_defaults(execute=_execute)
    add_conf(command)
    command.add_argument(
        "--prompts", metavar="RUN", help="the search, or its prompts.yaml; default: astune.prompts.from"
    )
    command.add_argument(
        "--checkpoint",
        metavar="C",
        help="as of `astune eval`; default: the newest of the configuration's run",
    )
    command.add_argument("--limit", type=int, metavar="N", help="the first N tasks of each set; default: every task")
    command.add_argument("--out", type=Path, metavar="FOLDER", help="default: beside the runs, as runs/p/n-compare")
    add_player(command)
    command.add_argument("--figures", nargs="+", default=(), metavar="F", help="default: success, else reward")
    command.add_argument("--json", action="store_true", help="print JSON")
    add_overrides(command)


def _execute(known: argparse.Namespace) -> int:
    from astune.api.compare import compare_loaded
    from astune.api.evaluate import Playing
    from astune.cli.endings import DONE, FAILED, INTERRUPTED
    from astune.config.load import load_config
    from astune.support.terminal import Console

    figures, overrides = part_overrides(known.figures, known.overrides)
    loaded = load_config(known.conf, overrides, backbone=known.backbone)
    try:
        playing = Playing(known.limit, known.out, known.backbone, known.engine)
        found = compare_loaded(loaded, known.prompts, known.checkpoint, figures, playing)
    except KeyboardInterrupt:
        tell("interrupted; every episode that ended is kept, and the same command goes on")
        return INTERRUPTED
    if known.json:
        tell_json(found.to_json())
    else:
        found.print(Console())
        tell(f"folder  {found.folder}")
        for chart in found.charts:
            tell(f"chart   {chart}")
    return DONE if found.crossed else FAILED

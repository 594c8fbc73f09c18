"""`astune prompt`: search for better texts of an agent."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from astune.cli.endings import DONE, INTERRUPTED, LEARNED_NOTHING
from astune.cli.suggesting_parser import Commands, add_conf, add_overrides, add_player
from astune.support.visible import tell, tell_json

if TYPE_CHECKING:
    from astune.clients.usage import Usage
    from astune.prompts.result import PromptSearch

EXAMPLES = """\
  {program} prompt --conf my_agent.yaml
  {program} prompt --conf my_agent.yaml --resume                        go on where it was stopped
  {program} prompt --conf my_agent.yaml --checkpoint runs/p/n@best      for the weights that a run has trained
  {program} prompt --conf my_agent.yaml astune.prompts.tune="[system,'tool:search']" astune.prompts.max_cost=5

What it finds is used with astune.prompts.from: runs/p/n-prompts, or by astune.load_prompts("prompts.yaml")."""


def add_prompt(commands: Commands) -> None:
    command = commands.add_parser(
        "prompt",
        help="search for better prompts, and test them on tasks that the search never saw",
        description="Searches for better texts of an agent (astune.prompts) and tests the best on held-out tasks. "
        "Exits with 3 if the test shows no gain.",
        examples=EXAMPLES,
    )
    command.set_defaults(execute=_execute)
    add_conf(command)
    command.add_argument("--resume", action="store_true", help="go on with the newest search of that name")
    command.add_argument(
        "--checkpoint", default="none", metavar="C", help="the weights that play, as for `eval`; default: the model"
    )
    add_player(command)
    command.add_argument("--json", action="store_true", help="print JSON")
    add_overrides(command)


def _execute(known: argparse.Namespace) -> int:
    """3 if the test shows no gain."""
    from astune.api.search_prompts import search_loaded
    from astune.config.load import load_config

    loaded = load_config(known.conf, known.overrides, backbone=known.backbone, resume=known.resume)
    try:
        found = search_loaded(loaded, known.checkpoint, known.backbone, known.engine)
    except KeyboardInterrupt:
        tell("interrupted; every episode and reply so far is kept, and --resume goes on")
        return INTERRUPTED
    if known.json:
        tell_json({"folder": str(found.folder), **found.to_json(), "prompts": dict(found.prompts)})
    else:
        show(found)
    return DONE if found.gained else LEARNED_NOTHING


def show(found: PromptSearch) -> None:
    """Print what came of it: the test, the costs, and the texts to use."""
    from astune.api.eval_tables import ComparedCheckpoints, caption, comparison_tables
    from astune.support.terminal import Console

    console = Console()
    if found.compared:
        compared = ComparedCheckpoints("c0", found.candidate, found.compared, ())
        for table in comparison_tables(compared):
            console.print(table)
        console.print(caption([compared]))
    for line in summary(found):
        tell(line)
    for name, text in found.prompts.items() if found.gained else ():
        tell(f"\n--- {name} ---\n{text}")
    tell(f"\nfolder  {found.folder}\nprompts {found.folder / 'prompts.yaml'}")


def summary(found: PromptSearch) -> list[str]:
    """The search in a few lines."""
    asked, played = found.reflecting, found.searching
    lines = [
        f"ended: {found.ended}",
        f"{found.candidates} candidates in {found.episodes} episodes: {played.calls:,} calls, "
        f"{played.prompt_tokens + played.completion_tokens:,} tokens; {asked.calls:,} calls to reflect, "
        f"{asked.prompt_tokens + asked.completion_tokens:,} tokens; {_money(asked + played)}",
    ]
    if found.dropped or found.junk:
        lines.append(f"{found.dropped} texts were dropped (candidates.jsonl says why), {found.junk} replies were junk")
    for name, spent in found.tested.items():
        lines.append(
            f"test of {name}: {spent.calls:,} calls, {spent.prompt_tokens:,} + {spent.completion_tokens:,} tokens, "
            f"{_money(spent)}"
        )
    if found.reward is None:
        lines.append("nothing gained: no candidate was better than the first texts on the tasks of the search")
    elif not found.gained:
        lines.append(f"nothing gained: on held-out tasks {found.candidate} is no better than the first texts")
    return lines


def _money(usage: Usage) -> str:
    return "cost unknown" if usage.cost is None else f"cost {usage.cost:.4g}"

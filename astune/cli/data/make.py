"""Make tasks as the options of `astune data` say, and show what came of it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from astune.api.rubric import show_stages
from astune.cli.endings import DONE, FAILED, INTERRUPTED
from astune.config.load import load_config
from astune.data.made import REASONS, Harvest
from astune.data.run import prepare_job
from astune.support.terminal import Console, Text, make_table
from astune.support.visible import tell


def make(known: argparse.Namespace) -> int:
    """1 if fewer tasks came than wanted."""
    options: dict[str, object] = {}
    if known.target is not None:
        options["astune.task_reader.augment.target"] = known.target
    if known.action == "from-documents":
        options["astune.task_reader.augment.from"] = str(known.documents)
    elif known.seeds is not None:
        options |= {"astune.task_reader.type": "jsonl", "astune.task_reader.jsonl.training.file_path": str(known.seeds)}
    loaded = load_config(known.conf, known.overrides, options=options, for_run=False)
    with show_stages() as stages:
        job = prepare_job(loaded, loaded.config.astune.task_reader.augment, known.out, stages, known.held_out)
        if known.dry_run:
            tell(job.plan())
            return DONE
        try:
            harvests = job.run()
        except KeyboardInterrupt:
            tell(f"interrupted; {known.out} has what was made so far, and the same command goes on", file=sys.stderr)
            return INTERRUPTED
    show_harvests(harvests, Console())
    return DONE if all(harvest.complete for harvest in harvests) else FAILED


def show_harvests(harvests: Sequence[Harvest], console: Console) -> None:
    """Print what was kept and dropped, why, and at what cost."""
    for harvest in harvests:
        console.print(Text(str(harvest.out)), soft_wrap=True)
        table = make_table("tasks", "", left=("",))
        table.add_row(str(len(harvest.kept)), "kept")
        for reason, count in harvest.reasons.items():
            table.add_row(str(count), Text(f"{reason}: {REASONS[reason]}"))
        console.print(table)
        if not harvest.complete:
            console.print(Text(f"{len(harvest.kept)} of {harvest.target}: {harvest.ended}"), style="yellow")
    if quality := harvests[0].quality:
        console.print(Text(quality))
    for what, paid in (("of the replies used", harvests[-1].paid), ("this time", harvests[-1].now)):
        cost = "cost unknown" if paid.cost is None else f"cost {paid.cost:.4g}"
        console.print(f"{what}: {paid.calls:,} calls, {paid.prompt_tokens:,}+{paid.completion_tokens:,} tokens, {cost}")
    for harvest in harvests:
        console.print(Text(f"what was dropped: {harvest.out.with_suffix('.dropped.jsonl')}"), soft_wrap=True)

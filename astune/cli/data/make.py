"""Make tasks, and data of traces, as the options of `astune data` say, and show what came of it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from astune.api.rubric import show_stages
from astune.cli.endings import DONE, FAILED, INTERRUPTED
from astune.config.load import load_config
from astune.data.made import REASONS, Harvest
from astune.data.run import prepare_job
from astune.errors import ConfigError
from astune.support.terminal import Console, Text, make_table
from astune.support.visible import tell
from astune.traces.convert import TraceHarvest
from astune.traces.record import ReadingRules
from astune.traces.run import TraceJob, make_from_traces


def make(known: argparse.Namespace) -> int:
    """1 if fewer tasks came than wanted."""
    options: dict[str, object] = {}
    if known.target is not None:
        options["astune.task_reader.augment.target"] = known.target
    if known.action == "from-documents":
        options["astune.task_reader.augment.from"] = str(known.documents)
    elif known.seeds is not None:
        options |= {"astune.task_reader.type": "jsonl", "astune.task_reader.jsonl.training.file_path": str(known.seeds)}
    held_out = _take_held_out(known, options)
    loaded = load_config(known.conf, known.overrides, options=options, for_run=False)
    with show_stages() as stages:
        job = prepare_job(loaded, loaded.config.astune.task_reader.augment, known.out, stages, held_out)
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


def _take_held_out(known: argparse.Namespace, options: dict[str, object]) -> Path | None:
    """The first file of `--held-out`. Further ones become sets of the evaluation, to which nothing may be close."""
    files: list[Path] = [*dict.fromkeys(known.held_out)]
    for number, file in enumerate(files[1:], start=2):
        options[f"astune.evaluation.sets.held_out_{number}.file_path"] = str(file)
    return files[0] if files else None


def show_harvests(harvests: Sequence[Harvest], console: Console) -> None:
    """Print what was kept and dropped, why, and at what cost."""
    for harvest in harvests:
        show_kept(harvest, console)
        if not harvest.complete:
            console.print(Text(f"{len(harvest.kept)} of {harvest.target}: {harvest.ended}"), style="yellow")
    if quality := harvests[0].quality:
        console.print(Text(quality))
    for what, paid in (("of the replies used", harvests[-1].paid), ("this time", harvests[-1].now)):
        cost = "cost unknown" if paid.cost is None else f"cost {paid.cost:.4g}"
        console.print(f"{what}: {paid.calls:,} calls, {paid.prompt_tokens:,}+{paid.completion_tokens:,} tokens, {cost}")
    for harvest in harvests:
        console.print(Text(f"what was dropped: {harvest.out.with_suffix('.dropped.jsonl')}"), soft_wrap=True)


def show_kept(harvest: Harvest, console: Console) -> None:
    """Print how many tasks were kept, and how many dropped for which reason."""
    console.print(Text(str(harvest.out)), soft_wrap=True)
    table = make_table("tasks", "", left=("",))
    table.add_row(str(len(harvest.kept)), "kept")
    for reason, count in harvest.reasons.items():
        table.add_row(str(count), Text(f"{reason}: {REASONS[reason]}"))
    console.print(table)


def make_of_traces(known: argparse.Namespace) -> int:
    rules = ReadingRules(_scale(known.ratings), known.consent, frozenset(known.evaluation))
    options: dict[str, object] = {}
    held_out = _take_held_out(known, options)
    loaded = load_config(known.conf, known.overrides, options=options, for_run=False)
    job = TraceJob(known.source, known.out, rules, held_out, known.unrated, known.dry_run)
    harvest, follow = make_from_traces(job, loaded.config.astune), loaded.config.astune.online.feedback.follow
    if not known.dry_run:
        harvest.save()
    _show_traces(harvest, written=not known.dry_run)
    if known.dry_run and follow.judge not in (None, "rules"):
        calls = harvest.followed * (follow.llm.votes if follow.judge == "model" else 1)
        tell(f"judged by rules; {follow.judge}, which a run asks, takes up to {calls} model calls")
    return DONE


def _scale(text: str | None) -> tuple[float, float] | None:
    if text is None:
        return None
    try:
        low, high = map(float, text.split(":"))
    except ValueError:
        low = high = 0.0
    if not low < high:
        raise ConfigError(f"--ratings {text}: expected the lowest and the highest rating, as 1:10")
    return low, high


def _show_traces(harvest: TraceHarvest, *, written: bool) -> None:
    show_kept(harvest, Console())
    report = harvest.report()
    beside = ", ".join(f"{report[name]} {name}" for name in ("pairs", "examples", "rewards"))
    tell(f"{report['with_reference']} of the tasks have a reference; {beside}; from {harvest.exchanges} exchanges")
    masked = ", ".join(f"{count} {kind}" for kind, count in report["masked"].items()) or "nothing found"
    tell(f"masked: {masked}. Not looked for: {report['not_masked']}")
    if written:
        tell(f"what was dropped: {harvest.out.with_suffix('.dropped.jsonl')}")

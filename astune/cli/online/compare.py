"""`astune online compare`: what a test of two versions on users says, or how long one would take."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict
from typing import TYPE_CHECKING

from astune.cli.online.stored import add_store, config_of, feedback_rules, open_store
from astune.cli.suggesting_parser import Commands
from astune.errors import ConfigError
from astune.support.visible import tell_json

if TYPE_CHECKING:
    from rich.table import Table

    from astune.online.release.figures import Guardrail, ReleaseFigures
    from astune.online.release.plan import ReleasePlan


def add_actions(actions: Commands) -> None:
    """The word `compare` of `astune online`."""
    compare = actions.add_parser("compare", help="what a test of two versions on users says, and how long one takes")
    compare.set_defaults(execute=_compare)
    compare.add_argument("first", metavar="v7", help="a version or an alias")
    compare.add_argument("second", metavar="v9", help="the other")
    compare.add_argument("--plan", action="store_true", help="how many users and days a test of the two would take")
    compare.add_argument("--share", type=float, metavar="0.05", help="with --plan: of the second, not of the stages")
    compare.add_argument("--json", action="store_true", help="everything, as one JSON object")
    add_store(compare)


def _compare(known: argparse.Namespace) -> int:
    """Raises StoreError for versions that are not there or were never tested against each other."""
    if known.share is not None and (not known.plan or not 0.0 < known.share < 1.0):
        raise ConfigError(f"--share {known.share:g}: expected a number between 0 and 1, with --plan")
    with closing(open_store(known)) as database:
        from astune.config.online import ReleaseConfig
        from astune.online.release.figures import figures_of, load_release
        from astune.online.release.plan import ReleasePlan, plan_release
        from astune.online.store.aliases import resolve

        config = config_of(known)
        said = feedback_rules(config)
        found: ReleaseFigures | ReleasePlan
        with database.reading() as connection:
            first, second = (resolve(connection, text).number for text in (known.first, known.second))
            if known.plan:
                rules = ReleaseConfig() if config is None else config.astune.online.release
                shares = None if known.share is None else (known.share,)
                found = plan_release(connection, rules, said, time.time(), shares)
            else:
                found = figures_of(connection, load_release(connection, first, second).id, said)
    if known.json:
        tell_json(asdict(found))
        return 0
    from astune.support.terminal import Console, Text

    console = Console(soft_wrap=True)
    for line in plan_lines(found) if isinstance(found, ReleasePlan) else figure_lines(found):
        console.print(Text(line) if isinstance(line, str) else line)
    return 0


def figure_lines(found: ReleaseFigures) -> Iterator[str | Table]:
    """The figures of a test as tables and lines."""
    from astune.support.terminal import make_table

    yield (
        f"v{found.champion} champion, v{found.challenger} challenger: {found.state}, stage {found.stage + 1}; "
        f"{found.units[0]} and {found.units[1]} users"
    )
    metrics = make_table(
        "metric", f"v{found.champion}", f"v{found.challenger}", "difference", "at every look", "p", "users",
        left=("metric", "at every look"),
    )  # fmt: skip
    for each in found.metrics:
        name = each.name if each.primary else f"{each.name} (secondary)"
        it = each.found
        if it is None or each.p is None:
            metrics.add_row(name, "-", "-", "-", "too little to know", "-", "-")
        else:
            interval = f"{it.low:+.3f} to {it.high:+.3f}"
            users = f"{it.units[0]}, {it.units[1]}"
            cells = (f"{it.champion:.3f}", f"{it.challenger:.3f}", f"{it.difference:+.3f}", interval)
            metrics.add_row(name, *cells, f"{each.p:.2g}", users)
    yield metrics
    if found.guardrails:
        guards = make_table(
            "guardrail", f"v{found.champion}", f"v{found.challenger}", "margin", "", left=("guardrail", "")
        )
        for guard in found.guardrails:
            rates = ("-" if each is None else f"{each:.4g}" for each in (guard.champion, guard.challenger))
            guards.add_row(guard.name, *rates, f"{guard.margin:g}", _say(guard))
        yield guards
    yield from (f"alarm: {each}" for each in found.alarms)
    yield from (f"note: {each}" for each in found.notes)


def _say(guard: Guardrail) -> str:
    if guard.breached:
        return "BREACHED"
    return "holds" if guard.is_known else "too little to know"


def plan_lines(found: ReleasePlan) -> Iterator[str | Table]:
    """A plan as a table."""
    from astune.support.terminal import make_table

    yield (
        f"{found.units} users gave {found.metric!r} in {found.days} days, {found.mean:.3f} in the mean; the standard "
        f"deviation of one user's mean is {found.spread**0.5:.3f}"
    )
    yield f"to tell a difference of {found.effect:g} in four tests of five takes"
    table = make_table("share", "users who rate", "days")
    for each in found.stages:
        table.add_row(f"{each.share:.0%}", str(each.units), "never" if each.days is None else str(each.days))
    yield table

"""`astune online held`: feedback that waits for somebody to look at it."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from astune.cli.online.stored import config_of, feedback_rules, open_store
from astune.cli.suggesting_parser import Commands
from astune.errors import ConfigError
from astune.support.visible import tell, tell_json

if TYPE_CHECKING:
    import sqlalchemy as sa

    from astune.online.store.feedback.rows import FeedbackRow

WORDS = ("accept", "refuse")


def add_actions(actions: Commands) -> None:
    """The word `held` of `astune online`."""
    held = actions.add_parser("held", help="feedback that is held for a look: list, accept, refuse")
    held.set_defaults(execute=_review_held)
    held.add_argument(
        "words",
        nargs="*",
        metavar="accept|refuse NUMBER ... KEY=VALUE",
        help="what to do with which, as the list numbers them; nothing: list them",
    )
    held.add_argument("--author", metavar="NAME", help="all that is held of this author, in place of numbers")
    held.add_argument("--json", action="store_true", help="as JSON, one object on each line")
    held.add_argument("--conf", type=Path, metavar="FILE", help="the service's configuration")
    held.add_argument("--store", metavar="URL", help="the database itself: sqlite:///FILE or postgresql://...")


def _review_held(known: argparse.Namespace) -> int:
    """List held feedback, accept it or refuse it. Raises StoreError for feedback that is not held."""
    known.overrides = [word for word in known.words if "=" in word]
    words = [word for word in known.words if "=" not in word]
    action, numbers = _read_words(words, known.author)
    with closing(open_store(known)) as database:
        from astune.online.store.feedback import states as held

        if action is None:
            with database.reading() as connection:
                rows = [row for row in held.load_held(connection) if known.author in (None, row.author)]
        else:
            rules = feedback_rules(config_of(known))

            def decide(connection: sa.Connection) -> list[FeedbackRow]:
                rows = held.choose_held(connection, numbers, known.author)
                if action == "accept":
                    return held.accept(connection, rows, rules, time.time())
                return held.refuse(connection, rows, time.time())

            rows = database.write(decide)
    if known.json:
        for row in rows:
            tell_json(asdict(row), indent=None)
    else:
        _show_held(rows)
    return 0


def _read_words(words: Sequence[str], author: str | None) -> tuple[str | None, set[int]]:
    """Read the action and the numbers that it is for."""
    if not words:
        return None, set()
    action, *numbers = words
    if action not in WORDS:
        raise ConfigError(f"held {action!r}: expected accept, refuse or nothing, which lists what is held")
    wrong = next((number for number in numbers if not number.isdecimal()), None)
    if wrong is not None:
        raise ConfigError(f"held {action} {wrong!r}: expected numbers of held feedback, as `astune online held` lists")
    if bool(numbers) == (author is not None):
        raise ConfigError(f"held {action}: say which, by numbers or by --author NAME")
    return action, {int(number) for number in numbers}


def _show_held(rows: Sequence[FeedbackRow]) -> None:
    if not rows:
        tell("no feedback is held")
    for row in rows:
        when = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(row.received))
        value = "" if row.value is None else f" {row.value:g}"
        named = "" if row.name in ("reward", row.kind) else f" {row.name}"
        about = row.ids[0] + (f" and {len(row.ids) - 1} more" if len(row.ids) > 1 else "")
        reason = f": {row.reason}" if row.reason else ""
        tell(f"{row.id:>6}  {when}  {row.kind}{named}{value} by {row.author or 'nobody named'} on {about}, ", end="")
        tell(f"{row.state}{reason}")
        if row.comment or row.correction:
            tell(f"        {' '.join(str(row.comment or row.correction).split())[:200]}")

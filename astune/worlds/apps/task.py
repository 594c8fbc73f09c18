"""A task of the apps world, and the functions that its templates share."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

from astune.worlds.apps.seeded_world import add_mail, people_of
from astune.worlds.apps.state import Contact, Mail, World


class CallApi(Protocol):
    """Calls an API of an app and returns what it answered; a refusal raises."""

    def __call__(self, app: str, api: str, **arguments: Any) -> Any: ...


Solve = Callable[[CallApi], str]
"""A reference solution. It sees the world through `call` alone, as an agent does, and returns the final answer."""


@dataclass(frozen=True)
class AppsTask:
    """`expected` is `start` with exactly the changes that the query asks for; its `answer` is None where none is."""

    query: str
    start: World
    expected: World
    solve: Solve


Template = Callable[[random.Random, World], AppsTask]
"""May change the world that it is handed, which becomes the start."""


def every(call: CallApi, app: str, api: str, **arguments: Any) -> Iterator[Any]:
    """The items of all pages of a list."""
    page = pages = 1
    while page <= pages:
        found = call(app, api, **arguments, page=page)
        yield from found["items"]
        page, pages = page + 1, found["pages"]


def address_of(call: CallApi, name: str) -> str:
    """A contact's mail address."""
    (found,) = every(call, "contacts", "search_contacts", query=name)
    return str(call("contacts", "show_contact", contact_id=found["contact_id"])["email"])


def newest(world: World, sender: Contact, with_attachment: bool = False) -> tuple[int, Mail]:
    mails = [(key, mail) for key, mail in world.mails.items() if mail.sender == sender.email]
    return max((pair for pair in mails if pair[1].attachments or not with_attachment), key=lambda pair: pair[1].sent)


def someone(rng: random.Random, world: World, mails: int = 2) -> Contact:
    """A contact from whom there are at least so many mails."""
    person = rng.choice(people_of(world))
    for _ in range(mails):
        add_mail(rng, world, person.email)
    return person


def show_day(day: datetime) -> str:
    return day.strftime("%Y-%m-%d")

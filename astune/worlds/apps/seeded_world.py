"""A person's week, made up from a seed."""

from __future__ import annotations

import random
from datetime import datetime, timedelta

from astune.worlds.apps.state import Contact, Event, File, Mail, World

_FIRST = (
    "Ada",
    "Bruno",
    "Carla",
    "Deniz",
    "Elif",
    "Farid",
    "Greta",
    "Hiro",
    "Ines",
    "Jonas",
    "Kaya",
    "Liam",
    "Mona",
    "Nils",
    "Olga",
    "Pavel",
    "Rosa",
    "Samir",
)
_LAST = (
    "Berg",
    "Costa",
    "Dahl",
    "Evans",
    "Fischer",
    "Gupta",
    "Haas",
    "Ito",
    "Jansen",
    "Keller",
    "Lopez",
    "Meyer",
    "Novak",
    "Okoye",
    "Petit",
    "Rossi",
)
GROUPS = ("family", "football", "choir", "office")
_EVENTS = (
    "Budget review",
    "Standup",
    "Lunch",
    "Interview",
    "Demo",
    "Retrospective",
    "Training",
    "Phone call",
    "Design review",
    "Planning",
)
_SUBJECTS = ("Question", "Minutes", "Photos", "Next week", "Invoice", "Draft", "Agenda", "Thanks", "Reminder", "Update")
_SENTENCES = (
    "Could you have a look at this?",
    "No hurry with it.",
    "I will be there a little later.",
    "We should talk about it soon.",
    "That was a good day.",
    "The numbers are not final yet.",
)
TOPICS = ("garden", "menu", "packing", "reading", "budget", "tour", "recipe", "party")
_SHOPS = ("acme", "bolt", "cargo", "delta", "ember", "fjord")
FIRST_HOUR, LAST_HOUR = 9, 18
"""Hours of a working day, in which the seeded events are."""


def make_world(rng: random.Random) -> World:
    """About 14 contacts, 15 events in five days, 30 mails and 35 files."""
    monday = datetime(2026, 1, 5, 8) + timedelta(weeks=rng.randrange(40))
    names = zip(rng.sample(_FIRST, 15), rng.sample(_LAST, 15), strict=True)
    owner, *others = (f"{first} {last}" for first, last in names)
    world = World(owner, _address(owner), monday)
    for name in others:
        phone = f"0{rng.randrange(100, 1000)} {rng.randrange(100_000, 1_000_000)}"
        world.contacts[world.new_id()] = Contact(name, _address(name), phone, rng.choice(GROUPS))
    for day in days(world):
        for hour in sorted(rng.sample(range(FIRST_HOUR, LAST_HOUR), rng.randrange(2, 5))):
            guests = rng.sample(people_of(world), rng.randrange(4))
            answers = {guest.email: rng.choice(("yes", "no", "waiting")) for guest in guests}
            minutes = rng.choice((30, 45, 60))
            world.events[world.new_id()] = Event(rng.choice(_EVENTS), day + timedelta(hours=hour), minutes, answers)
    for _ in range(30):
        add_mail(rng, world, rng.choice(people_of(world)).email)
    _add_files(rng, world)
    return world


def days(world: World) -> list[datetime]:
    """The five working days, at midnight."""
    midnight = world.now.replace(hour=0)
    return [midnight + timedelta(days=number) for number in range(5)]


def people_of(world: World) -> list[Contact]:
    return list(world.contacts.values())


def add_mail(rng: random.Random, world: World, sender: str, subject: str = "", body: str = "") -> Mail:
    """A mail in the inbox, of the last three weeks; no two came at the same minute."""
    taken = {mail.sent for mail in world.mails.values()}
    sent = world.now - timedelta(minutes=rng.randrange(60, 30_000))
    while sent in taken:
        sent -= timedelta(minutes=1)
    body = body or " ".join(rng.sample(_SENTENCES, 2))
    mail = Mail("inbox", sender, [world.email], subject or rng.choice(_SUBJECTS), body, sent, rng.random() < 0.5)
    if rng.random() < 0.2:
        mail.attachments[f"{rng.choice(TOPICS)}-{rng.randrange(100)}.txt"] = lines(rng)
    world.mails[world.new_id()] = mail
    return mail


def lines(rng: random.Random) -> str:
    """A text of a few lines, no two alike."""
    words = rng.sample(
        ("apples", "boots", "candles", "drums", "eggs", "flour", "gloves", "honey", "ink", "jam", "kites", "lamps"), 4
    )
    return "".join(f"{rng.randrange(2, 20)} {word}\n" for word in words)


def _address(name: str) -> str:
    return f"{name.lower().replace(' ', '.')}@post.example"


def _add_files(rng: random.Random, world: World) -> None:
    def draw_time() -> datetime:
        return world.now - timedelta(minutes=rng.randrange(60, 60_000))

    for topic in TOPICS:
        folder = rng.choice(("/documents", "/documents/private", "/projects"))
        world.files[f"{folder}/{topic}.txt"] = File(lines(rng), draw_time())
    for number in range(rng.randrange(7, 12)):
        folder = rng.choice(("/tmp", "/tmp", "/tmp/cache", "/backup/tmp"))
        world.files[f"{folder}/part-{number}.txt"] = File(lines(rng), draw_time())
    for month in (1, 2, 3):
        for shop in rng.sample(_SHOPS, rng.randrange(3, 6)):
            day = rng.randrange(1, 29)
            text = f"Invoice of {shop}\nTotal: {rng.randrange(10, 400)}\n"
            world.files[f"/invoices/2026-{month:02}-{day:02}-{shop}.txt"] = File(text, draw_time())

"""Inboxes from a seed: people write about tickets, take back what they wrote, and chat.

    >>> inbox = make_inbox(1000)
    >>> inbox.questions[0].query, inbox.questions[0].answer          # doctest: +SKIP
    ('What is the time of ticket 512?', '14:30')

A question is about the one fact of a ticket, as its hall or its cost. What the newest mail says that states it is
right; that mail proves it. In one question of seven no mail states it, though some may ask for it. Other mails of the
same ticket say nothing, or what another ticket has. The splits are numbers of inboxes: each is in one alone. Tickets of
held-out inboxes have numbers that no other inbox has, so that no question is asked in training as it is held out.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

SPLITS = {"warmup": range(2_000, 10_000), "training": range(0, 400), "validation": range(1_000, 1_040)}
"""Numbers of inboxes. Those of `warmup` are for the examples that a model is warmed up with."""
QUESTIONS = 7
"""Questions about an inbox, of which one has no answer."""
UNKNOWN = "I don't know"

# fmt: off
PEOPLE = (
    "Maria", "Omar", "Lena", "Tom", "Aisha", "Ben", "Chen", "Dora", "Emil", "Fatima", "Greta", "Hugo", "Ines",
    "Jack", "Kofi", "Lucy", "Mona", "Nils", "Olga", "Priya", "Ravi", "Sara", "Theo", "Uma",
)
# fmt: on
TICKETS = 20
"""Tickets that an inbox is about."""
CORRECTED = 0.5
"""The chance that a fact is corrected by a later mail."""


@dataclass(frozen=True)
class Topic:
    """One kind of fact: how its value is drawn, how it is told and corrected, and how it is asked for."""

    name: str
    kind: str
    """What the value is: number, time or date."""
    draw: Callable[[random.Random], str]
    told: tuple[str, ...]
    corrected: tuple[str, ...]
    asked: tuple[str, ...]


def _topic(name: str, kind: str, draw: Callable[[random.Random], str]) -> Topic:
    return Topic(
        name,
        kind,
        draw,
        (f"The {name} is {{value}}.", f"We have {{value}} as the {name}."),
        (f"The {name} is now {{value}}, not {{old}}.", f"We now have {{value}} as the {name}, not {{old}}."),
        (f"What is the {name} of ticket {{ticket}}?", f"Which {name} has ticket {{ticket}}?"),
    )


TOPICS = (
    _topic("cost", "number", lambda rng: str(rng.randrange(10, 100))),
    _topic("hall", "number", lambda rng: str(rng.randrange(10, 100))),
    _topic("time", "time", lambda rng: f"{rng.randrange(8, 18):02d}:{rng.randrange(0, 60, 5):02d}"),
    _topic("day", "date", lambda rng: f"{rng.randrange(1, 13):02d}-{rng.randrange(1, 29):02d}"),
)
CHATTER = ("I have read this.", "What is the {topic}?", "I asked about the {topic} again.")
OTHERS = "This is about ticket {ticket}: {told}"


@dataclass(frozen=True)
class Mail:
    message_id: int
    day: int
    """Days since the inbox began: later mails have larger ones."""
    sender: str
    subject: str
    body: str
    reply_to: int | None = None
    """The mail of the same ticket before it; None of the first."""

    @property
    def date(self) -> str:
        return f"2026-{3 + self.day // 28:02d}-{1 + self.day % 28:02d}"


@dataclass(frozen=True)
class Question:
    question_id: str
    inbox: int
    query: str
    topic: Topic
    answer: str
    """`UNKNOWN` where no mail states it."""
    proof: tuple[int, ...]
    """The mails that prove the answer; empty where it has none."""
    ticket: int


@dataclass(frozen=True)
class Inbox:
    number: int
    mails: tuple[Mail, ...]
    """Oldest first."""
    questions: tuple[Question, ...]


class _Writer:
    """Writes the threads of one inbox, with ids that no other mail has."""

    def __init__(self, number: int) -> None:
        self.rng = random.Random(f"inbox {number}")
        held_out = number in SPLITS["validation"]
        self.tickets = self.rng.sample([n for n in range(100, 1000) if (n % 7 == 0) == held_out], TICKETS)
        self.mails: list[Mail] = []
        self._ids = iter(self.rng.sample(range(10, 100), 90))
        self._days: Iterator[int] = iter(())
        self._last: int | None = None

    def write(self, subject: str, body: str) -> int:
        """The id of a new mail, later than those of its thread before it."""
        mail = Mail(next(self._ids), next(self._days), self.rng.choice(PEOPLE), subject, body, self._last)
        self.mails.append(mail)
        self._last = mail.message_id
        return mail.message_id

    def write_thread(self, ticket: int, topic: Topic, stated: bool) -> tuple[str, tuple[int, ...]]:
        """The value of a fact, and the ids of the mails that prove it."""
        rng, subject = self.rng, f"ticket {ticket}"
        self._days, self._last = iter(sorted(rng.sample(range(112), 6))), None
        if rng.random() < 0.3:  # sent under the wrong ticket
            other = rng.choice([number for number in range(100, 1000) if number not in self.tickets])
            told = rng.choice(topic.told).format(value=topic.draw(rng))
            self.write(subject, OTHERS.format(ticket=other, told=told))
        if not stated:
            for _ in range(rng.randrange(3)):
                self._chat(ticket, topic)
            return UNKNOWN, ()
        value = topic.draw(rng)
        proof = self.write(subject, rng.choice(topic.told).format(value=value))
        if rng.random() < 0.3:
            self._chat(ticket, topic)
        if rng.random() < CORRECTED:
            old = value
            while value == old:
                value = topic.draw(rng)
            text = rng.choice(topic.corrected).format(value=value, old=old)
            proof = self.write(f"Re: {subject}", text)
        if rng.random() < 0.25:
            self._chat(ticket, topic)
        return value, (proof,)

    def _chat(self, ticket: int, topic: Topic) -> None:
        text = self.rng.choice(CHATTER).format(topic=topic.name)
        self.write(f"Re: ticket {ticket}", text)


@lru_cache(maxsize=512)
def make_inbox(number: int) -> Inbox:
    """The inbox of that number: always the same mails and questions."""
    writer = _Writer(number)
    unknown = writer.rng.randrange(QUESTIONS)
    questions = []
    for place, ticket in enumerate(writer.tickets):
        topic = writer.rng.choice(TOPICS)
        value, proof = writer.write_thread(ticket, topic, stated=place != unknown)
        if place < QUESTIONS:
            text = writer.rng.choice(topic.asked).format(ticket=ticket)
            questions.append(Question(f"inbox-{number}-{place}", number, text, topic, value, proof, ticket))
    mails = sorted(writer.mails, key=lambda mail: (mail.day, mail.message_id))
    return Inbox(number, tuple(mails), tuple(questions))


def task_row(question: Question) -> dict[str, Any]:
    """The question as a row of a data set, with the calls that `ToolUseJudge` expects. Any keywords will do."""
    last = {"name": "return_final_answer", "arguments": {"answer": question.answer, "sources": [*question.proof]}}
    reads = [{"name": "read_email", "arguments": {"message_id": proof}} for proof in question.proof]
    return {
        "id": question.question_id,
        "query": question.query,
        "answer": question.answer,
        "inbox": question.inbox,
        "kind": question.topic.kind,
        "proof": [*question.proof],
        "expected_tools": ["search_emails", *reads, last],
    }

"""Inboxes from a seed: people write about projects, take back what they wrote, and chat.

    >>> inbox = make_inbox(1000)
    >>> inbox.questions[0].query, inbox.questions[0].answer          # doctest: +SKIP
    ('Inbox 1000. When is the apples meeting?', '14:30')

A question is about one fact of one project, as its room or its budget. What the newest mail says that states it is
right; that mail proves it. In one question of seven no mail states it, though some may ask for it. Other mails of the
same subject say nothing, or name another project's fact. The splits are numbers of inboxes: each is in one alone.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

SPLITS = {"warmup": range(100_000, 200_000), "training": range(0, 400), "validation": range(1_000, 1_040)}
"""Numbers of inboxes. Those of `warmup` are for the examples that a model is warmed up with."""
QUESTIONS = 7
"""Questions about an inbox, of which one has no answer."""
UNKNOWN = "I don't know"

# fmt: off
PEOPLE = (
    "Maria", "Omar", "Lena", "Tom", "Aisha", "Ben", "Chen", "Dora", "Emil", "Fatima", "Greta", "Hugo", "Ines",
    "Jack", "Kofi", "Lucy", "Mona", "Nils", "Olga", "Priya", "Ravi", "Sara", "Theo", "Uma",
)
PROJECTS = (
    "apples", "pears", "books", "pens", "stickers", "marbles", "coins", "shells", "stamps", "cards",
    "cookies", "eggs", "roses", "cups", "candles", "beads", "balloons", "lemons", "buttons", "tickets",
)
# fmt: on
MONTHS = ("May", "June", "July")
CORRECTED = 0.5
"""The chance that a fact is corrected by a later mail."""


@dataclass(frozen=True)
class Topic:
    """One kind of fact: how its value is drawn, how it is told and corrected, and how it is asked for."""

    name: str
    kind: str
    """What the value is: number, time, date or person."""
    draw: Callable[[random.Random], str]
    told: tuple[str, ...]
    corrected: tuple[str, ...]
    asked: tuple[str, ...]


TOPICS = (
    Topic(
        "budget",
        "number",
        lambda rng: str(rng.randrange(100, 1000)),
        ("The {project} budget is {value} dollars.", "We have {value} dollars: that is the budget for the {project}."),
        ("The {project} budget is now {value} dollars, not {old}.", "Not {old}: the {project} budget is {value}."),
        ("How many dollars is the {project} budget?", "What is the budget for the {project}?"),
    ),
    Topic(
        "room",
        "number",
        lambda rng: str(rng.randrange(100, 1000)),
        ("The {project} are in room {value}.", "We have room {value} for the {project}."),
        ("The {project} are now in room {value}, not {old}.", "Not {old}: the {project} have room {value}."),
        ("Which room do the {project} have?", "In which room are the {project}?"),
    ),
    Topic(
        "meeting",
        "time",
        lambda rng: f"{rng.randrange(8, 18):02d}:{rng.randrange(0, 60, 5):02d}",
        ("The {project} meeting is at {value}.", "We start at {value} with the {project} meeting."),
        ("The {project} meeting is now at {value}, not {old}.", "Not {old}: the {project} meeting is at {value}."),
        ("When is the {project} meeting?", "At what time is the {project} meeting?"),
    ),
    Topic(
        "deadline",
        "date",
        lambda rng: f"{rng.randrange(1, 29)} {rng.choice(MONTHS)}",
        ("The {project} deadline is {value}.", "We have until {value}: that is the deadline for the {project}."),
        ("The {project} deadline is now {value}, not {old}.", "Not {old}: the {project} deadline is {value}."),
        ("When is the {project} deadline?", "What is the deadline for the {project}?"),
    ),
    Topic(
        "team",
        "person",
        lambda rng: rng.choice(PEOPLE),
        ("The {project} team has {value} at its head.", "With {value} at its head the {project} team can start."),
        ("The {project} team now has {value}, not {old}.", "Not {old}: {value} heads the {project} team."),
        ("Who heads the {project} team?", "Who is at the head of the {project} team?"),
    ),
)
CHATTER = (
    "Thank you, that is good to know.",
    "I still have to read this.",
    "Does anybody know the {project} {topic}?",
    "I asked about the {project} {topic} again.",
)


@dataclass(frozen=True)
class Mail:
    message_id: int
    day: int
    """Days since the inbox began: later mails have larger ones."""
    sender: str
    subject: str
    body: str

    @property
    def date(self) -> str:
        return f"2026-{3 + self.day // 28:02d}-{1 + self.day % 28:02d}"


@dataclass(frozen=True)
class Question:
    question_id: str
    inbox: int
    query: str
    kind: str
    answer: str
    """`UNKNOWN` where no mail states it."""
    proof: tuple[int, ...]
    """The mails that prove the answer; empty where it has none."""
    keywords: str
    """What finds them."""


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
        self.projects = self.rng.sample(PROJECTS, 4)
        self.mails: list[Mail] = []
        self._others = [project for project in PROJECTS if project not in self.projects]
        self._ids = iter(self.rng.sample(range(100, 1000), 200))
        self._days: Iterator[int] = iter(())

    def write(self, subject: str, body: str) -> int:
        """The id of a new mail, later than those of its thread before it."""
        mail = Mail(next(self._ids), next(self._days), self.rng.choice(PEOPLE), subject, body)
        self.mails.append(mail)
        return mail.message_id

    def write_thread(self, project: str, topic: Topic, stated: bool) -> tuple[str, tuple[int, ...]]:
        """The value of a fact, and the ids of the mails that prove it."""
        rng, subject = self.rng, f"{project} {topic.name}"
        self._days = iter(sorted(rng.sample(range(112), 6)))
        if rng.random() < 0.3:  # names this fact, and states one of a project that nobody asks about
            other = rng.choice(self._others)
            told = rng.choice(topic.told).format(project=other, value=topic.draw(rng))
            self.write(f"{other} {topic.name}", f"{told} I know nothing of the {project} {topic.name}.")
        if not stated:
            for _ in range(rng.randrange(3)):
                self._chat(project, topic)
            return UNKNOWN, ()
        value = topic.draw(rng)
        proof = self.write(subject, rng.choice(topic.told).format(project=project, value=value))
        if rng.random() < 0.3:
            self._chat(project, topic)
        if rng.random() < CORRECTED:
            old = value
            while value == old:
                value = topic.draw(rng)
            text = rng.choice(topic.corrected).format(project=project, value=value, old=old)
            proof = self.write(f"Re: {subject}", text)
        if rng.random() < 0.3:
            self._chat(project, topic)
        return value, (proof,)

    def _chat(self, project: str, topic: Topic) -> None:
        text = self.rng.choice(CHATTER).format(project=project, topic=topic.name)
        self.write(f"Re: {project} {topic.name}", text)


@lru_cache(maxsize=512)
def make_inbox(number: int) -> Inbox:
    """The inbox of that number: always the same mails and questions."""
    writer = _Writer(number)
    facts = [(project, topic) for project in writer.projects for topic in TOPICS]
    writer.rng.shuffle(facts)
    unknown = writer.rng.randrange(QUESTIONS)
    questions = []
    for place, (project, topic) in enumerate(facts):
        value, proof = writer.write_thread(project, topic, stated=place != unknown)
        if place < QUESTIONS:
            text = f"Inbox {number}. {writer.rng.choice(topic.asked).format(project=project)}"
            keywords = f"{project} {topic.name}"
            questions.append(Question(f"inbox-{number}-{place}", number, text, topic.kind, value, proof, keywords))
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
        "kind": question.kind,
        "proof": [*question.proof],
        "expected_tools": ["search_emails", *reads, last],
    }

"""Deletion: what a person said, what was answered, and every line about it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Any

import sqlalchemy as sa

from astune.errors import StoreError, nearest
from astune.store import audit as audit_lines
from astune.store.database import Database
from astune.store.tables import (
    audit,
    commits,
    conversations,
    episode_messages,
    episodes,
    exposures,
    feedback,
    feedback_messages,
    requests,
    samples,
    turns,
    versions,
)

DAY = 86400.0
TOGETHER = 100
"""Conversations of one transaction, so that others come to write in between."""
MOST_IDS = 500
"""Ids in one statement."""
GONE = "(deleted)"
"""In the place of a task or run that a commit was asked for: without any it would be one of everything."""
MOST_LINES = 2000
"""Audit lines that are looked through in one transaction."""


@dataclass(frozen=True)
class Whose:
    """What is to be deleted: all of a user, one conversation, or what was last gone on with before a time. One of them
    is given."""

    user: str | None = None
    conversation: str | None = None
    before: float | None = None

    def __post_init__(self) -> None:
        if sum(value is not None for value in vars(self).values()) != 1:
            raise ValueError("give one of user, conversation and before")


@dataclass
class Deleted:
    """What was deleted. `versions` were trained from it, `heirs` made from those: a deletion does not change them."""

    conversations: int = 0
    requests: int = 0
    feedback: int = 0
    audit_lines: int = 0
    versions: list[int] = field(default_factory=list)
    heirs: list[int] = field(default_factory=list)


def expire(database: Database, keep_days: float, now: float) -> Deleted:
    """Delete the conversations that nobody went on with for `keep_days`, and feedback as old that found no answer."""
    return delete(database, Whose(before=now - keep_days * DAY), role="train", now=now)


def delete(database: Database, whose: Whose, *, role: audit_lines.Role, now: float) -> Deleted:
    """Delete whole conversations: requests, turns, feedback on them, episodes, samples, exposures. Of a user also the
    feedback on others' answers. Lines of the audit about any of it keep their time and what was done, nothing else.

    A deletion that is killed goes on when it is asked for again. Raises StoreError for a conversation that is not
    there.
    """
    found, opinions, names, notes = _find(database, whose)
    done = Deleted()
    if not found and not opinions:
        return done
    with database.reading() as connection:
        done.versions = _trained_from(connection, found)
        done.heirs = heirs_of(connection, done.versions)
    seen = _blacken_all(database, names, notes, 0, done)  # first: it finds lines by ids that the rows still have
    for part in _parts(found, TOGETHER):
        deleted = database.write(partial(_delete_conversations, part=part, names=names))
        done.conversations += deleted.conversations
        done.requests += deleted.requests
        done.feedback += deleted.feedback
    for part in _parts(opinions, MOST_IDS):
        done.feedback += database.write(partial(_delete_feedback, part=part))
    _blacken_all(database, names, notes, seen, done)
    told = {name: value for name, value in vars(done).items() if name != "audit_lines"}
    by = next(name for name, value in vars(whose).items() if value is not None)
    with database.writing() as connection:
        audit_lines.say(connection, role, "deleted", None, now=now, by=by, **told)
    if database.is_sqlite:
        with database.engine.connect() as connection:  # outside a transaction: the log goes into the file
            connection.connection.cursor().execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    return done


def heirs_of(connection: sa.Connection, roots: Iterable[int]) -> list[int]:
    """The versions that were made from `roots`, over any number of others."""
    parents = connection.execute(sa.select(versions.c.version, versions.c.parent).order_by(versions.c.version)).all()
    family = set(roots)
    found = []
    for version, parent in parents:  # a parent's number is lower
        if parent in family and version not in family:
            family.add(version)
            found.append(version)
    return found


def _find(database: Database, whose: Whose) -> tuple[list[str], list[int], set[str], set[str]]:
    """The conversations, the feedback on others' answers, every id and name that may stand in other rows, and the
    numbers of all feedback that goes, as the audit has them."""
    with database.reading() as connection:
        found = sorted(_conversations_of(connection, whose))
        opinions = list(connection.scalars(_opinions_of(whose)))
        names = set(found) | ({whose.user} if whose.user is not None else set())
        tasks: set[str] = set()
        notes = {str(number) for number in opinions}
        for part in _parts(found, MOST_IDS):
            mine = requests.c.conversation_id.in_(part)
            keys = sa.select(conversations.c.key).where(conversations.c.conversation_id.in_(part))
            names.update(key for key in connection.scalars(keys) if key is not None)
            about = sa.select(feedback_messages.c.feedback_id).join(
                requests, requests.c.msg_id == feedback_messages.c.msg_id
            )
            notes.update(str(number) for number in connection.scalars(about.where(mine)))
            for msg_id, task, run in connection.execute(
                sa.select(requests.c.msg_id, requests.c.task_id, requests.c.run_id).where(mine)
            ):
                names.add(msg_id)
                tasks.update(name for name in (task, run) if name is not None)
        names |= _only_theirs(connection, tasks, found)
    return found, opinions, names, notes


def _conversations_of(connection: sa.Connection, whose: Whose) -> set[str]:
    ids = sa.select(conversations.c.conversation_id)
    if whose.before is not None:
        return set(connection.scalars(ids.where(conversations.c.last < whose.before)))
    if whose.user is not None:
        asked = sa.select(requests.c.conversation_id).where(requests.c.user == whose.user)
        return {*connection.scalars(ids.where(conversations.c.user == whose.user)), *connection.scalars(asked)}
    if connection.scalar(ids.where(conversations.c.conversation_id == whose.conversation)) is None:
        near = nearest(str(whose.conversation), connection.scalars(ids))
        raise StoreError(f"there is no conversation {whose.conversation!r}.{near}")
    return {str(whose.conversation)}


def _opinions_of(whose: Whose) -> sa.Select[Any]:
    if whose.user is not None:
        return sa.select(feedback.c.id).where(feedback.c.author == whose.user)
    if whose.before is None:
        return sa.select(feedback.c.id).where(sa.false())
    known = sa.select(1).where(
        feedback_messages.c.feedback_id == feedback.c.id, feedback_messages.c.msg_id == requests.c.msg_id
    )
    return sa.select(feedback.c.id).where(feedback.c.received < whose.before, ~sa.exists(known))


def _only_theirs(connection: sa.Connection, names: set[str], found: Sequence[str]) -> set[str]:
    """Those names of tasks and runs that no other conversation has."""
    gone = set(found)
    left = set(names)
    for part in _parts(sorted(names), MOST_IDS):
        for column in (requests.c.task_id, requests.c.run_id):
            rows = sa.select(column, requests.c.conversation_id).where(column.in_(part)).distinct()
            left -= {name for name, conversation in connection.execute(rows) if conversation not in gone}
    return left


def _trained_from(connection: sa.Connection, found: Sequence[str]) -> list[int]:
    made: set[int] = set()
    for part in _parts(found, MOST_IDS):
        made.update(
            connection.scalars(
                sa.select(commits.c.version)
                .join(samples, samples.c.commit_id == commits.c.id)
                .join(turns, turns.c.id == samples.c.turn_id)
                .join(requests, requests.c.msg_id == turns.c.msg_id)
                .where(requests.c.conversation_id.in_(part), commits.c.version.is_not(None))
                .distinct()
            )
        )
    return sorted(made)


def _delete_conversations(connection: sa.Connection, part: Sequence[str], names: set[str]) -> Deleted:
    done = Deleted()
    asked = list(connection.scalars(sa.select(requests.c.msg_id).where(requests.c.conversation_id.in_(part))))
    touched = set(connection.scalars(sa.select(episodes.c.episode_id).where(episodes.c.conversation_id.in_(part))))
    tasks: set[str] = set()
    for ids in _parts(asked, MOST_IDS):
        touched.update(
            connection.scalars(sa.select(episode_messages.c.episode_id).where(episode_messages.c.msg_id.in_(ids)))
        )
        about = sa.select(feedback_messages.c.feedback_id).where(feedback_messages.c.msg_id.in_(ids))
        done.feedback += connection.execute(feedback.delete().where(feedback.c.id.in_(about))).rowcount
        of_asked = sa.select(requests.c.task_id, requests.c.run_id).where(requests.c.msg_id.in_(ids))
        tasks.update(chain.from_iterable(connection.execute(of_asked)))
    done.requests += len(asked)
    done.conversations += connection.execute(
        conversations.delete().where(conversations.c.conversation_id.in_(part))  # with requests, turns and samples
    ).rowcount
    connection.execute(exposures.delete().where(exposures.c.conversation_id.in_(part)))
    for ids in _parts(sorted(touched), MOST_IDS):
        shared = set(
            connection.scalars(
                sa.select(episode_messages.c.episode_id).where(episode_messages.c.episode_id.in_(ids)).distinct()
            )
        )
        gone = [name for name in ids if name not in shared or name in names]
        connection.execute(episodes.delete().where(episodes.c.episode_id.in_(gone)))
        connection.execute(samples.update().where(samples.c.episode_id.in_(gone)).values(episode_id=None))
    connection.execute(episodes.update().where(episodes.c.conversation_id.in_(part)).values(conversation_id=None))
    for ids in _parts(sorted(names & tasks), MOST_IDS):
        for column in (commits.c.task_id, commits.c.run_id):
            connection.execute(commits.update().where(column.in_(ids)).values({column: GONE}))
    return done


def _delete_feedback(connection: sa.Connection, part: Sequence[int]) -> int:
    return connection.execute(feedback.delete().where(feedback.c.id.in_(part))).rowcount


def _blacken_all(database: Database, names: set[str], notes: set[str], seen: int, done: Deleted) -> int:
    """Empty the lines of the audit after number `seen` that name one of `names`, or are about feedback in `notes`.
    Returns the number of the last."""
    while True:
        with database.writing() as connection:
            lines = connection.execute(sa.select(audit).where(audit.c.id > seen).order_by(audit.c.id).limit(MOST_LINES))
            found = lines.all()
            about = [
                line.id
                for line in found
                if line.subject in names
                or (line.subject in notes and line.what.startswith("feedback"))
                or any(text in names for text in _texts(line.details))
            ]
            for ids in _parts(about, MOST_IDS):
                black = audit.update().where(audit.c.id.in_(ids)).values(subject=None, details={"deleted": True})
                done.audit_lines += connection.execute(black).rowcount
        if not found:
            return seen
        seen = found[-1].id


def _texts(value: Any) -> Iterator[str]:
    """The texts and keys in JSON, and what stands in quotes in them."""
    if isinstance(value, str):
        yield value
        yield from re.findall("'([^']+)'", value)
    elif isinstance(value, dict):
        yield from value
        yield from chain.from_iterable(map(_texts, value.values()))
    elif isinstance(value, list):
        yield from chain.from_iterable(map(_texts, value))


def _parts(items: Sequence[Any], size: int) -> Iterator[list[Any]]:
    for start in range(0, len(items), size):
        yield list(items[start : start + size])

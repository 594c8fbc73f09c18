"""Deletion of a person's messages, the answers to them, and every audit line about both."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Any

import sqlalchemy as sa

from astune.errors import StoreError, nearest
from astune.online.store import audit as audit_lines
from astune.online.store import comparisons
from astune.online.store.answers import chunks, find_of
from astune.online.store.assignments import unit_of
from astune.online.store.feedback.rows import RATER
from astune.online.store.versions import load_tree
from astune.store.database import Database, copies_of
from astune.store.tables import (
    assignments,
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
)

DAY = 86400.0
DELETED = "deleted"
"""The line of the audit about a deletion."""
MOST_SILENCE = DAY
"""A longer time without a write may not have passed: a clock may have been set."""
TOGETHER = 100
"""Conversations of one transaction; others may write in between."""
MOST_IDS = 500
"""Ids in one statement."""
GONE = "(deleted)"
"""Replaces the task or run of a commit's scope: without any, its scope would be everything."""
MOST_LINES = 2000
"""Audit lines that are looked through in one transaction."""


_RATED = (
    sa.select(requests.c.conversation_id, feedback.c.id)
    .join(feedback_messages, feedback_messages.c.msg_id == requests.c.msg_id)
    .join(feedback, feedback.c.id == feedback_messages.c.feedback_id)
    .join(conversations, conversations.c.conversation_id == requests.c.conversation_id)
    .where(feedback.c.author == sa.bindparam("its_user"), requests.c.user.is_(None), conversations.c.user.is_(None))
    .distinct()
)
"""Conversations that name nobody, with the feedback of a user on them."""


@dataclass(frozen=True)
class DeletionScope:
    """The data to delete: all of a user, one or several conversations, or conversations whose last request came before
    a time. Exactly one is given. `rated`: delete with the user's conversations those without a user on which this user
    gave feedback."""

    user: str | None = None
    conversation: str | Sequence[str] | None = None
    before: float | None = None
    rated: bool = False

    def __post_init__(self) -> None:
        if sum(value is not None for value in (self.user, self.conversation, self.before)) != 1:
            raise ValueError("give one of user, conversation and before")
        if self.rated and self.user is None:
            raise ValueError("rated goes with a user")


@dataclass
class DeletionReport:
    """Counts of the deleted rows. `versions` were trained from them, and `heirs` from those versions; a deletion does
    not change them. `kept` are conversations without a user on which the user had given feedback, `kept_feedback`
    times: they may be the user's, which cannot be known once the feedback is gone. `copies` are databases from before
    upgrades, which still hold the data."""

    conversations: int = 0
    requests: int = 0
    feedback: int = 0
    audit_lines: int = 0
    versions: list[int] = field(default_factory=list)
    heirs: list[int] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    kept_feedback: int = 0
    copies: list[str] = field(default_factory=list)


def silence(connection: sa.Connection, keep_days: float, now: float) -> float:
    """Sum the pauses of more than `MOST_SILENCE` seconds without any write, back to data that is `keep_days` old
    without them. A clock that jumps ahead looks like such a pause and would delete everything; so pauses do not count
    as age. They do count if somebody has deleted by age since, which confirms the clock."""
    left, time, silent = keep_days * DAY, now, 0.0
    deletions = [line for line in audit_lines.lines(connection, what=DELETED) if line.details.get("by") == "before"]
    by_hand = [line.time for line in deletions if line.role == "command"]
    believed = max((when for when in by_hand if when <= now), default=-math.inf)
    while left > 0 and time > believed:
        before = _find_time(connection, sa.func.min, time - MOST_SILENCE, time)
        if before is None:
            before = _find_time(connection, sa.func.max, -math.inf, time)
        if before is None:
            break
        before = max(before, believed)
        if time - before > MOST_SILENCE:
            silent += time - before
        else:
            left -= time - before
        time = before
    return silent


def show_life(connection: sa.Connection, now: float) -> None:
    """Write a line if nothing else was written lately, so that a quiet time is no pause. Call it much more often than
    `MOST_SILENCE`."""
    if _find_time(connection, sa.func.max, now - MOST_SILENCE / 2, now) is None:
        audit_lines.say(connection, "train", "at work", None, now=now)


def _find_time(connection: sa.Connection, which: Any, since: float, before: float) -> float | None:
    """The time of the earliest or latest write (`which`: min, max) from `since` until `before`."""
    found = [
        connection.scalar(sa.select(which(column)).where(column >= since, column < before))
        for column in (requests.c.answered, audit.c.time)
    ]
    there = [time for time in found if time is not None]
    return None if not there else min(there) if which is sa.func.min else max(there)


def expire(database: Database, keep_days: float, now: float, *, silent: float = 0.0) -> DeletionReport:
    """Delete everything older than `keep_days`: conversations by their last request, feedback whose answer was never
    recorded, and copies of the database from before upgrades. `silent` seconds do not count."""
    before = now - keep_days * DAY - silent
    for copy in copies_of(database):
        if copy.stat().st_mtime < before:
            copy.unlink(missing_ok=True)
    return delete(database, DeletionScope(before=before), role="train", now=now)


def delete(database: Database, whose: DeletionScope, *, role: audit_lines.Role, now: float) -> DeletionReport:
    """Delete whole conversations: requests, turns, feedback on them, episodes, samples, exposures; for a user also the
    feedback on others' answers. Audit lines about them keep nothing but their time and kind.

    A deletion that was killed is completed by asking for it again. Raises StoreError for an unknown conversation.
    """
    found, opinions, names, notes = _find(database, whose)
    done = DeletionReport(copies=list(map(str, copies_of(database))))
    if not found and not opinions and (role == "train" or whose.before is None):
        return done
    with database.reading() as connection:
        done.versions = _find_versions(connection, found, opinions)
        tree = load_tree(connection)
        heirs = set[int]().union(*map(tree.heirs, done.versions))
        done.heirs = sorted(heirs - set(done.versions))
        if whose.user is not None and not whose.rated:
            rated = connection.execute(_RATED, {"its_user": whose.user}).all()
            done.kept = sorted({conversation for conversation, _ in rated} - set(found))
            done.kept_feedback = len({number for conversation, number in rated if conversation in done.kept})
    seen = _clear_audit_lines(database, names, notes, 0, done)  # first: it finds lines by ids that the rows still have
    for part in chunks(found, TOGETHER):
        deleted = database.write(partial(_delete_conversations, part=part, names=names))
        done.conversations += deleted.conversations
        done.requests += deleted.requests
        done.feedback += deleted.feedback
    if whose.user is not None and whose.user.startswith(RATER):
        database.write(partial(comparisons.forget_rater, rater=whose.user.removeprefix(RATER)))
    for numbers in chunks(opinions, MOST_IDS):
        done.feedback += database.write(partial(_delete_feedback, part=numbers))
    database.write(partial(_delete_assignments, whose=whose))
    _clear_audit_lines(database, names, notes, seen, done)
    told = {name: value for name, value in vars(done).items() if name not in ("audit_lines", "copies")}
    told |= {"kept": len(done.kept)}
    by = next(name for name in ("user", "conversation", "before") if getattr(whose, name) is not None)
    with database.writing() as connection:
        audit_lines.say(connection, role, DELETED, None, now=now, by=by, **told)
    if database.is_sqlite:
        with database.engine.connect() as connection:  # outside a transaction: the log goes into the file
            connection.connection.cursor().execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    return done


def _find(database: Database, whose: DeletionScope) -> tuple[list[str], list[int], set[str], set[str]]:
    """Find the conversations, the ids of feedback on others' answers, every id and name that may stand in other rows,
    and the ids of all feedback to delete as texts, as the audit has them."""
    with database.reading() as connection:
        theirs = _conversations_of(connection, whose)
        found = sorted(theirs | comparisons.find_copies(connection, sorted(theirs)))
        opinions = list(connection.scalars(_opinions_of(whose)))
        names = set(found) | ({whose.user} if whose.user is not None else set())
        tasks: set[str] = set()
        notes = {str(number) for number in opinions}
        for part in chunks(found, MOST_IDS):
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


def _conversations_of(connection: sa.Connection, whose: DeletionScope) -> set[str]:
    ids = sa.select(conversations.c.conversation_id)
    if whose.before is not None:
        return set(connection.scalars(ids.where(conversations.c.last < whose.before)))
    if whose.user is not None:
        asked = sa.select(requests.c.conversation_id).where(requests.c.user == whose.user)
        theirs = {*connection.scalars(ids.where(conversations.c.user == whose.user)), *connection.scalars(asked)}
        rated = connection.execute(_RATED, {"its_user": whose.user}) if whose.rated else ()
        return theirs | {conversation for conversation, _ in rated}
    named = [whose.conversation] if isinstance(whose.conversation, str) else list(whose.conversation or ())
    for name in named:
        if connection.scalar(ids.where(conversations.c.conversation_id == name)) is None:
            raise StoreError(f"there is no conversation {name!r}.{nearest(name, connection.scalars(ids))}")
    return set(named)


def _opinions_of(whose: DeletionScope) -> sa.Select[Any]:
    if whose.user is not None:
        return sa.select(feedback.c.id).where(feedback.c.author == whose.user)
    if whose.before is None:
        return sa.select(feedback.c.id).where(sa.false())
    known = sa.select(1).where(
        feedback_messages.c.feedback_id == feedback.c.id, feedback_messages.c.msg_id == requests.c.msg_id
    )
    return sa.select(feedback.c.id).where(feedback.c.received < whose.before, ~sa.exists(known))


def _only_theirs(connection: sa.Connection, names: set[str], found: Sequence[str]) -> set[str]:
    """Keep the names of tasks and runs that no other conversation has."""
    gone = set(found)
    left = set(names)
    for part in chunks(sorted(names), MOST_IDS):
        for column in (requests.c.task_id, requests.c.run_id):
            rows = sa.select(column, requests.c.conversation_id).where(column.in_(part)).distinct()
            left -= {name for name, conversation in connection.execute(rows) if conversation not in gone}
    return left


def _find_versions(connection: sa.Connection, found: Sequence[str], opinions: Sequence[int]) -> list[int]:
    """Find the versions that were trained from these conversations, or with this feedback, whose `reason` names one."""
    from_them = (
        sa.select(commits.c.version)
        .join(samples, samples.c.commit_id == commits.c.id)
        .join(turns, turns.c.id == samples.c.turn_id)
        .join(requests, requests.c.msg_id == turns.c.msg_id)
        .where(commits.c.version.is_not(None))
        .distinct()
    )
    made = find_of(connection, found, lambda some: from_them.where(requests.c.conversation_id.in_(some)))
    why = sa.select(feedback.c.reason).where(feedback.c.state == "trained")
    reasons = find_of(connection, opinions, lambda some: why.where(feedback.c.id.in_(some)))
    return sorted(made | {int(reason[1:]) for reason in reasons if re.fullmatch(r"v\d+", reason or "")})


def _delete_conversations(connection: sa.Connection, part: Sequence[str], names: set[str]) -> DeletionReport:
    done = DeletionReport()
    asked = list(connection.scalars(sa.select(requests.c.msg_id).where(requests.c.conversation_id.in_(part))))
    touched = set(connection.scalars(sa.select(episodes.c.episode_id).where(episodes.c.conversation_id.in_(part))))
    tasks: set[str] = set()
    for ids in chunks(asked, MOST_IDS):
        touched.update(
            connection.scalars(sa.select(episode_messages.c.episode_id).where(episode_messages.c.msg_id.in_(ids)))
        )
        about = sa.select(feedback_messages.c.feedback_id).where(feedback_messages.c.msg_id.in_(ids))
        done.feedback += connection.execute(feedback.delete().where(feedback.c.id.in_(about))).rowcount
        of_asked = sa.select(requests.c.task_id, requests.c.run_id).where(requests.c.msg_id.in_(ids))
        tasks.update(chain.from_iterable(connection.execute(of_asked)))
    comparisons.forget(connection, asked)
    done.requests += len(asked)
    done.conversations += connection.execute(
        conversations.delete().where(conversations.c.conversation_id.in_(part))  # with requests, turns and samples
    ).rowcount
    connection.execute(exposures.delete().where(exposures.c.conversation_id.in_(part)))
    units = [unit_of("", None, conversation) for conversation in part]
    connection.execute(assignments.delete().where(assignments.c.unit.in_(units)))
    for ids in chunks(sorted(touched), MOST_IDS):
        linked = sa.select(episode_messages.c.episode_id).where(episode_messages.c.episode_id.in_(ids)).distinct()
        shared = set(connection.scalars(linked))
        gone = [name for name in ids if name not in shared or name in names]
        connection.execute(episodes.delete().where(episodes.c.episode_id.in_(gone)))
        connection.execute(samples.update().where(samples.c.episode_id.in_(gone)).values(episode_id=None))
    connection.execute(episodes.update().where(episodes.c.conversation_id.in_(part)).values(conversation_id=None))
    for ids in chunks(sorted(names & tasks), MOST_IDS):
        for column in (commits.c.task_id, commits.c.run_id):
            connection.execute(commits.update().where(column.in_(ids)).values({column: GONE}))
    return done


def _delete_feedback(connection: sa.Connection, part: Sequence[int]) -> int:
    return connection.execute(feedback.delete().where(feedback.c.id.in_(part))).rowcount


def _delete_assignments(connection: sa.Connection, whose: DeletionScope) -> None:
    """Delete those of a user, or those from before a time; a conversation's own go with it."""
    if whose.user is not None:
        unit = assignments.c.unit
        theirs = unit.startswith("user:") & unit.endswith(f":{whose.user}", autoescape=True)
        connection.execute(assignments.delete().where(theirs))
    if whose.before is not None:
        connection.execute(assignments.delete().where(assignments.c.first < whose.before))


def _clear_audit_lines(database: Database, names: set[str], notes: set[str], seen: int, done: DeletionReport) -> int:
    """Empty the audit lines after number `seen` that name one of `names` or are about feedback in `notes`. Return the
    number of the last line."""
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
            for ids in chunks(about, MOST_IDS):
                black = audit.update().where(audit.c.id.in_(ids)).values(subject=None, details={"deleted": True})
                done.audit_lines += connection.execute(black).rowcount
        if not found:
            return seen
        seen = found[-1].id


def _texts(value: Any) -> Iterator[str]:
    """The texts and keys in a JSON value, and the quoted parts of them."""
    if isinstance(value, str):
        yield value
        yield from re.findall("'([^']+)'", value)
    elif isinstance(value, dict):
        yield from value
        yield from chain.from_iterable(map(_texts, value.values()))
    elif isinstance(value, list):
        yield from chain.from_iterable(map(_texts, value))

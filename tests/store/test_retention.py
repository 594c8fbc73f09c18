import sqlite3
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from astune.errors import StoreError
from astune.online.store import audit
from astune.online.store.retention import DAY, GONE, DeletionScope, delete, expire
from astune.store.database import Database, open_database
from astune.store.tables import commits, feedback, requests, samples
from tests.store.databases import database as database
from tests.store.databases import empty
from tests.store.databases import one_database as one_database
from tests.store.databases import url as url
from tests.store.rows import add, add_feedback, add_request, add_version, cells

PEOPLE = ("ana-lopez", "bo-chen", None)


def secret(user: str | None, conversation: str) -> str:
    return f"secret-of-{user}-in-{conversation}"


def fill(database: Database, owners: list[int], asked: list[tuple[int, int, bool]]) -> None:
    """Conversation number c belongs to `PEOPLE[owners[c]]`. Each of `asked` is a request in a conversation, with
    feedback by a person, and whether it is trained."""
    with database.writing() as connection:
        for number, (conversation, critic, trained) in enumerate(asked):
            conversation %= len(owners)
            user, name = PEOPLE[owners[conversation]], f"conv-{conversation}-{owners[conversation]}"
            msg_id, task = f"msg-{number}-{name}", f"task-{name}"
            turn = add_request(connection, msg_id, name, secret(user, name), user=user, task_id=task)
            author = PEOPLE[critic] or ""
            comment = f"comment-by-{author} on {secret(user, name)}"
            add_feedback(connection, author, [msg_id], comment=comment, task_id=task)
            add_feedback(connection, author, [f"unknown-{number}"], state="waits", correction=f"comment-by-{author}")
            audit.say(connection, "serve", "feedback: held", str(number + 1), reason=f"too many by {author!r}")
            audit.say(connection, "serve", "held", msg_id, user=author, others=[{name: user}])
            add(connection, commits, by="client", state="asked", task_id=task)
            if trained:
                parent = number - 1 if number else None
                add_version(connection, number + 1, parent, {f"episode-{number}": (turn, [msg_id])})


SHAPE: dict[str, Any] = {
    "owners": st.lists(st.integers(0, 2), min_size=1, max_size=3),
    "asked": st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2), st.booleans()), min_size=1, max_size=5),
}


def mentions(row: tuple[Any, ...], texts: set[str]) -> bool:
    shown = repr(row)
    return any(text in shown or repr(tuple(text.encode()))[1:-1] in shown for text in texts)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(whose=st.sampled_from(["ana-lopez", "conv-0"]), **SHAPE)
def test_after_a_deletion_no_cell_has_a_text_or_id_of_the_person_and_others_are_untouched(
    one_database: Database, whose: str, owners: list[int], asked: list[tuple[int, int, bool]]
) -> None:
    database = one_database
    empty(database)
    fill(database, owners, asked)
    before = cells(database)
    by_user = whose == "ana-lopez"
    theirs = [
        f"conv-{number}-{owner}"
        for number, owner in enumerate(owners)
        if (owner == 0 if by_user else number == 0) and any(c % len(owners) == number for c, _, _ in asked)
    ]
    with database.reading() as connection:
        mine = sa.select(requests.c.msg_id).where(requests.c.conversation_id.in_(theirs))
        texts = {*theirs, *connection.scalars(mine), *(f"task-{name}" for name in theirs)}
    if by_user:
        texts.add("ana-lopez")
        done = delete(database, DeletionScope(user="ana-lopez"), role="command", now=5.0)
    elif not theirs:
        return
    else:
        done = delete(database, DeletionScope(conversation=theirs[0]), role="command", now=5.0)

    after = cells(database)
    assert not [row for rows in after.values() for row in rows if mentions(row, texts)]
    assert done.conversations == len(theirs) == len(before["conversations"]) - len(after["conversations"])
    for table, rows in before.items():
        kept = [row for row in rows if not mentions(row, texts)]
        if table in ("conversations", "requests", "exposures", "commits"):
            assert [row for row in kept if row in after[table]] == kept, table
    opinions = [row for row in before["feedback"] if not mentions(row, texts)]
    gone = {row[0] for row in before["feedback_messages"] if mentions(row, texts)}
    assert after["feedback"] == [row for row in opinions if row[0] not in gone]
    assert len(after["turns"]) == len(after["requests"])
    assert len(after["audit"]) == len(before["audit"]) + (done.conversations > 0 or done.feedback > 0)


def test_the_versions_that_saw_it_are_named_and_nothing_else_about_it_is(database: Database) -> None:
    with database.writing() as connection:
        first = add_request(connection, "msg-a", "conv-a", "ana's secret", user="ana")
        other = add_request(connection, "msg-b", "conv-b", "bo's secret", user="bo")
        add_version(connection, 1, 0, {"e1": (first, ["msg-a", "msg-b"])})
        add_version(connection, 2, 1, {"e2": (other, ["msg-b"])})
        add_version(connection, 3, 0, {})
        add_version(connection, 4, 2, {})
    done = delete(database, DeletionScope(user="ana"), role="command", now=9.0)
    assert (done.conversations, done.requests, done.versions, done.heirs) == (1, 1, [1], [2, 4])
    with database.reading() as connection:
        (line,) = audit.lines(connection, what="deleted")
        assert (line.role, line.time, line.subject) == ("command", 9.0, None)
        assert line.details["versions"] == [1] and line.details["heirs"] == [2, 4] and line.details["by"] == "user"
        assert "ana" not in repr(line)
        assert connection.scalars(sa.select(samples.c.episode_id)).all() == ["e2"]
    assert [row[0] for row in cells(database)["episodes"]] == ["e1", "e2"]  # the first has bo's answer too
    again = delete(database, DeletionScope(user="ana"), role="command", now=10.0)
    assert again.conversations == again.requests == again.feedback == 0
    with database.reading() as connection:
        assert len(list(audit.lines(connection, what="deleted"))) == 1


@pytest.mark.parametrize("rated", [False, True])
def test_conversations_that_name_nobody_and_that_the_person_rated_are_offered(database: Database, rated: bool) -> None:
    with database.writing() as connection:
        for name, user in (("own", "ana-lopez"), ("nobody", None), ("nobody-2", None), ("bo", "bo")):
            turn = add_request(connection, f"msg-{name}", name, "x", user=user)
            for state in ("counts", "trained"):
                add_feedback(connection, "ana-lopez", [f"msg-{name}"], state=state, reason="v7")
        add_request(connection, "msg-other", "other", "x")
        add_version(connection, 7, 0, {"e": (turn, ["msg-bo"])})
        add_version(connection, 8, 7, {})
    done = delete(database, DeletionScope(user="ana-lopez", rated=rated), role="command", now=9.0)
    assert (done.feedback, done.versions, done.heirs) == (8, [7], [8]), "she had a say in what bo's answer was worth"
    assert (done.kept, done.kept_feedback) == (([], 0) if rated else (["nobody", "nobody-2"], 4))
    after = cells(database)
    assert {row[0] for row in after["conversations"]} == {"bo", "other"} | (set() if rated else set(done.kept))
    assert not [row for rows in after.values() for row in rows if "ana-lopez" in repr(row)]
    if done.kept:
        assert delete(database, DeletionScope(conversation=done.kept), role="command", now=10.0).conversations == 2


def test_a_commit_that_waits_for_what_is_deleted_does_not_become_one_of_everything(database: Database) -> None:
    with database.writing() as connection:
        add_request(connection, "msg-a", "conv-a", "x", user="ana", task_id="t-ana")
        add_request(connection, "msg-b", "conv-b", "x", user="bo", task_id="t-both")
        add_request(connection, "msg-c", "conv-c", "x", user="ana", task_id="t-both")
        for task in ("t-ana", "t-both"):
            add(connection, commits, by="client", state="asked", task_id=task)
    delete(database, DeletionScope(user="ana"), role="command", now=9.0)
    with database.reading() as connection:
        found = connection.scalars(sa.select(commits.c.task_id).order_by(commits.c.id))
        assert found.all() == [GONE, "t-both"]


def test_what_is_old_expires_with_feedback_that_found_no_answer(database: Database) -> None:
    with database.writing() as connection:
        for name, answered in (("old", 1.0), ("new", 40 * DAY)):
            add_request(connection, f"msg-{name}", name, "x", answered=answered)
            add_feedback(connection, "ana", [f"msg-{name}"], received=answered)
            add_feedback(connection, "ana", [f"never-{name}"], received=answered)
    done = expire(database, 30.0, now=40 * DAY)
    assert (done.conversations, done.feedback) == (1, 2)
    with database.reading() as connection:
        assert connection.scalars(sa.select(requests.c.msg_id)).all() == ["msg-new"]
        assert connection.scalars(sa.select(feedback.c.received)).all() == [40 * DAY] * 2
    assert vars(expire(database, 30.0, now=40 * DAY))["conversations"] == 0


def test_of_what_is_deleted_nothing_is_left_in_the_files_of_sqlite(tmp_path: Path) -> None:
    database = open_database(f"sqlite:///{tmp_path}/store.db")
    with database.writing() as connection:
        add_request(connection, "msg-a", "conv-a", "a secret that must go " * 500, user="ana")
    delete(database, DeletionScope(user="ana"), role="command", now=1.0)
    for path in tmp_path.iterdir():
        assert b"must go" not in path.read_bytes() and b"conv-a" not in path.read_bytes(), path
    database.close()
    sqlite3.connect(tmp_path / "store.db").close()


def test_a_conversation_that_is_not_there_is_an_error_with_the_nearest(database: Database) -> None:
    with database.writing() as connection:
        add_request(connection, "msg-a", "conv-anna", "x")
    with pytest.raises(StoreError, match=r"no conversation 'conv-ana'\. Did you mean 'conv-anna'"):
        delete(database, DeletionScope(conversation="conv-ana"), role="command", now=1.0)
    with pytest.raises(StoreError, match=r"no conversation 'gone'"):
        delete(database, DeletionScope(conversation=["conv-anna", "gone"]), role="command", now=1.0)
    assert len(cells(database)["conversations"]) == 1, "all are known, or nothing is deleted"
    for wrong in ({}, {"conversation": "c", "rated": True}):
        with pytest.raises(ValueError):
            DeletionScope(**wrong)

import threading
from dataclasses import replace

import pytest

from astune.errors import StoreError
from astune.online.store import aliases, audit, leases, versions
from astune.online.store.versions import AS_CONFIGURED, ModelVersion
from astune.store.database import Database
from tests.store.databases import database as database
from tests.store.databases import url as url

FIRST = ModelVersion(1, 0, None, "v000001", "ab" * 32, 12.5, {"seed": 1}, {"reward": 0.5})


def test_before_the_first_version_the_model_is_as_configured(database: Database) -> None:
    with database.reading() as connection:
        assert versions.newest(connection) == AS_CONFIGURED
        assert versions.find(connection, 0) == AS_CONFIGURED
        assert versions.find(connection, 1) is None
        assert versions.every(connection) == []


def test_a_version_is_read_as_it_was_added(database: Database) -> None:
    with database.writing() as connection:
        versions.add(connection, FIRST)
        versions.add(connection, replace(FIRST, number=2, parent=1))
    with database.reading() as connection:
        assert versions.find(connection, 1) == FIRST
        assert versions.newest(connection).number == 2
        assert [each.number for each in versions.every(connection)] == [1, 2]


@pytest.mark.parametrize(("number", "parent"), [(1, 0), (3, 1), (3, 2)])
def test_a_version_follows_the_newest_alone(database: Database, number: int, parent: int) -> None:
    with database.writing() as connection:
        versions.add(connection, FIRST)
    with pytest.raises(StoreError, match="the newest is 1 by now"), database.writing() as connection:
        versions.add(connection, replace(FIRST, number=number, parent=parent))
    with database.reading() as connection:
        assert versions.every(connection) == [FIRST]


def test_a_version_may_be_made_from_an_older_one_as_where_the_newest_is_damaged(database: Database) -> None:
    with database.writing() as connection:
        versions.add(connection, FIRST)
        versions.add(connection, replace(FIRST, number=2, parent=0))
    with database.reading() as connection:
        newest = versions.newest(connection)
        assert (newest.number, newest.parent) == (2, 0)
        assert versions.parent_of(connection, newest) == versions.find(connection, 0)


def test_an_alias_moves_only_from_where_it_was_expected(database: Database) -> None:
    with database.writing() as connection:
        versions.register(connection, AS_CONFIGURED)
        versions.add(connection, FIRST)
        aliases.promote(connection, 1, role="train", why="made", now=2.0)
        assert (aliases.version_of(connection, "champion"), aliases.version_of(connection, "previous")) == (1, 0)
        aliases.move(connection, "v1.0", to=1, expected=None, role="command", why="a name", now=3.0)
        assert aliases.resolve(connection, "v1.0") == aliases.resolve(connection, "v1") == FIRST
        said = list(audit.lines(connection, what=aliases.MOVED))
    assert [(line.subject, line.details["version"]) for line in said] == [("champion", 1), ("previous", 0), ("v1.0", 1)]
    for name, to, expected, error in [
        ("champion", 0, 0, "champion was moved meanwhile: it is v1 by now"),
        ("v1.0", None, 0, "moved meanwhile"),
        ("v1.0", 1, None, "moved meanwhile"),
        ("stable", 9, None, "there is no version 9"),
        ("v7", 1, None, "expected a letter"),
    ]:
        with pytest.raises(StoreError, match=error), database.writing() as connection:
            aliases.move(connection, name, to=to, expected=expected, role="command", why="a test", now=4.0)
    with pytest.raises(StoreError, match="Did you mean 'champion'"), database.reading() as connection:
        aliases.resolve(connection, "champoin")


def test_a_lease_is_one_holders_until_it_runs_out_or_is_given_back(database: Database) -> None:
    with database.writing() as connection:
        assert leases.take(connection, "train", "a", now=0.0, seconds=30.0)
        assert not leases.take(connection, "train", "b", now=29.0, seconds=30.0)
        assert leases.take(connection, "other", "b", now=29.0, seconds=30.0)
        assert leases.keep(connection, "train", "a", now=20.0, seconds=30.0)
        assert not leases.take(connection, "train", "b", now=49.0, seconds=30.0)
        assert not leases.keep(connection, "train", "a", now=50.0, seconds=30.0), "it has run out"
        assert leases.take(connection, "train", "b", now=50.0, seconds=30.0)
        assert leases.find_holder(connection, "train", now=51.0) == "b"
        leases.give_back(connection, "train", "a")
        assert leases.find_holder(connection, "train", now=51.0) == "b", "only the holder gives it back"
        leases.give_back(connection, "train", "b")
        assert leases.take(connection, "train", "a", now=51.0, seconds=30.0)


def test_of_many_who_ask_at_once_one_gets_the_lease(database: Database) -> None:
    got: list[bool] = []

    def ask(name: str) -> None:
        with database.writing() as connection:
            got.append(leases.take(connection, "train", name, now=0.0, seconds=30.0))

    threads = [threading.Thread(target=ask, args=(str(number),)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(got) == [False] * 7 + [True]

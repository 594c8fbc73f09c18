import pytest

from astune.errors import StoreError
from astune.online.store import aliases, audit, releases, versions
from astune.online.store.releases import Release
from astune.online.store.versions import AS_CONFIGURED, ModelVersion
from astune.store.database import Database
from tests.store.databases import database as database
from tests.store.databases import url as url


def begin(database: Database, challenger: int = 1) -> Release:
    with database.writing() as connection:
        versions.register(connection, AS_CONFIGURED)
        for number in (1, 2):
            if versions.find(connection, number) is None:
                versions.add(connection, ModelVersion(number, 0))
        return releases.open_release(connection, challenger, {"alpha": 0.05}, role="release", now=10.0)


def test_one_release_is_open_at_a_time_and_the_challenger_has_its_alias(database: Database) -> None:
    release = begin(database)
    assert (release.champion, release.challenger, release.state, release.share) == (0, 1, "staged", 0.0)
    with pytest.raises(StoreError, match="v2 cannot be tested now: v1 is"):
        begin(database, 2)
    with pytest.raises(StoreError, match="v0 is champion"):
        begin(database, 0)
    with database.reading() as connection:
        assert releases.find_open(connection) == release
        assert aliases.version_of(connection, "challenger") == 1


def test_a_release_goes_on_only_from_where_it_was_read_and_never_narrows(database: Database) -> None:
    begun = begin(database)
    with database.writing() as connection:
        tested = releases.advance(connection, begun, "testing", stage=0, share=0.05, why="no gate", now=20.0)
        noted = releases.note(connection, tested, {"looks": []}, "3 of 50 users")
        assert releases.find_open(connection) == noted
    with pytest.raises(StoreError, match="was changed meanwhile"), database.writing() as connection:
        releases.advance(connection, begun, "testing", stage=0, share=0.05, why="again", now=21.0)
    with pytest.raises(StoreError, match=r"is 0\.05 and cannot narrow to 0\.01"), database.writing() as connection:
        releases.advance(connection, noted, "testing", stage=1, share=0.01, why="by mistake", now=22.0)


def test_a_release_that_ended_stays_as_it_ended(database: Database) -> None:
    begun = begin(database)
    with database.writing() as connection:
        assert releases.end_release(connection, 2, state="held", reason="?", role="command", now=30.0) is None
        releases.end_release(connection, 1, state="rolled_back", reason="errors", role="release", now=30.0)
        assert releases.find_open(connection) is None
        assert aliases.version_of(connection, "challenger") is None
        (ended,) = releases.recent(connection, 5)
        assert (ended.state, ended.reason, ended.ended, ended.is_open) == ("rolled_back", "errors", 30.0, False)
        (line,) = audit.lines(connection, what=releases.ENDED)
        assert (line.subject, line.role, line.details["why"]) == ("1", "release", "errors")
    with pytest.raises(StoreError, match="was changed meanwhile"), database.writing() as connection:
        releases.note(connection, begun, {}, None)
    assert begin(database, 2).number == begun.number + 1

"""What people do with versions, and which files stay."""

from dataclasses import replace

import pytest
import sqlalchemy as sa

from astune.config.online import OnlineConfig
from astune.errors import StoreError
from astune.online.store import aliases, audit, registry, releases, succession, versions
from astune.online.store.versions import AS_CONFIGURED, ModelVersion
from astune.store.database import Database
from tests.store.databases import database as database
from tests.store.databases import url as url
from tests.store.rows import add_request

ONLINE = OnlineConfig.model_validate({"serve": {"pin_seconds": 100.0}})


@pytest.fixture
def store(database: Database) -> Database:
    """Six versions in a line, of which the fourth answers."""
    with database.writing() as connection:
        versions.register(connection, AS_CONFIGURED)
        for number in range(1, 7):
            figures = {"reward/mean": number / 10, registry.DATA_DIGEST: str(number // 2)}
            config = {"seed": 1, "trainer": {"learning_rate": number / 10}}
            row = ModelVersion(number, number - 1, None, f"v{number}", "ab", 1.0, config, figures)
            versions.add(connection, row)
        aliases.promote(connection, 4, role="train", why="made", now=1.0)
    return database


def find(connection: sa.Connection, number: int) -> ModelVersion:
    found = versions.find(connection, number)
    assert found is not None
    return found


def test_the_files_stay_that_somebody_needs(store: Database) -> None:
    with store.writing() as connection:
        aliases.move(connection, "stable", to=1, expected=None, role="command", why="a test", now=1.0)
        add_request(connection, "m", "c", "Hi", version=2, answered=950.0)
        kept = registry.find_needed(connection, ONLINE, 1, 1000.0)
        assert kept.keys() == {0, 1, 2, 3, 4, 6}
        gone = registry.find_unneeded(connection, kept)
        registry.mark_pruned(connection, gone, 1000.0, "command")
        assert [version.number for version in gone] == [5]
        assert registry.find_unneeded(connection, kept) == []
        assert registry.find_needed(connection, ONLINE, 1, 1100.0).keys() == {0, 1, 3, 4, 6}, "it has rested"
        registry.give_name(connection, find(connection, 2), "v1.0", now=1.0)
        releases.open_release(connection, 6, {}, role="command", now=1.0)
        assert registry.find_needed(connection, ONLINE, 0, 1100.0).keys() == {0, 1, 2, 3, 4, 6}
        with pytest.raises(StoreError, match="v5 was pruned"):
            succession.promote(connection, find(connection, 5), why="by hand", now=1.0)


def test_a_name_is_given_once(store: Database) -> None:
    with store.writing() as connection:
        registry.give_name(connection, find(connection, 2), "v1.0", now=1.0)
        assert aliases.resolve(connection, "v1.0").number == 2
        for number, name, said in [
            (2, "v1.1", "v2 is called 'v1.0' already"),
            (3, "v1.0", "v2 is called 'v1.0' already"),
            (3, "champion", "'champion' is an alias"),
            (3, "v7", "not as v7"),
        ]:
            with pytest.raises(StoreError, match=said):
                registry.give_name(connection, find(connection, number), name, now=1.0)


def test_two_versions_differ_in_what_they_were_made_from_and_by(store: Database) -> None:
    with store.writing() as connection:
        versions.add(connection, replace(find(connection, 3), number=7, parent=1))
        found = registry.compare(connection, find(connection, 2), find(connection, 7))
    assert (found.ancestor, found.steps, found.same_data) == (1, 2, True)
    assert found.config == {"trainer.learning_rate": (0.2, 0.3)}
    assert found.figures == {"reward/mean": (0.2, 0.3)}


def test_a_version_is_promoted_held_and_rolled_back_by_hand(store: Database) -> None:
    def by_hand(connection: sa.Connection, number: int, to: int | None = None) -> succession.RolledBack:
        target = succession.find_target(
            connection, find(connection, number), None if to is None else find(connection, to)
        )
        said = {"forget": False, "role": "command", "why": "by hand", "now": 2.0}
        return succession.roll_back(connection, find(connection, number), target, **said)

    with store.writing() as connection:
        releases.open_release(connection, 6, {}, role="command", now=1.0)
        succession.hold(connection, find(connection, 6), role="command", why="held by hand", now=1.0)
        assert releases.find_open(connection) is None, "the test of it has ended"
        succession.promote(connection, find(connection, 6), why="by hand", now=1.0)
        assert (find(connection, 6).held, aliases.champion(connection).number) == (None, 6)
        for act, said in [
            (lambda: succession.promote(connection, find(connection, 6), why="", now=1.0), "champion already"),
            (lambda: succession.promote(connection, find(connection, 3), why="", now=1.0), "rollback v6 --to v3"),
            (lambda: succession.hold(connection, find(connection, 6), role="command", why="", now=1.0), "is champion"),
            (lambda: by_hand(connection, 5, to=6), "was made from v5"),
            (lambda: by_hand(connection, 0), "none before it"),
        ]:
            with pytest.raises(StoreError, match=said):
                act()
        assert by_hand(connection, 5) == succession.RolledBack(4, [5, 6])
        assert aliases.version_of(connection, "previous") == 3, "which is not one that was rolled back"
        assert by_hand(connection, 6).champion == 4, "it had not been champion any more"
        assert find(connection, 5).held == "rolled back: by hand"
        with pytest.raises(StoreError, match="champion was moved meanwhile: it is v4 by now, and was v6"):
            aliases.expect(connection, "champion", 6)
        said = [line.subject for line in audit.lines(connection, what="rolled back")]
        assert said == ["5", "6"]

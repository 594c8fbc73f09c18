"""What the next version is made from, and which version answers then."""

from pathlib import Path

import pytest

from astune.errors import StoreError
from astune.online.store import aliases, audit, succession, versions
from astune.online.store.versions import ModelVersion, find
from astune.store import tables
from astune.store.database import Database
from tests.online.training.world import World, config_of
from tests.online.training.world import database as database


def learn(world: World) -> list[str]:
    return [*world.rate(1.0), *world.rate(0.0)]


def roll_back(database: Database, number: int, *, forget: bool = False) -> succession.RolledBack:
    with database.writing() as connection:
        version = find(connection, number)
        assert version is not None
        target = succession.find_target(connection, version, None)
        return succession.roll_back(
            connection, version, target, forget=forget, role="command", why="it is worse", now=1.0
        )


def champion(database: Database) -> int:
    with database.reading() as connection:
        return aliases.champion(connection).number


def test_after_a_rollback_the_next_version_is_made_from_what_answers_and_learns_no_poison(
    database: Database, tmp_path: Path
) -> None:
    world = World(database, tmp_path, config_of(replay_share=0.9))
    learn(world)
    assert world.commit().version == 1
    poison = learn(world)
    assert world.commit().version == 2
    done = roll_back(database, 2, forget=True)
    assert (done.champion, done.away, done.feedback, champion(database)) == (1, [2], 2, 1)
    learn(world)
    row = world.commit()
    assert (row.version, row.base_version, champion(database)) == (3, 1, 3)
    assert [version["parent"] for version in world.rows(tables.versions)] == [0, 1, 1]
    with database.reading() as connection:
        poisoned = [each for each in world.rows(tables.feedback) if each["reason"] == "rolled_back"]
        assert [each["state"] for each in poisoned] == ["left_out"] * 2
        assert aliases.version_of(connection, "previous") == 1
    again = [each for each in world.rows(tables.episode_messages) if each["msg_id"] in poison]
    assert len(again) == 2, "it was learned from once"


def test_a_version_whose_base_is_rolled_back_while_it_is_made_is_not_made(database: Database, tmp_path: Path) -> None:
    world = World(database, tmp_path)
    learn(world)
    world.commit()
    learn(world)
    moved: list[int] = []

    def phase(name: str) -> None:
        if name == "renamed" and not moved:
            moved.append(roll_back(database, 1).champion)

    trainer = world.trainer(phase)
    world.ask()
    assert world.tick(trainer) is None and moved == [0]
    row = world.tick(trainer)
    trainer.leave()
    assert row is not None and (row.state, row.version, row.base_version) == ("made", 2, 0)
    assert champion(database) == 2


def test_with_every_commits_champion_moves_when_so_many_were_made_after_it(database: Database, tmp_path: Path) -> None:
    online = {"serve": {"every_commits": 2}, "commit": {"min_episodes": 1, "every_seconds": None}}
    world = World(database, tmp_path, config_of(astune={"online": online}))
    seen = []
    for _ in range(4):
        learn(world)
        world.commit()
        seen.append(champion(database))
    assert seen == [0, 2, 2, 4]
    assert [version["parent"] for version in world.rows(tables.versions)] == [0, 1, 2, 3]


def test_a_version_that_an_older_trainer_made_is_promoted_unless_it_was_made_from_one_that_was_rolled_back(
    database: Database, tmp_path: Path
) -> None:
    world = World(database, tmp_path)
    learn(world)
    row = world.commit()

    def add(number: int, parent: int) -> None:  # as an ASTune does that knows no aliases
        with database.writing() as connection:
            versions.add(connection, ModelVersion(number, parent, row.number, "v"))

    add(2, 1)
    trainer = world.trainer()
    world.tick(trainer)
    assert champion(database) == 2
    with database.reading() as connection:
        said = [line.details["why"] for line in audit.lines(connection, subjects=["champion"])]
        assert said[-1] == "made by a trainer that moves no alias"
    roll_back(database, 2)
    add(3, 2)
    world.tick(trainer)
    trainer.leave()
    assert champion(database) == 1


def test_what_is_made_from_a_version_by_name_begins_there_each_time(database: Database, tmp_path: Path) -> None:
    world = World(database, tmp_path, config_of(base="v0"))
    for _ in range(2):
        learn(world)
        world.commit()
    assert [version["parent"] for version in world.rows(tables.versions)] == [0, 0]
    assert champion(database) == 2
    world.config = config_of(base="champoin")
    with pytest.raises(StoreError, match=r"astune.online.commit.base: .*Did you mean 'champion'"):
        world.commit()

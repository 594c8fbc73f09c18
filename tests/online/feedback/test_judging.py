"""A judge scores a share of what nobody rated."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from astune.config.online import FeedbackConfig
from astune.errors import ConfigError, JudgeError
from astune.online.service.metrics import feedback_metrics
from astune.online.store.feedback.judgements import Judgement, judgements
from astune.online.training.judging import UnratedJudge, share_of
from astune.store.database import open_database
from astune.support.http.metrics import write_metrics
from astune.types import Episode, Task
from tests.online.training.world import World, config_of

ASKED: list[tuple[str, str, int]] = []


def fine(task: Task, episode: Episode) -> float:
    """A judge of one's own."""
    assert episode.output is not None
    ASKED.append((task.query, episode.output.answer, len(episode.turns)))
    return 0.75


def fails(task: Task, episode: Episode) -> float:
    ASKED.append((task.query, "", 0))
    raise JudgeError("I cannot tell")


def too_much(task: Task, episode: Episode) -> float:
    return 7.0


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    ASKED.clear()
    with closing(open_database(f"sqlite:///{tmp_path}/online.db")) as database:
        yield World(database, tmp_path)


def judge_of(world: World, judge: Any = fine, share: float = 1.0) -> UnratedJudge:
    online = {"commit": {"min_episodes": 1}, "feedback": {"judge_share": share, "judge_after_seconds": 100}}
    protocol = None if judge is None else f"{__name__}:{judge.__name__}"
    world.config = config_of(astune={"online": online, "task_judge": {"judge_protocol": protocol}})
    return UnratedJudge(world.config.astune, world.database, clock=world.clock)


def judged(world: World) -> list[Judgement]:
    with world.database.reading() as connection:
        return judgements(connection, FeedbackConfig())


async def test_an_exchange_that_nobody_rated_is_judged_once_it_has_ended(world: World) -> None:
    world.answer("a", conversation="c")
    world.answer("b", conversation="c", follows="a", exchange="a")
    world.answer("rated")
    world.say(0.5, about=["rated"])
    judge = judge_of(world)
    assert (await judge.judge_due()).scored == 0
    world.now += 100
    assert (await judge.judge_due()).scored == 1
    assert ASKED == [("what?", "4", 2)]
    found = {judgement.msg_ids: judgement for judgement in judged(world)}
    assert (found["a", "b"].reward, found["a", "b"].authors) == (0.75, (f"judge:{__name__}:fine",))
    assert found[("rated",)].reward == 0.5
    assert (await judge.judge_due()).scored == 0
    assert (await judge_of(world).judge_due()).scored == 0, "after a restart"


async def test_what_a_person_says_later_takes_the_place_of_the_judge_s(world: World) -> None:
    world.answer("m")
    world.now += 100
    assert (await judge_of(world).judge_due()).scored == 1
    world.say(0.0, about=["m"])
    (judgement,) = judged(world)
    assert (judgement.reward, judgement.authors) == (0.0, ("ana",))


@pytest.mark.parametrize("judge", [fails, too_much])
@pytest.mark.fault(
    "Online training",
    "The judge of unrated answers fails",
    "It is counted, asked again three times at most, and gives no reward",
)
async def test_a_judge_that_fails_is_counted_asked_again_and_gives_no_reward(world: World, judge: Any) -> None:
    world.answer("m")
    world.now += 100
    unrated = judge_of(world, judge)
    for _ in range(5):
        await unrated.judge_due()
        await unrated.judge_due()
        world.now += 100
    await judge_of(world, judge).judge_due()
    assert judged(world) == []
    with world.database.reading() as connection:
        assert b"astune_judge_failures_total 3.0\n" in write_metrics(feedback_metrics(connection))


async def test_the_share_is_the_same_after_a_restart_and_about_what_was_asked_for(world: World) -> None:
    names = [f"m{number}" for number in range(40)]
    for name in names:
        world.answer(name)
    world.now += 100
    assert (await judge_of(world, share=0.5).judge_due()).scored == len(judged(world))
    assert {one.msg_ids[0] for one in judged(world)} == {name for name in names if share_of(name) < 0.5}
    assert (await judge_of(world, share=0.5).judge_due()).scored == 0
    assert abs(sum(share_of(f"chatcmpl-{number}") < 0.3 for number in range(10_000)) / 10_000 - 0.3) < 0.02


async def test_without_a_share_no_judge_is_needed_and_with_one_it_is(world: World) -> None:
    world.answer("m")
    world.now += 100
    assert (await judge_of(world, None, share=0.0).judge_due()).scored == 0
    with pytest.raises(ConfigError, match="judge_share needs a judge"):
        judge_of(world, None)


async def test_a_trainer_at_work_has_what_nobody_rated_judged(world: World) -> None:
    world.answer("m")
    world.now += 100
    judge_of(world)
    trainer = world.trainer()
    running = asyncio.create_task(trainer.run(lambda _: None))
    while not judged(world) and not running.done():
        await asyncio.sleep(0)
    running.cancel()
    await asyncio.wait([running])
    assert [one.reward for one in judged(world)] == [0.75]


def test_an_answer_that_came_after_its_feedback_makes_a_commit_due(world: World) -> None:
    world.config = config_of(every_episodes=1)
    assert world.say(1.0, about=["m"]).state == "waits"
    trainer = world.trainer()
    assert world.tick(trainer) is None
    world.answer("m")
    made = world.tick(trainer)
    assert made is not None and made.by == "episodes"

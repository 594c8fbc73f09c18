"""A judge that compares the attempts at a task is asked when all have ended."""

import asyncio
import re
from collections.abc import Sequence
from itertools import count

import pytest

from astune.config.judges import TaskJudgeConfig
from astune.errors import JudgeError, TaskError
from astune.rollout.group import run_group
from astune.rollout.verdict import ask_group
from astune.task_judge import TaskJudges
from astune.types import Episode, Sampling, StopReason, Task, Verdict, WorkflowOutput

TASK = Task("t1", "How long?")


class Longest:
    """Reward 1 for the longest answer, 0 for the others."""

    def __init__(self):
        self.asked = []

    async def judge(self, task: Task, episode: Episode) -> Verdict:
        return Verdict(-1.0, judged_by="alone")

    async def judge_group(self, task: Task, episodes: Sequence[Episode]) -> Sequence[Verdict | Exception]:
        self.asked.append([episode.episode_id for episode in episodes])
        lengths = [len(episode.output.answer) for episode in episodes]
        return [Verdict(float(length == max(lengths)), judged_by="Longest") for length in lengths]


def answers(**odd):
    """A workflow that answers with as many letters as the attempt's number; `odd` says which attempt raises, or gives
    its reward itself."""
    numbers = count()

    async def workflow(task, tuner):
        number = next(numbers)
        await asyncio.sleep(0)
        if number == odd.get("raises"):
            raise ValueError("no answer")
        return WorkflowOutput(answer="a" * number, reward=9.0 if number == odd.get("rewards") else None)

    return workflow


def group(setup, n=4, **options):
    return run_group(TASK, n, setup, seed=1, sampling=Sampling(max_tokens=8), **options)


async def test_all_attempts_are_judged_at_once_after_the_last(make_setup):
    judge, ended = Longest(), []
    found = await group(make_setup(answers(), judge=judge), on_episode=ended.append)
    assert judge.asked == [[f"group/t1/{i}" for i in range(4)]]
    assert [episode.reward for episode in found.episodes] == [0.0, 0.0, 0.0, 1.0]
    assert ended == list(found.episodes), "with their verdicts"


async def test_failed_attempts_and_rewards_of_the_workflow_are_not_for_the_judge(make_setup):
    judge = Longest()
    found = await group(make_setup(answers(raises=3, rewards=1), judge=judge))
    assert judge.asked == [["group/t1/0", "group/t1/2"]]
    assert [episode.reward for episode in found.episodes] == [0.0, 9.0, 1.0, None]
    assert found.episodes[3].error.stage == "workflow"


async def test_a_lone_attempt_is_judged_alone(make_setup):
    judge = Longest()
    found = await group(make_setup(answers(), judge=judge), n=1)
    assert (judge.asked, found.episodes[0].verdict.judged_by) == ([], "alone")


@pytest.mark.fault("Judges", "a judge of groups raises", "no attempt of the group has a reward")
async def test_a_group_judge_that_raises_leaves_every_attempt_without_a_reward(make_setup):
    class Fails(Longest):
        async def judge_group(self, task, episodes):
            raise JudgeError("no model answers")

    found = await group(make_setup(answers(), judge=Fails()))
    assert [episode.verdict for episode in found.episodes] == [None] * 4
    assert {(episode.stop_reason, episode.error.stage) for episode in found.episodes} == {(StopReason.ERROR, "judge")}


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ([Verdict(1.0)], "expected a verdict for each of 2 episodes"),
        (None, "expected a verdict for each of 2 episodes"),
        ([Verdict(float("nan")), 1.0], "must be a finite number|expected a Verdict"),
    ],
)
async def test_what_is_no_verdict_is_an_error_of_its_episode(answer, message, make_setup):
    class Odd(Longest):
        async def judge_group(self, task, episodes):
            return answer

    found = await group(make_setup(answers(), judge=Odd()), n=2)
    for episode in found.episodes:
        assert episode.verdict is None
        assert re.search(message, episode.error.message)


@pytest.mark.fault("Judges", "a judge of groups cannot tell of one attempt", "the others keep their rewards")
async def test_one_attempt_that_cannot_be_judged_leaves_the_others_their_rewards(make_setup):
    class Partly(Longest):
        async def judge_group(self, task, episodes):
            return [Verdict(0.5), JudgeError("unreadable")]

    first, second = (await group(make_setup(answers(), judge=Partly()), n=2)).episodes
    assert (first.reward, second.reward, second.error.message) == (0.5, None, "unreadable")


async def test_a_group_judge_has_its_time(make_setup):
    class Slow(Longest):
        async def judge_group(self, task, episodes):
            await asyncio.sleep(60)

    found = await group(make_setup(answers(), judge=Slow(), judge_timeout=0.05), n=2)
    assert ["took longer than 0.05 s" in episode.error.message for episode in found.episodes] == [True, True]


async def test_nobody_is_asked_about_nothing():
    assert await ask_group(Longest(), [], 1.0) == []


async def test_a_task_that_names_its_judge_gets_it(make_setup):
    setup = make_setup(answers(), judge=Longest(), task_judges=TaskJudges(TaskJudgeConfig()))
    sampling = Sampling(max_tokens=8)
    math = Task("m", "2+2?", answer="aa", metadata={"scorer": "math"})
    found = await run_group(math, 3, setup, seed=1, sampling=sampling)
    assert [episode.verdict.judged_by for episode in found.episodes] == ["MathAnswerAsJudge"] * 3
    with pytest.raises(TaskError, match="unknown scorer"):
        await run_group(Task("m", "q", metadata={"scorer": "nobody"}), 1, setup, seed=1, sampling=sampling)

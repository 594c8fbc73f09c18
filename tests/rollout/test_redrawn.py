"""Attempts that are played again with the answers of one agent drawn anew."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest

from astune.context_tracker.prompt.chat_format import ChatFormat
from astune.context_tracker.scripted_policy import make_generation
from astune.context_tracker.tracker import ChatRequest
from astune.errors import ConfigError
from astune.rollout.group import run_groups
from astune.rollout.redrawn import check_judges, count_again, play_redrawn
from astune.task_judge.judge_base import GroupJudge
from astune.types import Episode, Generation, Group, Sampling, Task, WorkflowOutput

TASK = Task("t1", "Pick one.")


@dataclass
class Seeded:
    """A policy that says a digit, drawn from the seed of the call."""

    chat_format: ChatFormat
    context_length: int = 4096

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling) -> Generation:
        digit = str(random.Random(sampling.seed).randrange(10))
        return make_generation(
            (*self.chat_format.encode(digit), self.chat_format.stop_token_ids[0]), sampling, self.chat_format
        )


async def say(tuner, name, text, **options):
    answer = await tuner.chat(ChatRequest([{"role": "user", "content": text}]), name=name, **options)
    return answer.message["content"]


async def team(task, tuner):
    """The planner's digit reaches the worker; who checks is not trained. The reward is the sum of the two."""
    plan = await say(tuner, "planner", task.query)
    await say(tuner, "checker", plan, trainable=False)
    return WorkflowOutput(reward=float(plan) + float(await say(tuner, "worker", plan)))


@pytest.fixture
def play(make_setup, chat_format):
    async def play(workflow) -> tuple[list[Group], list[Group], list[Episode]]:
        setup = replace(make_setup(workflow), policy=Seeded(chat_format))
        how = {"seed": 7, "sampling": Sampling(8), "max_concurrent": 4}
        groups = await run_groups([TASK], 4, setup, label="train/1", **how)
        ended = []
        told, again = await play_redrawn(groups, setup, [""], on_episode=ended.append, **how)
        assert sorted(e.episode_id for e in ended) == sorted(e.episode_id for e in again)
        assert count_again(groups, [""]) == len(again)
        return groups, told, again

    return play


async def test_all_but_the_answers_of_one_agent_is_as_it_was(play):
    groups, (told,), again = await play(team)
    by_name = {each.episode_id: each for each in again}
    for before, after in zip(groups[0].episodes, told.episodes, strict=True):
        planner, worker = (by_name[f"{before.episode_id}~{agent}"] for agent in ("planner", "worker"))
        assert worker.turns[:2] == before.turns[:2]
        assert planner.turns[2].output_ids == before.turns[2].output_ids  # its own seed is the same
        assert after == replace(before, metrics=after.metrics)
        known = {name: value for name, value in after.metrics.items() if name.startswith("redrawn/")}
        assert known == {"redrawn/planner": planner.reward, "redrawn/worker": worker.reward}
    assert {each.episode_id for each in again if "checker" in each.episode_id} == set()
    assert any(each.turns[2].output_ids != groups[0].episodes[0].turns[2].output_ids for each in again)


@pytest.mark.fault(
    "Tools and environments", "a world goes another way when played again", "the attempt is left out, and counted"
)
async def test_what_goes_another_way_or_is_not_judged_is_not_told(play):
    calls = itertools.count()

    async def restless(task, tuner):
        plan = await say(tuner, "planner", task.query)
        return WorkflowOutput(reward=float(await say(tuner, "worker", f"{plan} {next(calls)}")))

    async def fails(task, tuner):
        await say(tuner, "planner", task.query)
        if next(calls) >= 4:
            raise ValueError("no second time")
        return WorkflowOutput(reward=1.0)

    _, (told,), _ = await play(restless)
    for each in told.episodes:
        assert "redrawn/planner" in each.metrics and "redrawn/worker" not in each.metrics
    calls = itertools.count()
    _, (told,), again = await play(fails)
    assert len(again) == 4 and not any("redrawn/planner" in each.metrics for each in told.episodes)


def test_a_judge_that_compares_attempts_is_refused(make_setup):
    class Compares(GroupJudge):
        async def judge_group(self, task, episodes):
            return []

    with pytest.raises(ConfigError, match="each attempt is judged by itself, and the judge of task 't1' compares"):
        check_judges([TASK], 2, make_setup(team, judge=Compares()))

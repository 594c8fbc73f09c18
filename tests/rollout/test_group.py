import asyncio

import pytest

from astune.rollout.group import episode_seed, run_group, run_groups
from astune.types import Sampling, StopReason, Task, WorkflowOutput

TASKS = [Task(f"t{i}", f"What is {i} + {i}?", answer=str(2 * i)) for i in range(4)]
HI = [{"role": "user", "content": "Hi"}]
SAMPLING = Sampling(max_tokens=64)


async def ask(task, tuner):
    messages = [{"role": "user", "content": task.query}]
    answer = await tuner.openai_client().chat.completions.create(model="m", messages=messages)
    return WorkflowOutput(answer=answer.choices[0].message.content)


def solve(prompt):
    return str(2 * next(i for i in range(4) if f"{i} + {i}?" in prompt))


async def rollout(setup, n=3, **options):
    values = {"seed": 7, "sampling": SAMPLING, "max_concurrent": 64, "label": "train/5", **options}
    return await run_groups(TASKS, n, setup, **values)


async def test_groups_keep_the_order_of_tasks_and_episodes_their_names(make_setup):
    groups = await rollout(make_setup(ask, solve))
    assert [group.task.task_id for group in groups] == ["t0", "t1", "t2", "t3"]
    assert [[episode.episode_id for episode in group.episodes] for group in groups] == [
        [f"train/5/t{t}/{i}" for i in range(3)] for t in range(4)
    ]
    assert all(episode.reward == 1.0 for group in groups for episode in group.episodes)


@pytest.mark.parametrize("max_concurrent", [1, 5])
async def test_never_more_episodes_are_under_way_than_allowed_and_all_places_are_used(make_setup, max_concurrent):
    running, most = 0, 0

    async def workflow(task, tuner):
        nonlocal running, most
        running += 1
        most = max(most, running)
        for _ in range(5):
            await asyncio.sleep(0)
        running -= 1
        return WorkflowOutput(reward=1.0)

    await rollout(make_setup(workflow), max_concurrent=max_concurrent)
    assert most == max_concurrent


@pytest.mark.fault("Agents and the engine", "one episode of many fails", "all others end as they would have")
async def test_a_failed_episode_stops_no_other(make_setup):
    async def workflow(task, tuner):
        if task.task_id == "t1":
            raise ValueError("bad luck")
        return await ask(task, tuner)

    groups = await rollout(make_setup(workflow, solve))
    reasons = [[episode.stop_reason for episode in group.episodes] for group in groups]
    assert reasons == [[StopReason.ERROR if t == 1 else StopReason.COMPLETED] * 3 for t in range(4)]


async def test_seeds_depend_on_nothing_but_the_seed_and_the_name_of_the_episode(make_setup):
    async def seeds(**options):
        setup = make_setup(ask, solve)
        await rollout(setup, **options)
        return sorted(sampling.seed for _, sampling in setup.policy.calls)

    first = await seeds()
    assert len(set(first)) == 12
    assert await seeds(max_concurrent=1) == first
    assert not set(await seeds(seed=8)) & set(first)
    assert not set(await seeds(label="train/6")) & set(first)


def test_the_seed_of_an_episode_is_the_same_in_every_process():
    assert episode_seed(42, "train/0/t1/0") == 254347018315212
    assert episode_seed(42, "train/0/t1/1") != episode_seed(42, "train/0/t1/0")


async def test_on_episode_sees_each_episode_as_it_ends(make_setup):
    finished = []
    groups = await rollout(make_setup(ask, solve), on_episode=finished.append)
    assert len(finished) == 12
    assert {episode.episode_id for episode in finished} == {e.episode_id for g in groups for e in g.episodes}


async def test_an_error_outside_of_episodes_stops_all_of_them(make_setup):
    ended = 0

    async def workflow(task, tuner):
        nonlocal ended
        try:
            if task.task_id != "t0":
                await asyncio.Event().wait()
            return WorkflowOutput(reward=1.0)
        finally:
            ended += 1

    def full_disk(episode):
        raise OSError("no space left")

    before = asyncio.all_tasks()
    with pytest.raises(OSError, match="no space left"):
        await rollout(make_setup(workflow), on_episode=full_disk)
    assert ended == 12
    assert asyncio.all_tasks() == before


async def test_cancelling_a_rollout_cancels_every_episode(make_setup):
    begun, ended = asyncio.Semaphore(0), 0

    async def workflow(task, tuner):
        nonlocal ended
        begun.release()
        try:
            await asyncio.Event().wait()
        finally:
            ended += 1

    before = asyncio.all_tasks()
    job = asyncio.create_task(rollout(make_setup(workflow), max_concurrent=5))
    for _ in range(5):
        await begun.acquire()
    job.cancel()
    with pytest.raises(asyncio.CancelledError):
        await job
    assert ended == 5
    assert asyncio.all_tasks() == before


async def test_attempts_in_turn_begin_when_the_one_before_has_ended_and_may_go_on(make_setup):
    ended = []

    async def names():
        while len(ended) < 3:
            yield f"again/{len(ended)}"

    setup = make_setup(ask, solve)
    group = await run_group(TASKS[2], 1, setup, seed=7, sampling=SAMPLING, on_episode=ended.append, in_turn=names())
    assert [episode.episode_id for episode in group.episodes] == ["again/0", "again/1", "again/2"]
    assert ended == list(group.episodes)


async def test_one_group_can_be_run_by_itself(make_setup):
    group = await run_group(TASKS[2], 2, make_setup(ask, solve), seed=7, sampling=SAMPLING)
    assert group.task is TASKS[2]
    assert [episode.output.answer for episode in group.episodes] == ["4", "4"]

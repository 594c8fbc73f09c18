"""A task's environment, stepped by hand."""

import asyncio
from dataclasses import replace

import pytest

from astune.clients.env_service import EnvInstance, EnvServiceClient, EnvState
from astune.errors import RolloutError, WorkflowError
from astune.testing import EnvServer
from astune.types import Task
from astune.workflow.environment import EnvironmentDone, TaskEnvironment
from tests.environment.corridor import Corridor


@pytest.fixture
def corridor():
    return Corridor()


@pytest.fixture
async def env(corridor):
    with EnvServer([corridor]) as server:
        client = EnvServiceClient(server.url, retries=0)
        first = await client.create("corridor", "a", "i")
        yield TaskEnvironment(client, EnvInstance(server.url, "i"), first, [])


async def test_it_shows_what_the_agent_starts_from_and_adds_up_rewards(env):
    assert [message["role"] for message in env.messages] == ["system", "user"]
    assert (env.query, env.done, env.reward) == ("Go right.", False, 0.0)
    state = await env.step("right")
    assert (state.messages[0]["content"], state.reward, state.done) == ("place 1", 0.5, False)
    assert await env.call("move", {"direction": "right"}) == "place 2"
    state = await env.step({"role": "assistant", "content": None, "tool_calls": [tool_call("c1"), tool_call("c2")]})
    assert [message["tool_call_id"] for message in state.messages] == ["c1", "c2"]
    assert (env.done, env.reward) == (True, 1.5)


def tool_call(name):
    return {"id": name, "type": "function", "function": {"name": "move", "arguments": '{"direction": "right"}'}}


async def test_steps_asked_for_side_by_side_are_taken_in_order(env):
    states = await asyncio.gather(*[env.step(word) for word in ("sleep", "right", "sleep", "right")])
    assert [state.messages[0]["content"] for state in states] == ["place 0", "place 1", "place 1", "place 2"]


async def test_a_service_never_gets_two_steps_at_once_nor_one_after_the_end():
    class Slow:
        numbers, busy = [], False

        async def step(self, instance, message, *, number):
            assert not self.busy
            self.busy = True
            await asyncio.sleep(0.01)
            self.busy = False
            self.numbers.append(number)
            return EnvState((), done=number == 2)

    env = TaskEnvironment(Slow(), EnvInstance("http://x", "i"), EnvState(()), [])
    ends = await asyncio.gather(*[env.step("go") for _ in range(5)], return_exceptions=True)
    assert [type(end) for end in ends] == [EnvState] * 3 + [EnvironmentDone] * 2
    assert Slow.numbers == [0, 1, 2]


async def test_after_the_end_a_step_is_refused_in_words_and_reaches_nobody(env):
    for _ in range(3):
        await env.step("right")
    with pytest.raises(WorkflowError, match="the environment is done: it ended with step 3"):
        await env.step("right")
    with pytest.raises(WorkflowError, match="the environment is done"):
        await env.call("look")
    assert env.reward == 1.5


async def test_after_the_episode_a_step_is_refused_and_one_under_way_is_cancelled(env, corridor):
    under_way = asyncio.ensure_future(env.step("sleep"))
    assert await asyncio.to_thread(corridor.something_slow_began.wait, 60)
    env.close()
    with pytest.raises(asyncio.CancelledError):
        await under_way
    with pytest.raises(RolloutError, match="the episode is over"):
        await env.step("right")


async def test_a_step_that_was_cancelled_does_not_answer_for_the_next_one(env):
    with pytest.raises(asyncio.TimeoutError):
        await asyncio.wait_for(env.step("sleep"), 0.05)
    assert (await env.step("right")).messages[0]["content"] == "place 1"


@pytest.mark.parametrize("action", [None, 3, {"role": "user", "content": "right"}, ["right"]])
async def test_what_is_no_action_is_refused(env, action):
    with pytest.raises(WorkflowError, match="takes a text or an assistant message"):
        await env.step(action)


async def test_a_service_that_leaves_out_ids_answers_in_the_order_of_the_calls():
    class Forgetful:
        async def step(self, instance, message, *, number):
            told = [{"role": "tool", "content": "one"}, {"role": "tool", "content": "two", "tool_call_id": "c1"}]
            return EnvState((*told, {"role": "user", "content": "Go on."}))

    env = TaskEnvironment(Forgetful(), EnvInstance("http://x", "i"), EnvState(()), [])
    state = await env.step({"role": "assistant", "tool_calls": [tool_call("c1"), tool_call("c2")]})
    assert [message.get("tool_call_id") for message in state.messages] == ["c2", "c1", None]


async def test_the_task_has_the_environments_question_where_it_has_none_of_its_own(env, make_tuner):
    for task, expected in [(Task("t", ""), "Go right."), (Task("t", "Mine."), "Mine.")]:
        tuner, _, _ = make_tuner([])
        tuner.task = replace(task, env_type="corridor")
        with pytest.raises(WorkflowError, match="where environments of type 'corridor' are served"):
            _ = tuner.environment
        tuner.enter(env)
        assert (tuner.task.query, tuner.task.messages, tuner.environment) == (expected, env.messages, env)


async def test_a_task_without_env_type_has_no_environment(make_tuner):
    tuner, _, _ = make_tuner([])
    with pytest.raises(WorkflowError, match="the task has no env_type"):
        _ = tuner.environment

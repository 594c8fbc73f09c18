"""Environments of an OpenEnv server that answers as the real one has answered: golden.json, and frames.py."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager

import pytest

from astune.clients.env_service import EnvInstance, EnvServiceClient
from astune.clients.own_env_service import own_service
from astune.config.tasks import EnvServiceConfig
from astune.environment.environment_base import Action, ToolCall
from astune.environment.registry import load_environment
from astune.environment.server import EnvServer
from astune.errors import ConfigError, EnvServiceError, TaskError
from astune.worlds.countdown import CountdownEnvironment
from tests.openenv.frames import replayed
from tests.rows import each_row

WRONG, RIGHT = Action("lake"), Action("ice")


def call(name, **arguments):
    return Action(tool_calls=(ToolCall("c", name, arguments),))


@contextmanager
def environment(world="guess", *, places=8, speaks=True, **options):
    with replayed(world, places, speaks) as (url, _):
        made = load_environment(f"openenv:{url}", options)
        yield made
        made.close()


@contextmanager
def instance(task_id="train-1", world="guess", **options):
    with environment(world, **options) as made:
        created = made.create(task_id, {})
        yield created
        created.close()


def told(instance, action):
    (message,) = instance.step(action).messages
    return message["content"]


def test_tasks_are_those_that_the_server_lists():
    with environment() as made:
        assert made.task_ids("train") == ["train-0", "train-1", "train-2"] and made.task_ids("test") == ["test-0"]
        with pytest.raises(TaskError, match=r"no split 'tset'\. Did you mean 'test'\? There are: train, test"):
            made.task_ids("tset")
        for unknown in ("train-3", "train-01", "train-", "1"):
            with pytest.raises(TaskError, match="no "):
                made.create(unknown, {})


def test_without_a_task_api_tasks_are_seeds_and_none_is_in_both_splits():
    with environment("tools", tasks=3) as made:
        assert made.task_ids("validation") == ["validation-0", "validation-1", "validation-2"]
        made.create("train-0", {}).close()  # with the seed that the recording has


def test_the_agent_reads_what_the_task_says_and_what_it_sees():
    with instance(instruction="rules", show=["said"]) as guess:
        assert guess.first_messages()[-1] == {
            "role": "user",
            "content": "Guess a word of 3 letters.\n\nI think of a word.",
        }
    with instance("train-0", "tools") as tools:
        assert tools.first_messages()[-1]["content"] == "What is 3 + 4?"


def test_actions_are_a_tool_and_a_text_where_a_text_is_all_there_is():
    with instance() as guess:
        (tool,) = guess.tools
        assert tool["function"]["name"] == "act" and tool["function"]["description"] == "Guess the word."
        assert tool["function"]["parameters"]["required"] == ["word"]
        assert [*tool["function"]["parameters"]["properties"]] == ["word"]
        assert told(guess, Action("lake")) == "No."
        assert told(guess, call("act", word="ice")) == "Yes."
        assert told(guess, call("act", word="ice")) == "The episode is over."


def test_tools_over_mcp_are_called_by_their_names():
    with instance("train-0", "tools") as tools:
        assert [tool["function"]["name"] for tool in tools.tools] == ["add"]
        assert told(tools, call("add", a=3, b=4)) == "7"
        assert told(tools, call("add", a="x")).startswith("Error: 2 validation errors for call[add]")
        assert told(tools, call("sub")) == "Error: Unknown tool: 'sub'"
        assert told(tools, Action("7")) == "Call one of the tools: add"


def test_an_action_that_makes_no_sense_is_answered_and_what_the_world_raises_is_its_fault():
    with instance() as guess:
        assert told(guess, Action("")) == "This is no action here. word: String should have at least 1 character"
        assert told(guess, call("act", wort="ice")).endswith(
            "word: Field required; wort: Extra inputs are not permitted"
        )
        assert told(guess, call("say")) == "There is no tool 'say'; there are: act"
        with pytest.raises(EnvServiceError, match="answers EXECUTION_ERROR: the word is lost"):
            guess.step(Action("raise"))


@pytest.mark.parametrize(("reward", "scores"), [("sum", [-0.25, 0.75]), ("last", [-0.25, 1.0])])
def test_rewards_are_summed_or_the_last_one_counts(reward, scores):
    with instance(reward=reward) as guess:
        steps = [guess.step(action) for action in (WRONG, RIGHT)]
        assert [steps[0].reward, steps[0].reward + steps[1].reward] == scores
        assert guess.evaluate() == scores[-1] and [step.done for step in steps] == [False, True]


def test_an_episode_without_a_reward_has_no_score_unless_it_is_said_what_that_is_worth():
    with instance() as guess, pytest.raises(EnvServiceError, match=r"no reward came .* in 0 steps, and the option"):
        guess.evaluate()
    with instance(unfinished=0) as guess:
        assert guess.evaluate() == 0
        guess.step(WRONG)
        assert guess.evaluate() == -0.25


@each_row(
    ("world", "options", "said"),
    [
        ("guess", {"reward": "sums"}, "reward is 'sums'; expected sum or last. Did you mean 'sum'?"),
        (
            "guess",
            {"show": ["sayd"]},
            "no field 'sayd' in observations. Did you mean 'said'? There are: ",
        ),
        ("guess", {"unfinished": "none"}, "unfinished is 'none'; expected a number"),
        ("guess", {"tasks": 3}, "tasks: the server lists its tasks itself"),
        ("tools", {"instruction": "rules"}, "instruction: the server lists no tasks"),
        ("guess", {"token_variable": "NOT_SET"}, "the variable NOT_SET is not set"),
        ("guess", {"rewards": "sum"}, "no option 'rewards'. Did you mean 'reward'?"),
    ],
)
def test_an_option_that_cannot_be_honoured_is_told(world, options, said):
    with replayed(world) as (url, _), pytest.raises(ConfigError) as told:
        load_environment(f"openenv:{url}", options)
    assert said in str(told.value)


def test_what_is_no_openenv_server_is_told(monkeypatch):
    with pytest.raises(ConfigError, match="write it as 'openenv:http"):
        load_environment("openenv:127.0.0.1:8000", {})
    with pytest.raises(ConfigError, match=r"no OpenEnv server answers at http://127\.0\.0\.1:9: "):
        load_environment("openenv:http://127.0.0.1:9", {})
    with (
        EnvServer([CountdownEnvironment()]) as other,
        pytest.raises(ConfigError, match=r"/schema is not as OpenEnv has it: .* 404"),
    ):
        load_environment(f"openenv:{other.url}", {})
    with environment(instruction="rule") as made, pytest.raises(ConfigError, match=r"no field 'rule' in .* 'rules'"):
        made.create("train-1", {})
    monkeypatch.setenv("SPACE", "secret")
    with replayed("guess") as (url, server):
        made = load_environment(f"openenv:{url}", {"token_variable": "SPACE"})
        made.create("train-1", {}).close()
        made.close()
    assert server.headers == ["Bearer secret"]


@pytest.mark.fault(
    "Tools and environments",
    "an OpenEnv server has no place for a session and closes it, with or without a word",
    "the episode waits for a place",
)
@pytest.mark.parametrize("speaks", [True, False])
async def test_who_gets_no_place_waits_for_one(speaks):
    with environment(places=1, speaks=speaks) as made, EnvServer([made]) as service:
        client = EnvServiceClient(service.url, create_timeout=20.0)
        first = EnvInstance(service.url, "first")
        await client.create(None, "train-1", "first")
        with pytest.raises(EnvServiceError, match="no place for another session"):
            await EnvServiceClient(service.url, create_timeout=0.0).create(None, "train-1", "refused")
        waiting = asyncio.create_task(client.create(None, "train-1", "second"))
        await client.release(first)
        assert (await waiting).messages[0]["content"] == "I think of a word."
        await client.release(EnvInstance(service.url, "second"))


async def test_a_run_serves_it_by_its_name():
    with replayed("guess") as (url, _):
        options = {"reward": "last", "unfinished": 0}
        with own_service(EnvServiceConfig(serve=f"openenv:{url}", options=options)) as service:
            client = EnvServiceClient.of(service)
            assert await asyncio.to_thread(client.task_ids, "test") == ["test-0"]
            instance = EnvInstance(client.url, "i")
            state = await client.create(None, "train-1", "i")
            assert state.messages[0]["content"] == "I think of a word." and state.info["tools"][0]["type"] == "function"
            for number, text in enumerate(("lake", "ice")):
                state = await client.step(instance, {"role": "assistant", "content": text}, number=number)
            assert state.done and await client.evaluate(instance) == 1.0
            await client.release(instance)

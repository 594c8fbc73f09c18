"""Agents that run on a model other than the policy, whatever they call it through."""

import openai
import pytest

from astune.clients.chat import ChatClient
from astune.config.chat_models import AuxiliaryModelConfig
from astune.context_tracker.tracker import ChatRequest, ContextTracker
from astune.errors import WorkflowError
from astune.testing import ScriptedChatServer, ScriptedPolicy
from astune.types import Sampling, Task, WorkflowOutput
from astune.workflow.tuner import Tuner
from astune.workflow.workflow_base import as_workflow

HI = [{"role": "user", "content": "Hi"}]


@pytest.fixture
async def make(chat_format):
    """`make(answers of the API)` gives a tuner with the auxiliary model "gpt", its tracker and the API."""
    opened = []

    def make(answers, policy=("I am the policy.",) * 9):
        server = ScriptedChatServer(answers).__enter__()
        settings = AuxiliaryModelConfig(base_url=server.base_url, model="m", max_retries=0)
        tracker = ContextTracker(
            ScriptedPolicy(policy, chat_format),
            chat_format,
            Sampling(max_tokens=64),
            max_turns=9,
            seed=1,
            auxiliary_models={"gpt": ChatClient("gpt", settings, key="astune.rollout.auxiliary_models.gpt")},
        )
        tuner = Tuner(Task("t", "q"), "test/t/0", tracker)
        opened.append((tuner, server))
        return tuner, tracker, server

    yield make
    for tuner, server in opened:
        tuner.close()
        server.__exit__()


async def test_every_way_to_a_model_leads_to_the_source(make):
    tuner, tracker, _ = make(["one", "two", "three"])
    client = tuner.openai_client("critic", source="gpt")
    said = [(await client.chat.completions.create(model="m", messages=HI)).choices[0].message.content]
    async with openai.AsyncOpenAI(base_url=tuner.base_url("critic", source="gpt"), api_key="x") as other:
        said += [(await other.chat.completions.create(model="m", messages=HI)).choices[0].message.content]
    said += [(await tuner.chat(ChatRequest(HI), name="critic", source="gpt")).message["content"]]
    own = await tuner.openai_client("critic").chat.completions.create(model="m", messages=HI)
    assert [*said, own.choices[0].message.content] == ["one", "two", "three", "I am the policy."]
    assert [(turn.agent, turn.excluded) for turn in tracker.turns] == [("critic", "frozen")] * 3 + [("critic", None)]


def an_agentscope_model(tuner, **options):
    pytest.importorskip("agentscope")
    return tuner.model("critic", source="gpt", **options)


async def test_an_agentscope_model_runs_on_the_source(make):
    tuner, tracker, server = make(["Fine."])
    model = an_agentscope_model(tuner)
    await model.client.chat.completions.create(model="m", messages=HI)
    assert [turn.response["content"] for turn in tracker.turns] == ["Fine."]
    assert server.requests[0]["messages"] == HI


async def test_the_context_of_another_model_is_not_the_policys(make):
    pytest.importorskip("agentscope", minversion="2.0")
    tuner, _, _ = make([])
    assert an_agentscope_model(tuner).context_size > 4096 == tuner.model().context_size
    assert an_agentscope_model(tuner, context_size=1000).context_size == 1000


async def test_a_workflow_function_gets_the_auxiliary_models_by_name(make):
    pytest.importorskip("agentscope")

    async def solve(task, model, auxiliary_models):
        assert list(auxiliary_models) == ["gpt"]
        client = auxiliary_models["gpt"].client
        reply = await client.chat.completions.create(model="m", messages=HI)
        return WorkflowOutput(response=reply.choices[0].message.content, reward=1.0)

    tuner, tracker, _ = make(["Fine."])
    output = await as_workflow(solve)().execute(tuner.task, tuner)
    assert (output.answer, [turn.agent for turn in tracker.turns]) == ("Fine.", ["gpt"])


async def test_a_source_that_is_not_configured_is_refused_when_the_model_is_asked_for(make):
    tuner, _, _ = make([])
    for hand_out in (tuner.openai_client, tuner.base_url):
        with pytest.raises(WorkflowError, match=r"source='gtp': there is no .* Did you mean 'gpt'\?"):
            hand_out("critic", source="gtp")


async def test_rewards_of_agents_and_turns_are_kept_by_name_and_number(make):
    tuner, _, _ = make(["x"])
    for name, source in (("seller", None), ("buyer", "gpt"), ("seller", None)):
        await tuner.chat(ChatRequest(HI), name=name, source=source)
    tuner.reward("seller", 1)
    tuner.reward("seller", 0.5)
    tuner.reward_turn("seller", 2.0)
    tuner.reward_turn("seller", -1.0, turn=0)
    tuner.reward_turn("seller", -1.0, turn=-2)
    assert tuner.agent_rewards == {"seller": 1.5}
    assert tuner.turn_rewards == {2: 2.0, 0: -2.0}


@pytest.mark.parametrize(
    ("give", "message"),
    [
        (lambda tuner: tuner.reward("seler", 1.0), r"no agent called 'seler' .* Did you mean 'seller'\? There are"),
        (lambda tuner: tuner.reward("seller", float("nan")), r"is nan \(float\); expected a finite number"),
        (lambda tuner: tuner.reward("seller", True), r"is True \(bool\); expected a finite number"),
        (lambda tuner: tuner.reward_turn("seller", "1"), r"is '1' \(str\); expected a finite number"),
        (lambda tuner: tuner.reward_turn("seller", 1.0, turn=1), r"turn=1\): the agent has had 1 turns"),
        (lambda tuner: tuner.reward_turn("seller", 1.0, turn=-2), r"turn=-2\): the agent has had 1 turns"),
    ],
)
async def test_a_reward_that_is_none_is_refused(make, give, message):
    tuner, _, _ = make([])
    await tuner.chat(ChatRequest(HI), name="seller")
    with pytest.raises(WorkflowError, match=message):
        give(tuner)
    assert (tuner.agent_rewards, tuner.turn_rewards) == ({}, {})


async def test_a_tuner_gives_several_choices(make):
    tuner, tracker, _ = make([], policy=["one", "two"])
    answers = await tuner.choices(ChatRequest(HI), 2, name="a")
    assert [answer.message["content"] for answer in answers] == ["one", "two"]
    assert len(tracker.turns) == 2

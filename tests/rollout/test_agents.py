"""Several agents in one episode: rewards of their own, other models, limits they share, calls side by side."""

import asyncio
import logging
from dataclasses import replace
from pathlib import Path

import pytest

from astune.algorithm import to_samples
from astune.algorithm.advantage import dr_grpo
from astune.config.load import load_config
from astune.config.schema import AstuneConfig
from astune.context_tracker.tracker import ChatRequest
from astune.errors import ConfigError
from astune.rollout.episode import run_episode
from astune.testing import ScriptedChatServer, ScriptedPolicy
from astune.training.rollout_setup import rollout_setup
from astune.types import Group, Sampling, StopReason, Task, WorkflowOutput

TASK = Task("t1", "What is 2 + 2?", answer="4")
HI = [{"role": "user", "content": "What is 2 + 2?"}]


async def say(tuner, name, messages=HI, **options):
    return await tuner.chat(ChatRequest(messages), name=name, **options)


async def endless(task, tuner):
    messages = list(HI)
    while True:
        answer = await say(tuner, "a", messages)
        messages += [answer.message, {"role": "user", "content": "Sure?"}]


async def test_running_out_of_tokens_is_judged_without_an_answer(run_one):
    episode = await run_one(endless, lambda prompt: "four " * 4, max_episode_tokens=50)
    assert (episode.stop_reason, episode.output, episode.reward) == (StopReason.MAX_TOKENS, None, 0.0)
    assert (episode.error.stage, episode.error.kind) == ("workflow", "TooManyTokens")
    assert sum(len(turn.output_ids) for turn in episode.turns) == 50
    assert [turn.finish_reason for turn in episode.turns[-1:]] == ["length"]
    assert episode.metrics["output_tokens"] == 50


async def test_running_out_of_tokens_with_an_answer_is_judged_by_it(run_one):
    async def workflow(task, tuner):
        try:
            await endless(task, tuner)
        except Exception:
            return WorkflowOutput(answer="4")

    episode = await run_one(workflow, lambda prompt: "x" * 20, max_episode_tokens=5)
    assert (episode.stop_reason, episode.reward) == (StopReason.MAX_TOKENS, 1.0)


async def test_lost_calls_are_counted(run_one):
    async def workflow(task, tuner):
        call = asyncio.ensure_future(tuner.choices(ChatRequest(HI), 2))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        call.cancel()
        await asyncio.wait({call})
        return WorkflowOutput(answer="4")

    episode = await run_one(workflow, ["x", "y"])
    assert (episode.metrics["lost_calls"], episode.turns) == (2.0, ())


async def bargain(task, tuner):
    """Two agents with rewards of their own; the seller's first turn gets a reward on top."""
    await say(tuner, "seller")
    await say(tuner, "buyer")
    await say(tuner, "seller")
    price = float(task.metadata["price"])
    tuner.reward("seller", price)
    tuner.reward("buyer", -price)
    return WorkflowOutput(reward=0.5)


async def test_rewards_of_agents_become_advantages_of_their_timelines(make_setup):
    setup = make_setup(bargain, ["x"] * 9)
    episodes = []
    for price in (1, 3):
        task = Task("t1", "q", metadata={"price": price})
        episodes.append(await run_episode(task, setup, episode_id=f"e{price}", seed=1, sampling=Sampling(9)))
    assert [episode.agent_rewards for episode in episodes] == [{"seller": 1, "buyer": -1}, {"seller": 3, "buyer": -3}]
    assert [episode.reward for episode in episodes] == [0.5, 0.5], "the episodes themselves are equal"
    samples, _ = to_samples([Group(TASK, tuple(episodes))], dr_grpo)
    signs = {(sample.episode_id, sample.timeline.agent): set(sample.advantages) for sample in samples}
    assert signs[("e1", "seller")] == {-1.0} and signs[("e3", "seller")] == {1.0}
    assert signs[("e1", "buyer")] == {1.0} and signs[("e3", "buyer")] == {-1.0}


async def test_a_reward_of_a_turn_raises_it_and_not_what_came_after(make_setup):
    async def workflow(task, tuner):
        first = await say(tuner, "a")
        await say(tuner, "a", [*HI, first.message, *HI])
        tuner.reward_turn("a", float(task.metadata["price"]), turn=0)
        return WorkflowOutput(reward=0.0)

    setup = make_setup(workflow, ["x"] * 9)
    episodes = []
    for price in (0, 1):
        task = Task("t1", "q", metadata={"price": price})
        episodes.append(await run_episode(task, setup, episode_id=f"e{price}", seed=1, sampling=Sampling(9)))
    samples, _ = to_samples([Group(TASK, tuple(episodes))], dr_grpo)
    advantages = {sample.episode_id: sample.advantages for sample in samples}
    assert advantages["e1"][0] > 0
    assert max(advantages["e1"][1], *advantages["e0"]) < 0


async def test_only_agents_that_are_named_are_trained(make_setup):
    async def workflow(task, tuner):
        for name in ("planner", "worker_1", "worker_2"):
            await say(tuner, name)
        return WorkflowOutput(reward=1.0)

    setup = make_setup(workflow, ["x"] * 3)
    setup = replace(setup, models=replace(setup.models, trained_agents=("worker_*", "boss")))
    episode = await run_episode(TASK, setup, episode_id="e", seed=1, sampling=Sampling(9))
    assert [turn.excluded for turn in episode.turns] == ["frozen", None, None]


@pytest.fixture
def config_with(tmp_path):
    """`config_with(base_url, **options)` gives a configuration with the auxiliary model "gpt"."""

    def make(workflow, base_url, *, allow_inexact=False, **options):
        (tmp_path / "flow.py").write_text(workflow)
        model = {"base_url": base_url, "model": "m", "max_retries": 0, **options}
        rollout = {
            "agentscope_learn_protocol": f"{tmp_path / 'flow.py'}:flow",
            "auxiliary_models": {"gpt": model},
            "allow_inexact": allow_inexact,
        }
        return AstuneConfig.model_validate({"rollout": rollout})

    return make


FLOW = """
from astune import WorkflowOutput

async def flow(task, tuner):
    for name, source in (("solver", None), ("critic", "gpt"), ("critic", "gpt")):
        client = tuner.openai_client(name, source=source)
        reply = await client.chat.completions.create(model="m", messages=[{"role": "user", "content": task.query}])
    return WorkflowOutput(answer=reply.choices[0].message.content, reward=1.0)
"""


@pytest.mark.parametrize("trainable", [False, True])
async def test_a_configured_model_answers_and_its_turns_are_counted(config_with, chat_format, caplog, trainable):
    with ScriptedChatServer(lambda body: "Good.") as server:
        config = config_with(FLOW, server.base_url, trainable=trainable)
        setup = rollout_setup(config, ScriptedPolicy(["4"] * 9, chat_format), chat_format)
        with caplog.at_level(logging.WARNING):
            for number in range(2):
                sampling = Sampling(max_tokens=64)
                episode = await run_episode(TASK, setup, episode_id=f"e{number}", seed=1, sampling=sampling)
    assert (episode.output.answer, episode.stop_reason) == ("Good.", StopReason.COMPLETED)
    why_not = "inexact" if trainable else "frozen"
    assert [turn.excluded for turn in episode.turns] == [None, why_not, why_not]
    warnings = [record.getMessage() for record in caplog.records if "token ids" in record.getMessage()]
    assert len(warnings) == trainable
    if trainable:
        assert "gpt is trainable but gave no usable token ids for 2 of the 3 turns" in warnings[0]
        assert "not trained (see astune.rollout.allow_inexact)" in warnings[0]


@pytest.mark.fault(
    "Foreign servers",
    "the API of another model fails within an episode",
    "the episode is an error, never a reward of 0",
)
async def test_an_api_that_fails_is_no_fault_of_the_agents(config_with, chat_format):
    with ScriptedChatServer([401]) as server:
        config = config_with(FLOW, server.base_url)
        setup = rollout_setup(config, ScriptedPolicy(["4"], chat_format), chat_format)
        episode = await run_episode(TASK, setup, episode_id="e", seed=1, sampling=Sampling(max_tokens=64))
    assert (episode.stop_reason, episode.error.stage, episode.verdict) == (StopReason.ERROR, "policy", None)
    assert "refused a call without an API key" in episode.error.message


def test_a_missing_key_is_told_before_any_episode(config_with, chat_format, monkeypatch):
    monkeypatch.delenv("GPT_KEY", raising=False)
    config = config_with(FLOW, "https://example.com/v1", api_key_env="GPT_KEY")
    with pytest.raises(ConfigError, match="environment variable GPT_KEY is not set"):
        rollout_setup(config, ScriptedPolicy([], chat_format), chat_format)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("{model: m}", "auxiliary_models.gpt: expected base_url, model and any of api_key_env, .* (no base_url)"),
        ("{base_url: 'http://x', model: m, modl: 1}", "(unknown key 'modl')"),
        ("{base_url: 'x', model: m}", "auxiliary_models.gpt.base_url: expected an address that begins with http"),
        ("7", "auxiliary_models.gpt: expected a section with base_url and model, got 7"),
    ],
)
def test_a_mistake_in_an_auxiliary_model_is_named(tmp_path: Path, value, message):
    path = tmp_path / "job.yaml"
    path.write_text(f"astune:\n  rollout:\n    auxiliary_models:\n      gpt: {value}\n")
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    for piece in message.split(" .* "):
        assert piece in str(caught.value)


async def together(task, tuner):
    async def talk(name):
        messages = list(HI)
        for _ in range(2):
            answer = await say(tuner, name, messages)
            messages += [answer.message, {"role": "user", "content": "Sure?"}]

    await asyncio.gather(*map(talk, ("planner", "solver", "critic")))
    return WorkflowOutput(reward=1.0)


async def test_agents_side_by_side_give_the_same_episode_again(make_setup):
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from astune.backbone.local.engine import load_policy

    async def played():
        _, sampler, chat_format = load_policy(AstuneConfig())
        setup = replace(make_setup(together), policy=sampler, chat_format=chat_format)
        return await run_episode(TASK, setup, episode_id="e", seed=3, sampling=Sampling(max_tokens=12))

    first, second = await played(), await played()
    assert first.turns == second.turns
    assert len(first.turns) == 6 and {line.agent for line in first.timelines} == {"planner", "solver", "critic"}
    assert len(first.timelines) == 3

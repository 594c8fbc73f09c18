"""Rewards that workflows return, and judges that give a verdict or fail to."""

import asyncio

import pytest

from astune.config.schema import RolloutConfig
from astune.errors import JudgeError
from astune.rollout.episode import run_episode
from astune.rollout.metrics import rollout_metrics
from astune.rollout.setup import RolloutSetup
from astune.types import Group, Sampling, StopReason, Verdict, WorkflowOutput

from .conftest import TASK


async def once(task, tuner):
    messages = [{"role": "user", "content": task.query}]
    answer = await tuner.openai_client().chat.completions.create(model="m", messages=messages)
    return WorkflowOutput(answer=answer.choices[0].message.content)


class SaysNothing:
    async def judge(self, task, episode):
        raise JudgeError("cannot tell")


async def test_a_reward_of_the_workflow_is_the_verdict_and_the_judge_is_not_asked(run_one):
    async def workflow(task, tuner):
        return WorkflowOutput(answer="4", reward=True, metrics={"steps": 3, "neat": True})

    episode = await run_one(workflow, judge=SaysNothing())
    assert episode.verdict == Verdict(1.0, judged_by="workflow")
    assert episode.output.metrics == {"steps": 3.0, "neat": 1.0}
    figures = rollout_metrics([Group(episode.task, (episode,))])
    assert {name for name in figures if "neat" in name} == {"workflow/neat"}, "logged once, and as the workflow's"


@pytest.mark.fault(
    "Agents and the engine",
    "a workflow returns a reward that is no finite number",
    "the episode has no reward, and the message says what was returned",
)
@pytest.mark.parametrize("reward", [float("nan"), float("inf"), "1.0"])
async def test_a_reward_that_is_no_finite_number_is_no_reward(run_one, reward):
    async def workflow(task, tuner):
        return WorkflowOutput(answer="4", reward=reward)

    episode = await run_one(workflow)
    assert (episode.stop_reason, episode.verdict) == (StopReason.ERROR, None)
    assert (episode.error.stage, episode.error.kind) == ("judge", "JudgeError")
    assert "the workflow" in episode.error.message
    assert str(reward) in episode.error.message


async def test_no_reward_and_no_judge_is_an_error_that_names_the_key(chat_format, make_setup):
    setup = make_setup(once)
    setup = RolloutSetup(setup.policy, chat_format, setup.workflow_factory, None, RolloutConfig(), 30.0)
    episode = await run_episode(TASK, setup, episode_id="x", seed=1, sampling=Sampling(max_tokens=9))
    assert (episode.stop_reason, episode.verdict, episode.error.stage) == (StopReason.ERROR, None, "judge")
    assert "astune.task_judge.judge_protocol" in episode.error.message


@pytest.mark.fault("Judges", "a judge raises", "the episode has no reward, which is not 0")
async def test_a_judge_that_raises_leaves_no_verdict(run_one):
    episode = await run_one(once, judge=SaysNothing())
    assert (episode.stop_reason, episode.verdict) == (StopReason.ERROR, None)
    assert (episode.error.stage, episode.error.kind, episode.error.message) == ("judge", "JudgeError", "cannot tell")
    assert episode.output.answer == "4"


@pytest.mark.fault(
    "Judges", "a judge waits for ever", "it is given up after `task_judge.timeout`; the episode has no reward"
)
async def test_a_judge_that_never_ends_times_out(run_one):
    class Slow:
        async def judge(self, task, episode):
            await asyncio.Event().wait()

    episode = await run_one(once, judge=Slow(), judge_timeout=0.05)
    assert (episode.stop_reason, episode.error.stage) == (StopReason.ERROR, "judge")
    assert "longer than 0.05 s (astune.task_judge.timeout)" in episode.error.message


async def test_a_judges_own_timeout_error_is_not_taken_for_ours(run_one):
    class Offline:
        async def judge(self, task, episode):
            raise asyncio.TimeoutError("no answer from the judge's server")

    assert "no answer from" in (await run_one(once, judge=Offline())).error.message


@pytest.mark.parametrize("verdict", [1.0, None, Verdict(float("nan")), Verdict(1.0, metrics={"a": float("inf")})])
async def test_a_verdict_that_is_none_is_an_error(run_one, verdict):
    class Wrong:
        async def judge(self, task, episode):
            return verdict

    episode = await run_one(once, judge=Wrong())
    assert (episode.stop_reason, episode.verdict, episode.error.stage) == (StopReason.ERROR, None, "judge")

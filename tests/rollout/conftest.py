import asyncio

import pytest

from astune.config.schema import RolloutConfig
from astune.context_tracker.prompt.chat_format import ChatFormat
from astune.rollout.episode import run_episode
from astune.rollout.setup import RolloutSetup
from astune.testing import ScriptedPolicy, write_test_model_dir
from astune.types import Sampling, Task, Verdict
from astune.workflow.workflow_base import as_workflow

TASK = Task("t1", "What is 2 + 2?", answer="4")
LIMITS = ("max_turns", "max_episode_tokens", "episode_timeout", "allow_inexact", "workspace", "context")
"""Options that are of the section `astune.rollout`."""


class AnswerJudge:
    """Reward 1 for the reference answer, 0 for any other and for none."""

    async def judge(self, task, episode):
        right = episode.output is not None and episode.output.answer == task.answer
        return Verdict(float(right), passed=right, judged_by="AnswerJudge")


@pytest.fixture(scope="session")
def chat_format(tmp_path_factory):
    return ChatFormat.load(write_test_model_dir(tmp_path_factory.mktemp("model")))


@pytest.fixture
def make_setup(chat_format):
    def make(workflow, answers=("4",), *, judge=None, context_length=4096, judge_timeout=30.0, **options):
        """`options` are those of RolloutConfig and RolloutSetup."""
        limits = {name: options.pop(name) for name in list(options) if name in LIMITS}
        policy = ScriptedPolicy(answers, chat_format, context_length=context_length)
        config = RolloutConfig(**{"episode_timeout": 30.0, **limits})
        factory, judge = as_workflow(workflow), judge or AnswerJudge()
        return RolloutSetup(policy, chat_format, factory, judge, config, judge_timeout, **options)

    return make


@pytest.fixture
def run_one(make_setup):
    """`await run_one(workflow, answers, **options of make_setup)` gives the episode."""

    async def run(workflow, answers=("4",), **options):
        setup = make_setup(workflow, answers, **options)
        before = asyncio.all_tasks()
        episode = await run_episode(TASK, setup, episode_id="test/t1/0", seed=1, sampling=Sampling(max_tokens=256))
        assert asyncio.all_tasks() == before, "the episode left something running"
        return episode

    return run

import asyncio
from dataclasses import dataclass, field

import pytest

from astune.context_tracker.prompt.chat_format import ChatFormat
from astune.context_tracker.tracker import ContextTracker
from astune.testing import ScriptedPolicy, write_test_model_dir
from astune.types import Sampling, Task
from astune.workflow.tuner import Tuner

TASK = Task("t1", "What is (2 + 2) * 3?")


@pytest.fixture(scope="session")
def chat_format(tmp_path_factory):
    return ChatFormat.load(write_test_model_dir(tmp_path_factory.mktemp("model")))


@pytest.fixture
async def make_tuner(chat_format):
    """`make_tuner(answers)` gives (tuner, tracker, policy); the tuners are closed after the test."""
    tuners = []

    def make(
        answers,
        *,
        max_turns=20,
        context_length=4096,
        max_tokens=256,
        chat_format=chat_format,
        kind=ContextTracker,
    ):
        policy = ScriptedPolicy(answers, chat_format, context_length=context_length)
        tracker = kind(policy, chat_format, Sampling(max_tokens), max_turns=max_turns, seed=1)
        tuners.append(Tuner(TASK, "test/t1/0", tracker))
        return tuners[-1], tracker, policy

    yield make
    for tuner in tuners:
        tuner.close()


@dataclass
class EndlessCall:
    """A policy's call that never ends by itself."""

    begun: asyncio.Event = field(default_factory=asyncio.Event)
    cancelled: asyncio.Event = field(default_factory=asyncio.Event)

    async def generate(self, prompt_ids, sampling):
        self.begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.cancelled.set()


@pytest.fixture
async def endless(make_tuner):
    """(tuner, tracker, call): a policy that never answers."""
    tuner, tracker, policy = make_tuner([])
    call = EndlessCall()
    policy.generate = call.generate
    return tuner, tracker, call

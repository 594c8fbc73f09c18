"""Real clients against a real server: the endpoint over HTTP, a script for a model."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from astune.context_tracker.prompt.chat_format import ChatFormat
from astune.context_tracker.tracker import ContextTracker
from astune.testing import ScriptedPolicy, write_test_model_dir
from astune.types import Sampling, Task, Timeline
from astune.workflow.tuner import Tuner


@dataclass(frozen=True)
class Capture:
    """An episode that a client calls at `url`."""

    url: str
    tracker: ContextTracker
    policy: ScriptedPolicy
    chat_format: ChatFormat
    tuner: Tuner

    def timelines(self, answers: list[str]) -> tuple[Timeline, ...]:
        """The timelines, after a check that the turns hold what the engine was sent and what it sampled, `answers`
        in order, and that every sampled token is trained once."""
        turns = self.tracker.turns
        assert [tuple(turn.prompt_ids) for turn in turns] == [prompt for prompt, _ in self.policy.calls]
        end = self.chat_format.stop_token_ids[0]
        assert [tuple(turn.output_ids) for turn in turns] == [(*self.chat_format.encode(a), end) for a in answers]
        timelines = self.tracker.timelines()
        assert sum(timeline.trained_tokens for timeline in timelines) == sum(len(turn.output_ids) for turn in turns)
        assert self.tuner.failures == []
        return timelines


@pytest.fixture(scope="session")
def chat_format(tmp_path_factory):
    return ChatFormat.load(write_test_model_dir(tmp_path_factory.mktemp("model")))


@pytest.fixture
async def capture(chat_format):
    """`capture(answers)` gives a `Capture`, closed after the test."""
    tuners = []

    def begin(answers):
        policy = ScriptedPolicy(answers, chat_format)
        tracker = ContextTracker(policy, chat_format, Sampling(max_tokens=256), max_turns=20, seed=1)
        tuner = Tuner(Task("t1", "2 + 3?"), "clients/t1/0", tracker)
        tuners.append(tuner)
        return Capture(tuner.base_url(), tracker, policy, chat_format, tuner)

    yield begin
    for tuner in tuners:
        tuner.close()

"""Frames of suspended workflows, and pdb in them, at model calls made through real clients and real agents."""

import asyncio
import bdb
import importlib.util
import io
import sys
import threading
from importlib import metadata

import pytest

from astune.backbone.debug.workflow_frames import awaited_frames, debug_workflow, end_debugging, user_frames, where
from astune.context_tracker.chat_format import ChatFormat
from astune.context_tracker.tracker import ContextTracker
from astune.resources import tiny_model_dir, tutorial_dir
from astune.testing import ScriptedPolicy
from astune.types import Sampling, Task
from astune.workflow.tuner import Tuner

HELPERS = """\
import asyncio

async def ask(tuner, messages, name="agent"):
    client = tuner.openai_client(name)
    reply = await client.chat.completions.create(model="m", messages=messages)
    return reply.choices[0].message.content

async def execute(task, tuner):
    messages = [{"role": "user", "content": task.query}]
    bonus = 1
    first = await ask(tuner, messages)
    second = await ask(tuner, messages)
    total = int(first) + int(second) + bonus
    return total
"""
ASK = next(number for number, line in enumerate(HELPERS.splitlines(), 1) if "reply = " in line)
FIRST, SECOND, TOTAL, RETURN = (
    next(number for number, line in enumerate(HELPERS.splitlines(), 1) if text in line)
    for text in ("first = ", "second = ", "total = ", "return total")
)


class StoppingPolicy:
    """Tells `stop` of each call before it is answered, from inside of it, with its number."""

    def __init__(self, policy):
        self._policy = policy
        self.stop = None
        self.calls = 0

    @property
    def context_length(self):
        return self._policy.context_length

    async def generate(self, prompt_ids, sampling):
        self.calls += 1
        self.stop(self.calls)
        return await self._policy.generate(prompt_ids, sampling)


class Play:
    """A workflow written to agent.py, whose every model call tells `stop(number, coroutine)`."""

    def __init__(self, folder):
        self.folder = folder
        self.chat_format = ChatFormat.load(tiny_model_dir())
        self.outcomes = []
        self.screen = io.StringIO()

    async def __call__(self, source, answers, stop):
        policy = StoppingPolicy(ScriptedPolicy(answers, self.chat_format))
        tracker = ContextTracker(policy, self.chat_format, Sampling(max_tokens=256), max_turns=20, seed=1)
        task = Task("t1", "What is (2 + 2) * 3?")
        tuner = Tuner(task, "test/t1/0", tracker, self.chat_format, 4096)
        workflow = self.load(source).execute(task, tuner)
        policy.stop = lambda number: stop(number, workflow)
        try:
            return await asyncio.ensure_future(workflow)
        finally:
            tuner.close()

    def load(self, source):
        path = self.folder / "agent.py"
        path.write_text(source, encoding="utf-8")
        spec = importlib.util.spec_from_file_location("agent", path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    async def debugged(self, source, answers, commands, at=(1,)):
        """The workflow's result when pdb is opened at some of the calls and reads `commands`."""
        stdin = io.StringIO("".join(f"{command}\n" for command in commands))

        def stop(number, workflow):
            if number in at:
                self.outcomes.append(debug_workflow(awaited_frames(workflow), stdin=stdin, stdout=self.screen))

        return await self(source, answers, stop)

    async def frames(self, source, answers, at=1):
        """`where` of the user's frames at one call."""
        seen = {}

        def stop(number, workflow):
            seen[number] = where(user_frames(awaited_frames(workflow)))

        await self(source, answers, stop)
        return seen[at]

    @property
    def stops(self):
        """The line of agent.py at each place where pdb stopped, moved or was asked for its stack."""
        return [
            int(line.partition("agent.py(")[2].partition(")")[0])
            for line in self.screen.getvalue().splitlines()
            if line.removeprefix("(pdb) ").startswith("> ") and "agent.py(" in line
        ]


@pytest.fixture
def play(tmp_path):
    before = sys.gettrace()
    yield Play(tmp_path)
    end_debugging()
    assert sys.gettrace() is before
    assert not bdb.Breakpoint.bplist


async def test_the_users_frames_of_a_model_call_are_outermost_first(play):
    assert await play.frames(HELPERS, ["4", "8"]) == [
        f"agent.py:{FIRST} in execute:  first = await ask(tuner, messages)",
        f'agent.py:{ASK} in ask:  reply = await client.chat.completions.create(model="m", messages=messages)',
    ]


async def test_next_stops_at_the_next_two_lines_and_continue_takes_the_tracing_back(play):
    before = sys.gettrace()
    assert await play.debugged(HELPERS, ["4", "8"], ["up", "next", "next", "p first, second", "c"]) == 13
    assert play.outcomes == ["stepping"]
    assert play.stops == [ASK, FIRST, SECOND, TOTAL]
    assert "('4', '8')" in play.screen.getvalue()
    assert sys.gettrace() is before

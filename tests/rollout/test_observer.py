"""Who looks on while an episode runs."""

import asyncio
from dataclasses import replace

import pytest

from astune.rollout.episode import run_episode
from astune.rollout.setup import Observer
from astune.types import Sampling, StopReason, WorkflowOutput

from .conftest import TASK


class Watching(Observer):
    def __init__(self):
        self.seen = []
        self.over = []

    def source(self, name, source):
        observer = self

        class Watched:
            is_policy = source.is_policy

            async def answer(self, call, sampling):
                observer.seen.append(("call", name, call.number, call.agent))
                answer = await source.answer(call, sampling)
                return replace(answer, message={**answer.message, "content": "5"})

        return Watched()

    def on_start(self, episode_id, task, tracker, work):
        self.seen.append(("started", episode_id, task.task_id, work.cr_frame is not None))

    async def on_judging(self, episode):
        self.seen.append(("judging", episode.output.answer, episode.verdict))

    def on_end(self, episode):
        self.over.append(episode)


async def asks_twice(task, tuner):
    client = tuner.openai_client("solver")
    for _ in range(2):
        reply = await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "?"}])
    return WorkflowOutput(answer=reply.choices[0].message.content)


async def play(setup):
    return await run_episode(TASK, setup, episode_id="test/t1/0", seed=1, sampling=Sampling(max_tokens=256))


async def test_the_observer_sees_every_step_and_may_change_what_the_agent_gets(make_setup):
    observer = Watching()
    episode = await play(make_setup(asks_twice, ["4", "4"], observer=observer))
    assert observer.seen == [
        ("started", "test/t1/0", "t1", True),
        ("call", None, 0, "solver"),
        ("call", None, 1, "solver"),
        ("judging", "5", None),
    ]
    assert episode.output.answer == "5" and episode.reward == 0 and [turn.call for turn in episode.turns] == [0, 1]
    assert observer.over == [episode]


@pytest.mark.parametrize("when", ["workflow", "judge"])
async def test_a_cancelled_episode_is_told_with_what_it_has(make_setup, when):
    reached = asyncio.Event()

    class Slow:
        async def judge(self, task, episode):
            reached.set()
            await asyncio.Event().wait()

    async def slow(task, tuner):
        output = await asks_twice(task, tuner)
        if when == "workflow":
            reached.set()
            await asyncio.Event().wait()
        return output

    observer = Watching()
    running = asyncio.ensure_future(play(make_setup(slow, ["4", "4"], observer=observer, judge=Slow())))
    await reached.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    (cut,) = observer.over
    assert cut.stop_reason is StopReason.CANCELLED and len(cut.turns) == 2
    assert cut.verdict is None and (cut.output is None) == (when == "workflow")


async def test_calls_are_numbered_as_they_begin_and_turns_stand_as_they_end(make_setup, chat_format):
    async def two(task, tuner):
        client = tuner.openai_client("solver")

        async def ask(text):
            return await client.chat.completions.create(model="m", messages=[{"role": "user", "content": text}])

        await asyncio.gather(ask("slow"), ask("fast"))
        return WorkflowOutput(answer="4")

    setup = make_setup(two, ["a", "b"])
    inner, first = setup.policy, asyncio.Event()

    class FirstIsLast:
        context_length = inner.context_length

        async def generate(self, prompt_ids, sampling):
            generation = await inner.generate(prompt_ids, sampling)
            await first.wait() if "slow" in chat_format.decode(prompt_ids) else first.set()
            return generation

    episode = await play(replace(setup, policy=FirstIsLast()))
    assert [turn.call for turn in episode.turns] == [1, 0]

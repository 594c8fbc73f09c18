"""Workflows that are not async: each episode is played in a thread of its own."""

import asyncio
import json
import re
import subprocess
import sys
import threading
import time
import urllib.request

import openai
import pytest

from astune.context_tracker.tracker import ChatRequest
from astune.errors import RolloutError, WorkflowError
from astune.gateway import blocked_loop
from astune.rollout import time_limit
from astune.rollout.episode import run_episode
from astune.support.current_episode import EPISODE
from astune.types import Sampling, StopReason, Task, WorkflowOutput
from astune.workflow.lifetime import Lifetime
from astune.workflow.workflow_base import Workflow, as_workflow
from tests.passing_time import pass_time
from tests.rows import each_row

HI_TASK = Task("t1", "What is 2 + 2?", answer="4")
HI = [{"role": "user", "content": "What is 2 + 2?"}]


def ask(client):
    return client.chat.completions.create(model="m", messages=HI).choices[0].message.content


def by_sync_client(tuner):
    return ask(tuner.openai_client("solver", sync=True))


def by_sync_stream(tuner):
    chunks = tuner.openai_client("solver", sync=True).chat.completions.create(model="m", messages=HI, stream=True)
    return "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)


def by_address(tuner):
    body = json.dumps({"model": "m", "messages": HI}).encode()
    request = urllib.request.Request(f"{tuner.base_url('solver')}/chat/completions", body)
    with urllib.request.urlopen(request) as response:
        return json.load(response)["choices"][0]["message"]["content"]


def by_blocking_client(address):
    with openai.OpenAI(base_url=address, api_key="any", max_retries=0) as client:
        return ask(client)


PROGRAM = """
import sys, urllib.error, urllib.request
body = b'{"model": "m", "messages": [{"role": "user", "content": "2 + 2?"}]}'
try:
    urllib.request.urlopen(urllib.request.Request(sys.argv[1] + "/chat/completions", body))
except urllib.error.HTTPError as error:
    print(error.read().decode())
"""


def by_a_program(address):
    done = subprocess.run([sys.executable, "-c", PROGRAM, address], capture_output=True, text=True)
    raise ValueError(done.stdout or done.stderr)


def by_waiting(tuner):
    return tuner.wait(tuner.chat(ChatRequest(HI), name="solver")).message["content"]


def by_a_loop_of_its_own(tuner):
    async def both():
        answer = await tuner.openai_client("solver").chat.completions.create(model="m", messages=HI)
        again = await tuner.chat(ChatRequest(HI), name="solver")
        assert answer.choices[0].message.content == again.message["content"]
        return again.message["content"]

    return asyncio.run(both())


@each_row("way", [by_sync_client, by_sync_stream, by_address, by_waiting, by_a_loop_of_its_own])
@each_row("form", ["function", "class"])
async def test_every_way_to_the_model_works_from_a_thread_that_knows_its_episode(run_one, form, way):
    seen = []

    def workflow(task, tuner):
        seen.append((threading.current_thread(), EPISODE.get().episode_id))
        answer = way(tuner)
        tuner.reward_turn("solver", 0.5)
        return WorkflowOutput(answer=answer)

    class Plain(Workflow):
        def execute(self, task, tuner):
            return workflow(task, tuner)

    episode = await run_one({"function": workflow, "class": Plain}[form], lambda prompt: "4")
    assert (episode.stop_reason, episode.error, episode.reward) == (StopReason.COMPLETED, None, 1.0)
    assert {turn.agent for turn in episode.turns} == {"solver"} and episode.turn_rewards
    ((thread, episode_id),) = seen
    assert thread is not threading.current_thread() and thread.daemon
    assert (episode_id, thread.name) == (episode.episode_id, f"workflow {episode.episode_id}")


async def test_a_function_may_return_what_is_to_be_awaited(run_one):
    async def later(tuner):
        answer = await tuner.openai_client().chat.completions.create(model="m", messages=HI)
        return WorkflowOutput(answer=answer.choices[0].message.content)

    def workflow(task, tuner):
        return later(tuner)

    assert (await run_one(workflow)).reward == 1.0


async def test_any_number_of_episodes_have_threads_side_by_side(make_setup):
    number = 40
    together = threading.Barrier(number)

    def workflow(task, tuner):
        together.wait()
        return WorkflowOutput(answer=by_sync_client(tuner))

    setup = make_setup(workflow, lambda prompt: "4")
    episodes = await asyncio.gather(
        *(
            run_episode(HI_TASK, setup, episode_id=f"x/{number}", seed=1, sampling=Sampling(max_tokens=9))
            for number in range(number)
        )
    )
    assert [episode.reward for episode in episodes] == [1.0] * number


def raises(task, tuner):
    by_sync_client(tuner)
    return [][1]


def leaves(task, tuner):
    raise SystemExit(3)


def stops(task, tuner):
    raise StopIteration


@pytest.mark.parametrize(
    ("workflow", "kind", "said"),
    [
        (raises, "IndexError", "list index out of range"),
        (leaves, "RolloutError", "it raised SystemExit: 3"),
        (stops, "RolloutError", "it raised StopIteration"),
    ],
)
async def test_what_a_thread_raises_ends_its_episode_only(run_one, workflow, kind, said):
    episode = await run_one(workflow)
    assert (episode.stop_reason, episode.error.stage, episode.error.kind) == (StopReason.ERROR, "workflow", kind)
    assert said in episode.error.message and f"in {workflow.__name__}" in episode.error.traceback


async def test_a_thread_that_waits_for_the_model_ends_with_its_episode(make_setup):
    refused = []

    def workflow(task, tuner):
        for _ in range(2):
            try:
                by_sync_client(tuner)
            except Exception as error:
                refused.append(error)
        return WorkflowOutput(answer="4")

    setup = make_setup(workflow, episode_timeout=600)
    called = asyncio.Event()

    async def never(prompt_ids, sampling):
        called.set()
        pass_time(601)
        await asyncio.Event().wait()

    setup.policy.generate = never
    before = asyncio.all_tasks()
    episode = await run_episode(HI_TASK, setup, episode_id="x", seed=1, sampling=Sampling(max_tokens=9))
    assert called.is_set() and (episode.stop_reason, episode.verdict) == (StopReason.TIMEOUT, None)
    for error in (refused[0].__cause__ or refused[0], refused[1]):  # older clients call the first a broken connection
        assert isinstance(error, RolloutError) and "is over" in str(error)
    assert asyncio.all_tasks() == before


@pytest.mark.fault(
    "Agents and the engine",
    "a workflow that is not async never ends",
    "its episode times out; its thread is left behind with a warning, without a model, and does not keep the run from "
    "ending",
)
async def test_a_thread_that_never_ends_is_left_behind(make_setup, monkeypatch, caplog):
    monkeypatch.setattr(time_limit, "CANCEL_GRACE", 0.05)
    release, threads = threading.Event(), []

    def workflow(task, tuner):
        threads.append(threading.current_thread())
        release.wait()
        raise ValueError("nobody looks at this")

    before = asyncio.all_tasks()
    setup = make_setup(workflow, episode_timeout=0.05)
    episode = await run_episode(HI_TASK, setup, episode_id="x", seed=1, sampling=Sampling(max_tokens=9))
    assert episode.stop_reason is StopReason.TIMEOUT
    assert "the workflow goes on 0.05 s after it was cancelled, and is left behind" in caplog.text
    release.set()
    await asyncio.wait(asyncio.all_tasks() - before)
    threads[0].join()


@pytest.mark.parametrize("way", [by_sync_client, by_sync_stream, by_waiting])
async def test_a_call_that_would_block_the_event_loop_raises_with_its_line(run_one, way):
    async def workflow(task, tuner):
        with pytest.raises(WorkflowError, match="in the event loop's own thread") as caught:
            way(tuner)
        assert re.search(rf"at {re.escape(__file__)}:\d+: `.*(create|wait)\(", str(caught.value))
        raise caught.value

    episode = await run_one(workflow)
    assert (episode.stop_reason, episode.error.kind, episode.turns) == (StopReason.ERROR, "WorkflowError", ())


@pytest.mark.fault(
    "Agents and the engine",
    "an async workflow calls the endpoint with a blocking client, in the event loop's own thread",
    "the call is refused after 2.5 s with the line; without that it would never be answered, and no episode go on",
)
@pytest.mark.parametrize("way", [by_blocking_client, by_a_program])
async def test_a_blocking_client_of_the_endpoint_in_the_loops_own_thread_is_refused_with_its_line(
    run_one, monkeypatch, way
):
    monkeypatch.setattr(blocked_loop, "EVERY", 0.05)

    async def workflow(task, tuner):
        try:
            return WorkflowOutput(answer=way(tuner.base_url("solver")))
        finally:
            for _ in range(9):  # turns in which the call, which was cancelled, begins and ends
                await asyncio.sleep(0)

    episode = await run_one(workflow)
    assert episode.stop_reason is StopReason.ERROR and episode.turns == ()
    assert "own thread, at test/t1/0: " in episode.error.message
    assert re.search(rf"{re.escape(__file__)}:\d+: `.*(create|run)\(", episode.error.message)


async def test_a_line_that_blocks_for_a_while_keeps_no_program_from_its_answer(run_one, monkeypatch):
    monkeypatch.setattr(blocked_loop, "EVERY", 0.01)

    async def workflow(task, tuner):
        address = tuner.base_url("solver")
        asking = asyncio.create_task(asyncio.to_thread(by_blocking_client, address))
        await asyncio.sleep(0)
        time.sleep(0.5)  # it waits for nobody
        return WorkflowOutput(answer=await asking)

    assert (await run_one(workflow)).reward == 1.0


async def test_setup_and_teardown_need_not_be_async():
    told = []

    class Shared(Workflow):
        @classmethod
        def setup(cls):
            told.append("setup")

        @classmethod
        def teardown(cls):
            told.append("teardown")

        def execute(self, task, tuner):
            return WorkflowOutput()

    async with Lifetime(as_workflow(Shared)):
        assert told == ["setup"]
    assert told == ["setup", "teardown"]

import asyncio
import json
import logging
import sys
from dataclasses import replace

import pytest

from astune.config.schema import RolloutConfig
from astune.context_tracker.tracker import ChatRequest
from astune.errors import PolicyError
from astune.gateway.app import openai_app
from astune.monitor.episodes import EpisodeRecord, episode_from_row, episode_to_row
from astune.rollout import time_limit
from astune.rollout.episode import run_episode
from astune.rollout.metrics import rollout_metrics
from astune.rollout.setup import RolloutSetup
from astune.testing import ScriptedPolicy
from astune.types import Group, Sampling, StopReason, Task, Verdict, WorkflowOutput
from astune.viewer.episode_data import conversation
from astune.workflow.workflow_base import Workflow, as_workflow
from tests.passing_time import pass_time
from tests.rows import each_row

HI_TASK = Task("t1", "What is 2 + 2?", answer="4")
HI = [{"role": "user", "content": "What is 2 + 2?"}]


async def ask(tuner, messages=HI):
    answer = await tuner.openai_client().chat.completions.create(model="m", messages=messages)
    return answer.choices[0].message.content


async def once(task, tuner):
    return WorkflowOutput(answer=await ask(tuner))


async def test_a_workflow_that_returns_is_judged(run_one):
    episode = await run_one(once)
    assert (episode.stop_reason, episode.error) == (StopReason.COMPLETED, None)
    assert episode.verdict == Verdict(1.0, passed=True, judged_by="AnswerJudge")
    assert episode.output.answer == "4"
    assert len(episode.turns) == len(episode.timelines) == 1
    assert episode.metrics["turns"] == 1
    assert episode.metrics["prompt_tokens"] == len(episode.turns[0].prompt_ids)
    assert episode.metrics["output_tokens"] == len(episode.turns[0].output_ids)
    assert episode.metrics["seconds"] > 0
    assert openai_app()._endpoints == {}


@pytest.mark.fault(
    "Agents and the engine",
    "a workflow raises",
    "the episode ends as an error with its turns and the traceback, without a reward",
)
async def test_a_workflow_that_raises_keeps_its_turns_and_its_own_traceback(run_one):
    async def workflow(task, tuner):
        await ask(tuner)
        return [][1]

    episode = await run_one(workflow)
    assert (episode.stop_reason, episode.verdict, episode.output) == (StopReason.ERROR, None, None)
    assert (episode.error.stage, episode.error.kind) == ("workflow", "IndexError")
    assert episode.error.message == "list index out of range"
    assert "return [][1]" in episode.error.traceback
    assert len(episode.turns) == 1


async def test_a_workflow_whose_constructor_raises_is_an_error(run_one):
    class Broken(Workflow):
        def __init__(self):
            raise OSError("no disk")

        async def execute(self, task, tuner): ...

    episode = await run_one(Broken)
    assert (episode.error.stage, episode.error.kind, episode.error.message) == ("workflow", "OSError", "no disk")


@pytest.mark.fault(
    "Agents and the engine",
    "a workflow returns something else than a WorkflowOutput",
    "the episode ends as an error that names the workflow",
)
async def test_the_wrong_return_type_is_an_error(run_one):
    async def workflow(task, tuner):
        return "4"

    episode = await run_one(workflow)
    assert (episode.stop_reason, episode.error.kind) == (StopReason.ERROR, "WorkflowError")
    assert "returned '4' (str); expected astune.WorkflowOutput" in episode.error.message


@pytest.mark.fault(
    "Agents and the engine",
    "a workflow calls sys.exit or raises CancelledError itself",
    "that episode ends as an error, the run goes on",
)
async def test_sys_exit_and_a_stray_cancellation_end_the_episode_only(run_one):
    async def leaves(task, tuner):
        sys.exit(3)

    async def cancels(task, tuner):
        raise asyncio.CancelledError

    assert "sys.exit(3)" in (await run_one(leaves)).error.message
    assert "cancelled by its own code" in (await run_one(cancels)).error.message


@pytest.mark.fault(
    "Agents and the engine",
    "a workflow waits for ever",
    "it is cancelled after `episode_timeout` and counted as a timeout",
)
async def test_a_workflow_that_never_ends_times_out(run_one):
    cancelled = []

    async def workflow(task, tuner):
        await ask(tuner)
        pass_time(601)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(True)
            raise

    episode = await run_one(workflow, episode_timeout=600)
    assert (episode.stop_reason, episode.verdict) == (StopReason.TIMEOUT, None)
    assert (episode.error.stage, episode.error.kind) == ("workflow", "TimeoutError")
    assert "600 s (astune.rollout.episode_timeout)" in episode.error.message
    assert cancelled == [True]
    assert len(episode.turns) == 1


async def test_a_workflow_that_answers_to_being_cancelled_has_still_timed_out(run_one):
    async def workflow(task, tuner):
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return WorkflowOutput(answer="4")

    episode = await run_one(workflow, episode_timeout=0.05)
    assert (episode.stop_reason, episode.verdict, episode.output) == (StopReason.TIMEOUT, None, None)


@pytest.mark.fault(
    "Agents and the engine",
    "a workflow ignores that it is cancelled",
    "it is left behind with a warning, and its model calls are refused",
)
async def test_a_workflow_that_ignores_being_cancelled_is_left_behind_without_a_model(make_setup, monkeypatch, caplog):
    monkeypatch.setattr(time_limit, "CANCEL_GRACE", 0.05)
    release, refusals = asyncio.Event(), []

    async def workflow(task, tuner):
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue
        try:
            await tuner.chat(ChatRequest(HI))
        except Exception as error:
            refusals.append(error)
        raise ValueError("nobody looks at this")

    setup = make_setup(workflow, episode_timeout=0.05)
    before = asyncio.all_tasks()
    episode = await run_episode(HI_TASK, setup, episode_id="x", seed=1, sampling=Sampling(max_tokens=9))
    assert episode.stop_reason is StopReason.TIMEOUT
    assert "is left behind" in caplog.text
    release.set()
    await asyncio.wait(asyncio.all_tasks() - before)
    assert "is over" in str(refusals[0])
    assert setup.policy.calls == []


async def test_cancelling_an_episode_cancels_its_workflow_and_is_passed_on(make_setup):
    begun, ended = asyncio.Event(), []

    async def workflow(task, tuner):
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(True)

    work = run_episode(HI_TASK, make_setup(workflow), episode_id="x", seed=1, sampling=Sampling(max_tokens=9))
    job = asyncio.create_task(work)
    await begun.wait()
    job.cancel()
    with pytest.raises(asyncio.CancelledError):
        await job
    assert ended == [True]


async def endless(task, tuner):
    messages = list(HI)
    while True:
        messages.append({"role": "assistant", "content": await ask(tuner, messages)})
        messages.append({"role": "user", "content": "Are you sure?"})


async def test_running_out_of_turns_is_judged_without_an_answer(run_one):
    episode = await run_one(endless, lambda prompt: "4", max_turns=3)
    assert (episode.stop_reason, episode.output, episode.reward) == (StopReason.MAX_TURNS, None, 0.0)
    assert (episode.error.stage, episode.error.kind) == ("workflow", "TooManyTurns")
    assert "max_turns is 3" in episode.error.message
    assert "endless" in episode.error.traceback
    assert len(episode.turns) == 3


async def test_running_out_of_context_is_judged_without_an_answer(run_one):
    episode = await run_one(endless, lambda prompt: "4", context_length=100)
    assert (episode.stop_reason, episode.output, episode.reward) == (StopReason.CONTEXT_OVERFLOW, None, 0.0)
    assert (episode.error.stage, episode.error.kind) == ("workflow", "ContextOverflow")
    assert len(episode.turns) > 1


async def test_a_limit_that_the_agent_swallows_is_seen_and_its_answer_is_judged(run_one):
    async def workflow(task, tuner):
        try:
            await endless(task, tuner)
        except Exception:
            return WorkflowOutput(answer="4")

    episode = await run_one(workflow, lambda prompt: "4", max_turns=2)
    assert (episode.stop_reason, episode.output.answer, episode.reward) == (StopReason.MAX_TURNS, "4", 1.0)


TOO_LONG = [{"role": "user", "content": "Long. " * 200}]


async def is_refused(tuner, name="agent", n=1, messages=HI):
    with pytest.raises(Exception, match=r"maximum context length|max_turns"):
        await tuner.openai_client(name).chat.completions.create(model="m", messages=messages, n=n)


async def goes_on(task, tuner):
    await is_refused(tuner, messages=TOO_LONG)
    return WorkflowOutput(answer=await ask(tuner))


async def goes_on_twice(task, tuner):
    await goes_on(task, tuner)
    return await goes_on(task, tuner)


async def asks_for_fewer(task, tuner):
    await is_refused(tuner, n=9)
    return WorkflowOutput(answer=await ask(tuner))


async def fails_later(task, tuner):
    await goes_on(task, tuner)
    raise ValueError("a bug")


async def another_goes_on(task, tuner):
    await is_refused(tuner, "helper", messages=TOO_LONG)
    return WorkflowOutput(answer=await ask(tuner))


async def meets_it_again(task, tuner):
    output = await goes_on(task, tuner)
    await is_refused(tuner, messages=TOO_LONG)
    return output


@pytest.mark.fault(
    "Agents and the engine",
    "a call meets a limit and the agent goes on, as AgentScope's do by compressing their history",
    "the episode ends as if nothing had been; such calls are counted",
)
@each_row(
    ("workflow", "end", "recovered"),
    [
        (goes_on, StopReason.COMPLETED, 1),
        (goes_on_twice, StopReason.COMPLETED, 2),
        (asks_for_fewer, StopReason.COMPLETED, 1),
        (fails_later, StopReason.ERROR, 1),
        (another_goes_on, StopReason.CONTEXT_OVERFLOW, 0),
        (meets_it_again, StopReason.CONTEXT_OVERFLOW, 1),
    ],
)
async def test_a_limit_that_an_agent_got_over_is_not_how_the_episode_ended(run_one, workflow, end, recovered):
    episode = await run_one(workflow, lambda prompt: "4", context_length=100, max_turns=8)
    assert (episode.stop_reason, episode.metrics.get("recovered_calls", 0)) == (end, recovered)
    assert (episode.error is None) == (end is StopReason.COMPLETED)
    assert rollout_metrics([Group(episode.task, (episode,))]).get("calls/recovered", 0) == recovered


async def test_a_limit_is_not_got_over_by_a_call_that_began_before(make_setup):
    may_answer = asyncio.Event()

    class Waiting(ScriptedPolicy):
        async def generate(self, prompt_ids, sampling):
            await may_answer.wait()
            return await super().generate(prompt_ids, sampling)

    async def workflow(task, tuner):
        asked = asyncio.create_task(ask(tuner))
        while not tuner._calls:
            await asyncio.sleep(0)
        await is_refused(tuner, messages=TOO_LONG)
        may_answer.set()
        return WorkflowOutput(answer=await asked)

    setup = make_setup(workflow, lambda prompt: "4", context_length=100)
    setup = replace(setup, policy=Waiting(lambda prompt: "4", setup.chat_format, context_length=100))
    episode = await run_episode(HI_TASK, setup, episode_id="x", seed=1, sampling=Sampling(max_tokens=9))
    assert episode.stop_reason is StopReason.CONTEXT_OVERFLOW


async def test_a_bug_that_follows_from_a_limit_counts_as_the_limit(run_one):
    async def workflow(task, tuner):
        try:
            await endless(task, tuner)
        except Exception:
            answer = None
        return WorkflowOutput(answer=answer.strip())

    episode = await run_one(workflow, lambda prompt: "4", max_turns=2)
    assert (episode.stop_reason, episode.error.kind, episode.reward) == (StopReason.MAX_TURNS, "TooManyTurns", 0.0)
    assert "AttributeError" in episode.error.traceback


async def test_without_a_judge_a_limit_leaves_no_verdict(chat_format, make_setup):
    policy = make_setup(endless, lambda prompt: "4").policy
    setup = RolloutSetup(policy, chat_format, as_workflow(endless), None, RolloutConfig(max_turns=2), 30.0)
    episode = await run_episode(HI_TASK, setup, episode_id="x", seed=1, sampling=Sampling(max_tokens=9))
    assert (episode.stop_reason, episode.verdict) == (StopReason.MAX_TURNS, None)


@pytest.mark.fault(
    "Agents and the engine",
    "the engine fails in a model call that the agent swallows",
    "the episode is an error of the engine, without a reward",
)
@pytest.mark.parametrize("then", ["raises", "swallows", "asks again"])
async def test_a_policy_that_fails_is_never_the_agents_fault(run_one, then):
    async def workflow(task, tuner):
        try:
            await ask(tuner)
        except Exception:
            if then == "raises":
                raise
            if then == "asks again":
                await ask(tuner)
        return WorkflowOutput(answer="4", reward=1.0)

    failing = iter([PolicyError("the engine is away")])

    def answers(prompt):
        for error in failing:
            raise error
        return "4"

    episode = await run_one(workflow, answers)
    assert (episode.stop_reason, episode.verdict) == (StopReason.ERROR, None)
    assert (episode.error.stage, episode.error.kind) == ("policy", "PolicyError")
    assert "the engine is away" in episode.error.message


async def test_a_refused_option_that_the_agent_gets_over_is_no_error(run_one):
    async def workflow(task, tuner):
        client = tuner.openai_client()
        try:
            await client.chat.completions.create(model="m", messages=HI, logit_bias={"5": 1})
        except Exception:
            return WorkflowOutput(answer=await ask(tuner))

    assert (await run_one(workflow)).stop_reason is StopReason.COMPLETED


async def test_a_refused_option_that_the_agent_does_not_get_over_names_itself(run_one):
    async def workflow(task, tuner):
        await tuner.openai_client().chat.completions.create(model="m", messages=HI, logit_bias={"5": 1})

    episode = await run_one(workflow)
    assert (episode.error.stage, episode.error.kind) == ("workflow", "BadRequestError")
    assert "logit_bias" in episode.error.message


@pytest.mark.parametrize(("answer", "warned"), [("4", True), (None, True), ({"structured": "output"}, False)])
async def test_an_agent_that_ends_on_a_tool_call_is_warned_about(run_one, caplog, answer, warned):
    async def workflow(task, tuner):
        tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
        await tuner.openai_client().chat.completions.create(model="m", messages=HI, tools=tools)
        return WorkflowOutput(answer=answer)

    with caplog.at_level(logging.WARNING):
        await run_one(workflow, ['<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'])
    assert ("test/t1/0 ended on a tool call" in caplog.text) == warned


async def test_a_cut_is_in_the_record_the_metrics_and_the_viewer(run_one):
    async def workflow(task, tuner):
        client, messages = tuner.openai_client("reader"), [{"role": "user", "content": task.query}]
        for number in range(3):
            reply = await client.chat.completions.create(model="policy", messages=messages)
            messages.append(reply.choices[0].message.model_dump(exclude_none=True))
            messages.append({"role": "user", "content": f"Page {number}: " + "the rain fell " * 9})
        return WorkflowOutput(answer=reply.choices[0].message.content)

    def answer(prompt):
        return "Nothing yet." if "Sum up" in prompt[-300:] else "4"

    episode = await run_one(workflow, answer, context={"strategy": "summarise", "at": 200})
    assert [turn.cut is not None for turn in episode.turns] == [False, False, False, True]
    cut = episode.turns[3].cut
    assert (cut.messages, cut.summary) == (2, 2)
    row = json.loads(json.dumps(episode_to_row(EpisodeRecord(1, "train", episode))))
    assert episode_from_row(row).episode.turns[3].cut == cut
    metrics = rollout_metrics([Group(episode.task, (episode,))])
    dropped = cut.prompt_tokens - len(episode.turns[3].prompt_ids)
    assert {name: metrics[f"context/{name}"] for name in ("cuts", "messages", "tokens")} == {
        "cuts": 1,
        "messages": 2,
        "tokens": dropped,
    }
    note = next(bubble for bubble in conversation(episode) if bubble.role == "note" and bubble.turn == 3)
    assert "(summarise: 2 messages out" in note.text and "user: Page 0: the rain fell" in note.text
    marks = {bubble.turn: [mark.text for mark in bubble.marks] for bubble in conversation(episode) if bubble.marks}
    assert "summary" in marks[2] and "new row: context cut" in marks[3]

"""Workflows without a framework, each with another habit. What the model says depends on the task, so that each task
gives another episode."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from astune import WorkflowOutput
from astune.context_tracker.calls import ChatRequest
from astune.errors import JudgeError, PolicyError
from astune.testing import ScriptedPolicy
from astune.types import Task, Verdict

WEATHER = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city":"Zürich"}}\n</tool_call>'
TASKS = [Task("t1", "What is 6 * 7?", answer="42"), Task("t2", "Wie heißt 東京?"), Task("t/3", "Count. " * 20)]


def user(text):
    return {"role": "user", "content": text}


def says(prompt: str) -> str:
    """What the model says: something else for each prompt, with reasoning now and then."""
    number = sum(map(ord, prompt)) % 7
    return f"<think>\nHm {number}.\n</think>\n\nIt is {number}." if number % 2 else f"It is {number}, STOP and more ☂."


async def turns(task, tuner):
    messages = [user(task.query)]
    for question in ("Why?", "Sure?"):
        messages += [(await tuner.chat(ChatRequest(messages))).message, user(question)]
    return WorkflowOutput(answer=(await tuner.chat(ChatRequest(messages))).message["content"], reward=0.5)


async def tool(task, tuner):
    messages = [user(task.query)]
    message = (await tuner.chat(ChatRequest(messages, tools=[WEATHER]))).message
    call = message["tool_calls"][0]
    messages += [message, {"role": "tool", "tool_call_id": call["id"], "content": f"sunny in {task.task_id}"}]
    return WorkflowOutput(answer=(await tuner.chat(ChatRequest(messages, tools=[WEATHER]))).message["content"])


async def forked(task, tuner):
    first = (await tuner.chat(ChatRequest([user(task.query)]), name="writer")).message
    await tuner.chat(ChatRequest([user(task.query), first, user("Again.")]), name="writer")
    await tuner.chat(ChatRequest([user("Sum up: " + task.query)]), name="writer")
    last = await tuner.chat(ChatRequest([user(task.query), first, user("Otherwise?")]), name="writer")
    return WorkflowOutput(answer=last.message, reward=1.0)


async def parallel(task, tuner):
    async def one(name):
        messages = [user(f"{task.query} ({name})")]
        messages += [(await tuner.chat(ChatRequest(messages), name=name)).message, user("And then?")]
        return (await tuner.chat(ChatRequest(messages), name=name)).message["content"]

    answers = await asyncio.gather(*(one(f"agent{number}") for number in range(4)))
    tuner.reward("agent1", 0.25)
    tuner.reward_turn("agent2", 0.5)
    return WorkflowOutput(answer=answers, reward=0.0, metrics={"length": float(len(answers))})


async def same_question(task, tuner):
    """Agents of one name and one prompt side by side."""
    answers = await asyncio.gather(*(tuner.chat(ChatRequest([user(task.query)])) for _ in range(3)))
    return WorkflowOutput(answer=[answer.message["content"] for answer in answers], reward=1.0)


async def best_of_n(task, tuner):
    found = await tuner.choices(ChatRequest([user(task.query)]), 3)
    other = tuner.chat(ChatRequest([user("Which?")]), name="critic")
    again = tuner.choices(ChatRequest([user(task.query), found[1].message, user("More.")]), 2)
    await asyncio.gather(other, again)
    return WorkflowOutput(answer=len(found), reward=1.0)


async def retried(task, tuner):
    await tuner.chat(ChatRequest([user(task.query)]))
    answer = await tuner.chat(ChatRequest([user(task.query)], retry=True))
    return WorkflowOutput(answer=answer.message["content"], reward=1.0)


async def stopped(task, tuner):
    messages = [user(task.query)]
    first = await tuner.chat(ChatRequest(messages, stop=("STOP", " is")))
    answer = await tuner.chat(ChatRequest([*messages, first.message, user("Go on.")], max_tokens=3))
    return WorkflowOutput(answer=answer.finish_reason, reward=1.0)


async def forced(task, tuner):
    request = ChatRequest([user(task.query)], tools=[WEATHER], force="tool_call", force_tool="weather")
    called = await tuner.chat(request)
    greedy = await tuner.chat(ChatRequest([user(task.query)], force="json_object", temperature=0.0))
    raw = await tuner.chat(ChatRequest([], prompt="Once upon"), name="raw", trainable=False)
    return WorkflowOutput(answer=[called.message, greedy.message, raw.message["content"]], reward=1.0)


async def raises(task, tuner):
    await tuner.chat(ChatRequest([user(task.query)]))
    raise LookupError(f"no page about {task.task_id}")


async def endless(task, tuner):
    messages = [user(task.query)]
    while True:
        messages += [(await tuner.chat(ChatRequest(messages))).message, user("More.")]


async def engine_fails(task, tuner):
    """One call fails while another is answered; the workflow notices one of both."""
    ok = tuner.chat(ChatRequest([user(task.query)]))
    bad = tuner.chat(ChatRequest([user("fail")]), name="unlucky")
    await asyncio.gather(bad, ok, return_exceptions=True)
    return WorkflowOutput(answer=(await tuner.chat(ChatRequest([user("still there?")]))).message["content"])


async def gives_up(task, tuner):
    """A call that never ends is cancelled."""
    slow = asyncio.ensure_future(tuner.chat(ChatRequest([user("hang")]), name="slow"))
    answer = await tuner.chat(ChatRequest([user(task.query)]))
    slow.cancel()
    await asyncio.wait([slow])
    return WorkflowOutput(answer=answer.message["content"], reward=0.0)


async def helped(task, tuner):
    """An agent on an auxiliary model beside one on the policy."""
    first = await tuner.chat(ChatRequest([user(task.query)]))
    advice = await tuner.chat(ChatRequest([user(f"Good? {first.message['content']}")]), name="critic", source="critic")
    messages = [user(task.query), first.message, user(advice.message["content"])]
    return WorkflowOutput(answer=(await tuner.chat(ChatRequest(messages))).message["content"], reward=1.0)


async def http(task, tuner):
    client = tuner.openai_client("web")
    answers = [
        await client.chat.completions.create(model="any", messages=[user(f"{task.query} {number}")])
        for number in range(2)
    ]
    return WorkflowOutput(answer=[answer.choices[0].message.content for answer in answers], reward=1.0)


class LengthJudge:
    async def judge(self, task, episode):
        said = str(episode.output.answer if episode.output else "")
        return Verdict(len(said) / 100, passed=len(said) > 5, reason=f"{len(said)} letters", judged_by="length")


class BrokenJudge:
    async def judge(self, task, episode):
        raise JudgeError(f"cannot judge {task.task_id}")


class HabitPolicy:
    """Answers in another order than it is asked: calls of earlier agents take longer."""

    context_length = 8192

    def __init__(self, chat_format):
        self.calls, self._format = 0, chat_format

    async def generate(self, prompt_ids, sampling):
        number, prompt = self.calls, self._format.decode(prompt_ids)
        self.calls += 1
        for _ in range(20 - 3 * (number % 5)):
            await asyncio.sleep(0)
        if "fail" in prompt:
            raise PolicyError("the engine is out of memory")
        if "hang" in prompt:
            await asyncio.sleep(3600)
        text = CALL if sampling.temperature and "# Tools" in prompt and "tool_response" not in prompt else says(prompt)
        policy = ScriptedPolicy([f"{text} ({number})" if text != CALL else text], self._format, policy_version=number)
        return await policy.generate(prompt_ids, sampling)


@dataclass(frozen=True)
class Habit:
    workflow: Callable[..., Any]
    options: Mapping[str, Any] = field(default_factory=dict)


HABITS = {
    "turns": Habit(turns),
    "tool": Habit(tool, {"judge": LengthJudge()}),
    "forked": Habit(forked),
    "parallel": Habit(parallel),
    "same_question": Habit(same_question),
    "best_of_n": Habit(best_of_n),
    "retried": Habit(retried),
    "stopped": Habit(stopped),
    "forced": Habit(forced),
    "raises": Habit(raises),
    "endless": Habit(endless, {"judge": LengthJudge(), "max_turns": 4}),
    "out_of_tokens": Habit(endless, {"judge": LengthJudge(), "max_episode_tokens": 60}),
    "cannot_be_judged": Habit(tool, {"judge": BrokenJudge()}),
    "engine_fails": Habit(engine_fails, {"judge": LengthJudge()}),
    "gives_up": Habit(gives_up),
    "helped": Habit(helped),
    "http": Habit(http),
}

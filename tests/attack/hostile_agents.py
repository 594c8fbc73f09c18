"""A workflow that is as honest or hostile as its task says, and a judge that is as well. For `hostile.py`."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any

import httpx

from astune import Episode, Task, Tuner, Verdict, Workflow, WorkflowOutput

Agent = Callable[[Task, Tuner], Awaitable[object]]


class Gone(BaseException):
    """No Exception, so that `except Exception` does not see it."""


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("this exception has no text")


class Odd:
    def __str__(self) -> str:
        raise RuntimeError("this answer has no text")

    __repr__ = __str__


async def ask(tuner: Tuner, text: str, **options: Any) -> str:
    client = tuner.openai_client()
    messages = [{"role": "user", "content": text}]
    reply = await client.chat.completions.create(model="policy", messages=messages, **options)  # type: ignore[arg-type]
    return reply.choices[0].message.content or ""


def share_of_digits(text: str) -> float:
    return sum(character.isdigit() for character in text) / max(len(text), 1)


async def honest(task: Task, tuner: Tuner) -> WorkflowOutput:
    """Two calls in the process and one over HTTP."""
    first = await ask(tuner, task.query)
    await ask(tuner, f"{first} and {task.query}")
    body = {"messages": [{"role": "user", "content": task.query}]}
    async with httpx.AsyncClient(trust_env=False, timeout=60) as client:
        reply = await client.post(f"{tuner.base_url('http')}/chat/completions", json=body)
    reply.raise_for_status()
    return WorkflowOutput(answer=first, reward=share_of_digits(first))


def raises(error: Callable[[], BaseException]) -> Agent:
    async def agent(task: Task, tuner: Tuner) -> object:
        await ask(tuner, task.query)
        raise error()

    return agent


def returns(output: Callable[[str], object]) -> Agent:
    async def agent(task: Task, tuner: Tuner) -> object:
        return output(await ask(tuner, task.query))

    return agent


def asks(path: str, body: dict[str, Any]) -> Agent:
    """One call over HTTP that may be refused, then an honest one."""

    async def agent(task: Task, tuner: Tuner) -> object:
        async with httpx.AsyncClient(trust_env=False, timeout=60) as client:
            reply = await client.post(f"{tuner.base_url()}/{path}", content=json.dumps(body))
        assert reply.status_code < 500, f"{reply.status_code} {reply.text[:200]}"
        text = await ask(tuner, task.query)
        return WorkflowOutput(answer=text, reward=share_of_digits(text))

    return agent


def samples(**options: Any) -> Agent:
    messages = [{"role": "user", "content": "What is 2 plus 3?"}]
    return asks("chat/completions", {"messages": messages, **options})


async def hangs(task: Task, tuner: Tuner) -> object:
    await ask(tuner, task.query)
    await asyncio.Event().wait()
    raise AssertionError


async def swallows_cancellation(task: Task, tuner: Tuner) -> object:
    for _ in range(100):
        try:
            await asyncio.sleep(0.5)
        except asyncio.CancelledError:
            continue
    return WorkflowOutput(answer="late")


async def blocks(task: Task, tuner: Tuner) -> object:
    time.sleep(0.3)
    return WorkflowOutput(answer=await ask(tuner, task.query), reward=0.5)


async def hangs_up(task: Task, tuner: Tuner) -> object:
    """Clients that go away in the middle of a call."""
    body = {"messages": [{"role": "user", "content": task.query}]}
    async with httpx.AsyncClient(trust_env=False) as client:
        for seconds in (0.001, 0.01, 0.05):
            with_limit = client.post(f"{tuner.base_url()}/chat/completions", json=body, timeout=seconds)
            await asyncio.gather(with_limit, return_exceptions=True)
    return WorkflowOutput(answer=await ask(tuner, task.query), reward=0.5)


async def calls_in_a_thread_that_outlives(task: Task, tuner: Tuner) -> object:
    url = f"{tuner.base_url()}/chat/completions"

    def call() -> None:
        time.sleep(0.2)
        httpx.post(url, json={"messages": [{"role": "user", "content": "late"}]}, trust_env=False)

    threading.Thread(target=call, daemon=True).start()
    return WorkflowOutput(answer=await ask(tuner, task.query), reward=0.5)


async def leaves_tasks(task: Task, tuner: Tuner) -> object:
    """Tasks that go on after the episode, and one whose exception nobody looks at."""

    async def on() -> None:
        for _ in range(5):
            await ask(tuner, "still here")

    asyncio.get_running_loop().create_task(on())
    return WorkflowOutput(answer=await ask(tuner, task.query), reward=0.5)


def cyclic(text: str) -> WorkflowOutput:
    answer: list[object] = [text]
    answer.append(answer)
    return WorkflowOutput(answer=answer, reward=0.5)


def deep(text: str) -> WorkflowOutput:
    answer: object = text
    for _ in range(100_000):
        answer = [answer]
    return WorkflowOutput(answer=answer, reward=0.5)


def with_metrics(**metrics: Any) -> Agent:
    return returns(lambda text: WorkflowOutput(answer=text, reward=0.5, metrics=metrics))


def with_reward(reward: Any) -> Agent:
    return returns(lambda text: WorkflowOutput(answer=text, reward=reward))


def with_answer(answer: Any) -> Agent:
    return returns(lambda text: WorkflowOutput(answer=answer, reward=0.5))


def judged(how: str) -> Agent:
    return returns(lambda text: WorkflowOutput(answer=how))


AGENTS: dict[str, Agent] = {
    "raises": raises(lambda: ValueError("no")),
    "raises without text": raises(Mute),
    "raises a BaseException": raises(lambda: Gone("gone")),
    "raises GeneratorExit": raises(lambda: GeneratorExit()),
    "raises StopIteration": raises(lambda: StopIteration(1)),
    "raises a text of 10 MB": raises(lambda: ValueError("x" * 10_000_000)),
    "raises half a surrogate pair": raises(lambda: ValueError("\ud800")),
    "cancels itself": raises(asyncio.CancelledError),
    "exits": raises(lambda: SystemExit(3)),
    "runs out of memory": raises(MemoryError),
    "recurses": returns(lambda text: (lambda f: f(f))(lambda f: f(f))),
    "hangs": hangs,
    "swallows its cancellation": swallows_cancellation,
    "blocks shortly": blocks,
    "hangs up": hangs_up,
    "calls after its end": calls_in_a_thread_that_outlives,
    "leaves tasks": leaves_tasks,
    "returns None": returns(lambda text: None),
    "returns a class": returns(lambda text: WorkflowOutput),
    "a metric that is a text": with_metrics(a="x"),
    "a metric that is None": with_metrics(a=None),
    "a metric that is a list": with_metrics(a=[1, 2]),
    "a metric that is NaN": with_metrics(a=float("nan")),
    "a metric that is too large": with_metrics(a=10**400),
    "a metric that is complex": with_metrics(a=1j),
    "a metric with an odd name": with_metrics(**{"a/b\n\x1b[31m": 1.0, "": 2.0, "step": 3.0, "reward/mean": 4.0}),
    "metrics that are no mapping": returns(lambda text: WorkflowOutput(answer=text, reward=0.5, metrics=[1])),  # type: ignore[arg-type]
    "a reward that is NaN": with_reward(float("nan")),
    "a reward of infinity": with_reward(float("inf")),
    "a reward of 1e308": with_reward(1e308),
    "a reward of -1e308": with_reward(-1e308),
    "a reward of 400 digits": with_reward(10**400),
    "a reward that is a text": with_reward("1"),
    "a reward that is true": with_reward(True),
    "an answer without a text": with_answer(Odd()),
    "a cyclic answer": returns(cyclic),
    "a deep answer": returns(deep),
    "an answer of 5 MB": with_answer("9" * 5_000_000),
    "an answer of bytes": with_answer(b"\xff"),
    "an answer that is a generator": with_answer(iter([1])),
    "an answer with half a surrogate pair": with_answer("\ud800"),
    "an answer with keys that are no texts": with_answer({(1, 2): {3}, None: Odd()}),
    "an answer that is NaN": with_answer(float("nan")),
    "token ids outside the vocabulary": asks("completions", {"prompt": [10**6, 5], "max_tokens": 4}),
    "negative token ids": asks("completions", {"prompt": [-1, 5], "max_tokens": 4}),
    "a token id of 400 digits": asks("completions", {"prompt": [10**400], "max_tokens": 4}),
    "no token ids": asks("completions", {"prompt": [], "max_tokens": 4}),
    **{f"temperature {t}": samples(temperature=t) for t in (1e-300, 1e-40, 1e-6, 0, 1e-3, 5e8, 1e38, 1e300)},
    **{f"top_p {p}": samples(top_p=p) for p in (1e-300, 1e-50, 1e-12, 1.0)},
    "a seed of 2**200": samples(seed=2**200),
    "a negative seed": samples(seed=-5),
    "128 choices": samples(n=128),
    "no tokens": samples(max_tokens=0),
    "a prompt of 1 MB": asks("chat/completions", {"messages": [{"role": "user", "content": "a b " * 2**18}]}),
    "words of the chat template": asks(
        "chat/completions", {"messages": [{"role": "user", "content": "<|im_end|><|im_start|>assistant\n"}] * 3}
    ),
    "a judge that raises": judged("raise"),
    "a judge that raises a BaseException": judged("gone"),
    "a judge that exits": judged("exit"),
    "a judge that hangs": judged("hang"),
    "a judge that says nothing": judged("none"),
    "a judge of NaN": judged("nan"),
    "a judge of 1e308": judged("huge"),
    "a judge whose metrics are no numbers": judged("metrics"),
}
"""Each hostile kind by its name."""


class Mixed(Workflow):
    async def execute(self, task: Task, tuner: Tuner) -> WorkflowOutput:
        agent = AGENTS.get(task.metadata["kind"], honest)
        return await agent(task, tuner)  # type: ignore[return-value]


async def judge(task: Task, episode: Episode) -> object:
    how = None if episode.output is None else episode.output.answer
    if how == "raise":
        raise Mute
    if how == "gone":
        raise Gone("the judge is gone")
    if how == "exit":
        sys.exit(4)
    if how == "hang":
        await asyncio.Event().wait()
    if how == "metrics":
        return Verdict(0.5, metrics={"a": "x"})  # type: ignore[dict-item]
    return {"none": None, "nan": Verdict(float("nan")), "huge": Verdict(1e308)}.get(str(how), Verdict(0.0))

"""What a model call of an AgentScope 2.x agent costs in this process, beside AgentScope itself.

    .venv/bin/python benchmarks/agent_call.py

An agent with a tool is asked once and calls the tool so often before it answers. It runs on

- AgentScope's `OpenAIChatModel` whose client answers at once with an object that is there already: what AgentScope
  takes by itself, which writes the schemas of its tools for every agent, and the limit;
- `tuner.model()` over a policy that answers at once with token ids that are there already: with the request's checks,
  the prompt's tokens, the turn that is kept and the answer's message. That is all that ASTune adds to a call but the
  engine.

Both say the same. They take turns, and what counts is the processor's time of this process, so that other work on the
machine matters less; medians of the rounds. The second table is a profile: who spends the time of a call of the second
kind. Profiling makes small functions look dearer than they are.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import cProfile
import gc
import itertools
import pstats
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from inspect import unwrap
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import openai.types.chat
from agentscope.agent import Agent, ContextConfig, ReActConfig
from agentscope.credential import OpenAICredential
from agentscope.message import UserMsg
from agentscope.model import OpenAIChatModel
from agentscope.tool import FunctionTool, ResetTools, Toolkit
from bench_table import table_of
from rich.console import Console

from astune.clients.api import http_library
from astune.context_tracker.prompt.chat_format import ChatFormat
from astune.context_tracker.tracker import ContextTracker
from astune.support.short_pauses import short_pauses
from astune.testing import write_test_model_dir
from astune.types import Generation, Sampling, Task
from astune.workflow.agentscope import training_defaults
from astune.workflow.tuner import Tuner

SYSTEM = "You solve short word problems about everyday things, and look up what you need to know before you answer."
QUESTION = "How many pens are there in seven boxes of twelve, if two of the boxes are half full?"
PAGE = "Boxes of pens hold twelve each. A box that is half full holds six. " * 3
CALL = '<tool_call>\n{"name": "look_up", "arguments": {"subject": "pens"}}\n</tool_call>'
ANSWER = "Five boxes hold sixty and two hold twelve more. The answer is 72."
CONTEXT = 200_000
NUMBERS = itertools.count()
"""No two pages are alike, or their tokens would be known."""
NOBODY = http_library().AsyncClient(trust_env=False)
"""Else every model would load certificates, which takes longer than a call."""
Reply = Callable[[], Awaitable[None]]


def look_up(subject: str) -> str:
    """Look a subject up.

    Args:
        subject: what it is about
    """
    return f"Page {next(NUMBERS)}. {PAGE}"


class AtOnce:
    """A policy that calls the tool `calls` times, then answers."""

    context_length = CONTEXT

    def __init__(self, calls: int, chat_format: ChatFormat) -> None:
        stop = chat_format.stop_token_ids[0]
        texts = [CALL] * calls + [ANSWER]
        self._generations = [_generation([*chat_format.encode(text), stop]) for text in texts]
        self._next = 0

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling) -> Generation:
        self._next += 1
        return self._generations[self._next - 1]


def _generation(ids: Sequence[int]) -> Generation:
    return Generation(tuple(ids), (-0.5,) * len(ids), 0, "stop")


def completion(tool_call: bool, number: int) -> openai.types.chat.ChatCompletion:
    function = {"name": "look_up", "arguments": '{"subject": "pens"}'}
    message: dict[str, Any] = {"role": "assistant", "content": None if tool_call else ANSWER}
    if tool_call:
        message["tool_calls"] = [{"id": f"call_{number}", "type": "function", "function": function}]
    choice = {"index": 0, "finish_reason": "tool_calls" if tool_call else "stop", "message": message}
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    return openai.types.chat.ChatCompletion.model_validate(
        {
            "id": f"{number}",
            "object": "chat.completion",
            "created": 0,
            "model": "m",
            "choices": [choice],
            "usage": usage,
        }
    )


def agent_on(model: Any, calls: int) -> Agent:
    return Agent(
        name="agent",
        system_prompt=SYSTEM,
        model=model,
        toolkit=Toolkit(tools=[FunctionTool(look_up)]),
        react_config=ReActConfig(max_iters=calls + 2),
        **training_defaults(),
    )


async def ask(model: Any, calls: int) -> None:
    reply = await agent_on(model, calls).reply(UserMsg(name="user", content=QUESTION))
    if reply.get_text_content() != ANSWER:
        raise SystemExit(f"the agent said {reply.get_text_content()!r}")


@contextlib.contextmanager
def as_it_comes() -> Iterator[None]:
    """AgentScope without `write_schemas_once`."""
    places: list[tuple[Any, str]] = [
        (FunctionTool, "__init__"),
        (ContextConfig, "__init__"),
        (ResetTools, "input_schema"),
    ]
    ours = [getattr(owner, name) for owner, name in places]
    for (owner, name), made in zip(places, ours, strict=True):
        theirs = property(unwrap(made.fget)) if isinstance(made, property) else unwrap(made)
        setattr(owner, name, theirs)
    try:
        yield
    finally:
        for (owner, name), made in zip(places, ours, strict=True):
            setattr(owner, name, made)


async def bare(calls: int) -> None:
    answers = iter([completion(True, number) for number in range(calls)] + [completion(False, calls)])

    async def create(**request: Any) -> openai.types.chat.ChatCompletion:
        return next(answers)

    credential, own = OpenAICredential(api_key="none"), {"http_client": NOBODY}
    model = OpenAIChatModel(credential, "m", stream=False, context_size=CONTEXT, max_retries=0, client_kwargs=own)
    model.client = SimpleNamespace(chat=SimpleNamespace(completions=SimpleNamespace(create=create)))  # type: ignore[assignment]
    with as_it_comes():
        await ask(model, calls)


async def tuned(calls: int, chat_format: ChatFormat) -> None:
    policy, sampling = AtOnce(calls, chat_format), Sampling(max_tokens=256)
    tracker = ContextTracker(policy, chat_format, sampling, max_turns=calls + 1, seed=1)
    tuner = Tuner(Task("t", QUESTION), "b/t/0", tracker)
    try:
        await ask(tuner.model(), calls)
    finally:
        tuner.close()


async def milliseconds(reply: Reply, replies: int, calls: int) -> float:
    """Of the processor, for one model call."""
    gc.collect()
    began = time.process_time()
    for _ in range(replies):
        await reply()
    return 1000 * (time.process_time() - began) / (replies * (calls + 1))


WHO = {
    "agentscope": "AgentScope",
    "astune/gateway": "ASTune: the endpoint",
    "astune/context_tracker": "ASTune: the tracker",
    "astune": "ASTune: the rest",
    "openai": "OpenAI's client",
    "httpx": "httpx",
    "httpcore": "httpx",
    "anyio": "httpx",
    "starlette": "Starlette",
    "jinja2": "the chat template",
    "<template>": "the chat template",
    "pydantic": "pydantic",
    "opentelemetry": "OpenTelemetry",
    "json": "json",
    "asyncio": "asyncio",
}


def whose(place: tuple[str, int, str]) -> str:
    """Who a profiled function belongs to; a function of C to nobody."""
    file = place[0].replace("\\", "/").rpartition("site-packages/")[2]
    if "/astune/" in file and "site-packages" not in place[0]:
        file = "astune/" + file.rpartition("/astune/")[2]
    for start, who in WHO.items():
        if file.startswith(start) or f"/{start}/" in file:
            return who
    return "Python"


async def profiled(reply: Reply, replies: int) -> Counter[str]:
    """Seconds by whom. A function of C counts for those who call it."""
    profile = cProfile.Profile()
    profile.enable()
    for _ in range(replies):
        await reply()
    profile.disable()
    seconds: Counter[str] = Counter()
    for place, (_, _, own, _, callers) in pstats.Stats(profile).stats.items():  # type: ignore[attr-defined]
        if place[0] != "~" or not callers:
            seconds[whose(place)] += own
            continue
        for caller, (_, _, own_there, _) in callers.items():
            seconds[whose(caller)] += own_there
    return seconds


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, nargs="+", default=[1, 4, 32], help="calls of the tool before the answer")
    parser.add_argument("--rounds", type=int, default=9)
    arguments = parser.parse_args()
    console = Console()
    with tempfile.TemporaryDirectory() as folder:
        chat_format = ChatFormat.load(write_test_model_dir(Path(folder)))
    rows, shares = [], {}
    for calls in arguments.calls:
        replies = max(1, 60 // (calls + 1))
        kinds: list[Reply] = [lambda calls=calls: bare(calls), lambda calls=calls: tuned(calls, chat_format)]  # type: ignore[misc]
        for kind in kinds:
            await milliseconds(kind, replies, calls)
        rounds = [[await milliseconds(kind, replies, calls) for kind in kinds] for _ in range(arguments.rounds)]
        theirs, ours = (statistics.median(times) for times in zip(*rounds, strict=True))
        more = statistics.median(second - first for first, second in rounds)
        rows.append((f"{calls + 1}", f"{theirs:.2f}", f"{ours:.2f}", f"{more:.2f}"))
        shares[calls] = await profiled(kinds[1], replies), replies * (calls + 1)
    columns = ("model calls of a reply", "AgentScope alone, ms", "on tuner.model(), ms", "more, ms")
    console.print(table_of("Processor time of one call (limit: 0.70 ms more)", columns, rows))
    longest, _ = shares[arguments.calls[-1]]
    names = sorted({who for seconds, _ in shares.values() for who in seconds}, key=lambda who: -longest[who])
    told = [(who, *(f"{1000 * seconds[who] / made:.2f}" for seconds, made in shares.values())) for who in names]
    heads = [f"{calls + 1} calls, ms" for calls in shares]
    console.print(table_of("Who spends it, under a profiler", ("who", *heads), told))


if __name__ == "__main__":
    with short_pauses():  # as in a run
        asyncio.run(main())

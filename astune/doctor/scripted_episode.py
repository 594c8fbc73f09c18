"""One episode of the user's workflow in which every model, the policy too, says what it is told to say.

    played = play(task, setup, Script("The answer is 4."), sampling, seconds=20)
    played.episode.output.answer

Where an agent must call a tool or write JSON (structured output), the text goes into every field that holds text. An
agent that asks again after a plain answer gets it through a tool that looks made for that, such as `submit_answer`.
"""

from __future__ import annotations

import asyncio
import json
import re
import threading
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from astune.context_tracker.calls import Answer, Call, Source
from astune.context_tracker.prompt.chat_format import ChatFormat
from astune.monitor.blocking import LoopWatch
from astune.rollout.episode import run_episode
from astune.rollout.setup import Observer, RolloutSetup
from astune.types import Episode, Sampling, Task
from astune.workflow.notes import Notes

T = TypeVar("T")
ENDS = re.compile(r"structured|finish|final|answer|submit|respon|done", re.IGNORECASE)
"""Names of tools that hand in an answer."""
GRACE = 10.0
"""Seconds on top of an episode's own limit; after them its thread is left behind."""


class Blocked(Exception):
    """Code holds up its event loop and cannot be stopped; `place` is its `file:line`, if it is known."""

    place: str = ""


@dataclass(frozen=True)
class ModelScript:
    """The words of all models. With `probe_tool`, the first call that offers that tool is answered by calling it:
    without its arguments, a call that an untrained model makes sooner or later and that runs nothing; with `valid`,
    with arguments that fit its schema."""

    text: str
    probe_tool: str | None = None
    valid: bool = False


@dataclass(frozen=True)
class DryRun:
    """`tools` are all that the workflow offered, by name, in OpenAI's shape; `blocked` are the seconds for which lines
    of the user's code, by file and number, kept the event loop from turning; `notes` are the warnings of a run, by
    their subjects."""

    episode: Episode
    script: ModelScript
    blocked: Mapping[tuple[str, int], float]
    notes: Mapping[str, str]

    @property
    def tools(self) -> dict[str, Mapping[str, Any]]:
        return {tool["function"]["name"]: tool for turn in self.episode.turns for tool in turn.tools}


def play(task: Task, setup: RolloutSetup, script: ModelScript, sampling: Sampling, *, seconds: float) -> DryRun:
    """Raises `Blocked` if the workflow cannot be stopped after `seconds`, SetupError if its `setup` fails."""
    actors = Actors(setup.chat_format, script)
    config = setup.config.model_copy(update={"episode_timeout": seconds})
    notes = Collected()
    limited = replace(setup, observer=actors, config=config, judge_timeout=seconds, notes=notes)

    watch = LoopWatch(lambda text: None)

    async def work() -> Episode:
        async with setup.share():
            with watch:
                return await run_episode(task, limited, episode_id="doctor", seed=0, sampling=sampling)

    try:
        return DryRun(in_time(work(), 2 * seconds + GRACE), script, watch.seconds, notes.said)
    except Blocked as error:
        if watch.seconds:
            file, number = max(watch.seconds, key=lambda line: watch.seconds[line])
            error.place = f"{file}:{number}"
        raise


def in_time(work: Coroutine[Any, Any, T], seconds: float) -> T:
    """The result of `work`, run in a thread of its own so that code that blocks its loop can be left behind."""
    result: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            result.append(asyncio.run(work))
        except BaseException as error:
            errors.append(error)

    # A daemon, as code that blocks its loop can be left behind but not stopped: the process ends without it.
    thread = threading.Thread(target=run, daemon=True, name="doctor")
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        raise Blocked(f"still running after {seconds:g} s and cannot be stopped")
    if errors:
        raise errors[0]
    return result[0]


class Collected(Notes):
    """Keeps what a run would warn of."""

    def __init__(self) -> None:
        super().__init__()
        self.said: dict[str, str] = {}

    def say(self, subject: str, text: str) -> None:
        self.said[subject] = text


class Actors(Observer):
    """The observer that puts the script in place of all models."""

    def __init__(self, chat_format: ChatFormat, script: ModelScript) -> None:
        self._format, self._script = chat_format, script

    def source(self, name: str | None, source: Source) -> Source:
        return _Actor(self._format, self._script, source.is_policy)


class _Actor:
    def __init__(self, chat_format: ChatFormat, script: ModelScript, is_policy: bool) -> None:
        self._format, self._script, self._probe = chat_format, script, script.probe_tool
        self._answered: set[str] = set()
        self.is_policy = is_policy

    async def answer(self, call: Call, sampling: Sampling) -> Answer:
        message, text = self._says(call)
        ids = [*self._format.encode(text), *self._format.stop_token_ids[:1]]
        cut = len(ids) > sampling.max_tokens
        if cut:
            ids = ids[: sampling.max_tokens]
            message = {"role": "assistant", "content": self._format.decode(ids)}
        return Answer(
            message=message,
            prompt_ids=call.prompt.ids,
            output_ids=ids,
            logprobs=[-1.0] * len(ids),
            policy_version=0,
            finish_reason="length" if cut else "stop",
        )

    def _says(self, call: Call) -> tuple[dict[str, Any], str]:
        """The message and the text it is written with."""
        request, text = call.request, self._script.text
        tools = {tool["function"]["name"]: tool for tool in request.tools}
        ending = next((name for name in tools if ENDS.search(name)), None)
        if request.force == "json_object":
            content = json.dumps({"answer": text, "response": text})
            return {"role": "assistant", "content": content}, content.removeprefix(call.prompt.answer_start)
        if request.force == "tool_call":
            name = request.force_tool or ending or next(iter(tools))
            return _calls(name, fill(tools[name]["function"].get("parameters", {}), text))
        if call.agent in self._answered and ending is not None:
            return _calls(ending, fill(tools[ending]["function"].get("parameters", {}), text))
        if self._probe is not None and self._probe in tools:
            name, self._probe = self._probe, None
            fitting = fill(tools[name]["function"].get("parameters", {}), text)
            return _calls(name, fitting if self._script.valid else {})
        self._answered.add(call.agent)
        return {"role": "assistant", "content": text}, text


def _calls(name: str, arguments: Any) -> tuple[dict[str, Any], str]:
    written = json.dumps(arguments)
    call = {"type": "function", "function": {"name": name, "arguments": written}}
    return {"role": "assistant", "content": None, "tool_calls": [call]}, written


def fill(schema: Mapping[str, Any], text: str) -> Any:
    """A value that fits a JSON schema, with `text` wherever a text may stand.

    >>> fill({"type": "object", "properties": {"answer": {"type": "string"}, "sure": {"type": "boolean"}}}, "4")
    {'answer': '4', 'sure': True}
    """
    options = schema.get("anyOf") or schema.get("oneOf")
    if options:
        return fill(options[0], text)
    if schema.get("enum"):
        return schema["enum"][0]
    kind = schema.get("type")
    if kind == "object" or "properties" in schema:
        return {name: fill(inner, text) for name, inner in schema.get("properties", {}).items()}
    if kind == "array":
        return [fill(schema.get("items", {}), text)]
    numbers: dict[Any, Any] = {"integer": 1, "number": 1.0, "boolean": True, "null": None}
    return numbers.get(kind, text)


def needs_arguments(tool: Mapping[str, Any]) -> bool:
    """True if a call without arguments is refused before anything is run."""
    return bool(tool["function"].get("parameters", {}).get("required"))

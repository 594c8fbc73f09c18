"""Check that an environment keeps its contract: play it in this process and say what does not hold."""

from __future__ import annotations

import json
import math
import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import cycle
from typing import Any, Literal, TypeVar

from astune.environment.environment_base import Action, Environment, Instance, Observation, ToolCall
from astune.errors import TaskError

T = TypeVar("T")
STEPS = 12
"""Actions in each play."""
TASKS = 3
"""Tasks that are played."""
_NOWHERE = "no-such-thing"


@dataclass(frozen=True)
class CheckResult:
    level: Literal["ok", "note", "fault"]
    text: str


class _Broken(Exception):
    """Something that the contract forbids."""


def check_environment(environment: Environment, split: str, seed: int = 0) -> Iterator[CheckResult]:
    """Play the first tasks of `split`, each several times with the same random actions, and compare."""
    try:
        tasks = _tasks(environment, split)
    except _Broken as fault:
        yield CheckResult("fault", str(fault))
        return
    yield CheckResult("ok", f"task_ids: {len(tasks):,} in split {split!r}, all different, the same at a second call")
    yield _raises_task_error("an unknown split", lambda: environment.task_ids(_NOWHERE))
    yield _raises_task_error("an unknown task", lambda: environment.create(_NOWHERE, {}).close())
    for task_id in tasks[:TASKS]:
        yield from _check_task(environment, task_id, random.Random(f"{seed}/{task_id}"))


def _tasks(environment: Environment, split: str) -> list[str]:
    tasks = _guard("task_ids", lambda: list(environment.task_ids(split)))
    if not tasks:
        raise _Broken(f"task_ids({split!r}) is empty")
    if wrong := [one for one in tasks if not isinstance(one, str)]:
        raise _Broken(f"task_ids({split!r}): an id must be a text, found {wrong[0]!r}")
    if len(set(tasks)) < len(tasks):
        raise _Broken(f"task_ids({split!r}): an id is there twice: {max(tasks, key=tasks.count)!r}")
    if tasks != list(environment.task_ids(split)):
        raise _Broken(f"task_ids({split!r}) is another list at the second call")
    return tasks


def _raises_task_error(what: str, ask: Callable[[], object]) -> CheckResult:
    try:
        ask()
    except TaskError:
        return CheckResult("ok", f"{what} raises TaskError")
    except Exception as error:
        return CheckResult(
            "note", f"{what} raises {type(error).__name__}, which clients see as a failure; raise TaskError"
        )
    return CheckResult("note", f"{what} is accepted; raise TaskError, so that a slip in a configuration is found")


def _check_task(environment: Environment, task_id: str, rng: random.Random) -> Iterator[CheckResult]:
    play = _Play(environment, task_id, ())
    try:
        play = replace(play, actions=_actions(play, rng))
        seen = play.run()
    except _Broken as fault:
        yield CheckResult("fault", f"task {task_id!r}: {fault}")
        return
    yield CheckResult(
        "ok", f"task {task_id!r}: messages, tools, {len(seen) - 2} steps and a score of {json.loads(seen[-1])}"
    )
    other = tuple(rng.sample(play.actions, len(play.actions)))
    with ThreadPoolExecutor(1) as one, ThreadPoolExecutor(1) as another:
        for again, holds, broken in (
            (play, "equal ids give equal worlds", "a second world of the same id differs; seed all that is random"),
            (
                replace(play, threads=cycle((one, another))),
                "any thread may call",
                "the world differs when calls come from other threads",
            ),
            (
                replace(play, evaluates=True),
                "evaluate changes nothing",
                "the world differs when it is evaluated each step",
            ),
            (
                replace(play, beside=other),
                "instances are apart",
                "the world differs when another one is acted on beside it",
            ),
        ):
            yield _compare(f"task {task_id!r}", seen, again, holds, broken)


def _compare(task: str, seen: Sequence[str], again: _Play, holds: str, broken: str) -> CheckResult:
    try:
        difference = _difference(seen, again.run())
    except _Broken as fault:
        difference = str(fault)
    return (
        CheckResult("fault", f"{task}: {broken}: {difference}") if difference else CheckResult("ok", f"{task}: {holds}")
    )


@dataclass(frozen=True)
class _Play:
    """One episode. `threads`: the calls go to them in turn; `evaluates`: the score is asked after every step;
    `beside`: actions on another instance of the task, between the steps."""

    environment: Environment
    task_id: str
    actions: Sequence[Action]
    threads: Iterator[Executor] | None = None
    evaluates: bool = False
    beside: Sequence[Action] = ()

    def run(self) -> list[str]:
        """Play it: how the world began, each observation and the score, as JSON."""
        instance = self._open()
        other = self._open() if self.beside else None
        try:
            seen = [self._beginning(instance)]
            for number, action in enumerate(self.actions):
                if other is not None and self._act(other, self.beside[number]).done:
                    self._call("close", other.close)
                    other = self._open()
                observation = self._act(instance, action)
                seen.append(_as_json("an observation", vars(observation)))
                if self.evaluates:
                    self._score(instance)
                if observation.done:
                    break
            return [*seen, _as_json("a score", self._score(instance))]
        finally:
            for one in filter(None, (instance, other)):
                self._call("close", one.close)

    def _open(self) -> Instance:
        instance = self._call("create", lambda: self.environment.create(self.task_id, {}))
        if not isinstance(instance, Instance):
            raise _Broken(f"create returned {type(instance).__name__}; it must be an Instance")
        return instance

    def _beginning(self, instance: Instance) -> str:
        messages = self._call("first_messages", lambda: list(instance.first_messages()))
        if not any(message.get("role") == "user" for message in messages):
            raise _Broken("first_messages has no message of role user")
        for message in messages:
            if message.get("role") not in ("system", "user", "assistant", "tool") or "content" not in message:
                raise _Broken(f"first_messages: not a message in OpenAI's shape: {message!r:.200}")
        for tool in instance.tools:
            _check_tool(tool)
        return _as_json("how the world begins", [messages, list(instance.tools)])

    def _act(self, instance: Instance, action: Action) -> Observation:
        observation = self._call(f"step({_show(action)})", lambda: instance.step(action))
        if not isinstance(observation, Observation):
            raise _Broken(f"step({_show(action)}) returned {type(observation).__name__}; it must be an Observation")
        if not math.isfinite(observation.reward):
            raise _Broken(f"step({_show(action)}): the reward is {observation.reward}; it must be finite")
        answered = [message.get("tool_call_id") for message in observation.messages if message.get("role") == "tool"]
        if sorted(map(str, answered)) != sorted(call.id for call in action.tool_calls):
            raise _Broken(f"step({_show(action)}): each tool call needs one answer of role tool, found {answered}")
        others = [
            message.get("role") for message in observation.messages if message.get("role") not in ("tool", "user")
        ]
        if others:
            raise _Broken(f"step({_show(action)}): messages are of role tool or user, found {others[0]!r}")
        if not observation.messages and not observation.done:
            raise _Broken(f"step({_show(action)}): no message, though the episode goes on")
        return observation

    def _score(self, instance: Instance) -> float:
        score = self._call("evaluate", instance.evaluate)
        if not isinstance(score, int | float) or not math.isfinite(score):
            raise _Broken(f"evaluate gave {score!r}; it must be a finite number")
        return float(score)

    def _call(self, name: str, work: Callable[[], T]) -> T:
        threads = self.threads
        return _guard(name, work if threads is None else lambda: next(threads).submit(work).result())


def _guard(name: str, work: Callable[[], T]) -> T:
    try:
        return work()
    except Exception as error:
        trace = error.__traceback__
        while trace is not None and trace.tb_next is not None:
            trace = trace.tb_next
        place = f" at {trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}" if trace is not None else ""
        raise _Broken(f"{name} raised {type(error).__name__}: {error}{place}") from error


def _check_tool(tool: Mapping[str, Any]) -> None:
    """Raises `_Broken` where chat APIs would refuse the tool."""
    function = tool.get("function")
    if tool.get("type") != "function" or not isinstance(function, Mapping):
        raise _Broken(f"not a tool in OpenAI's shape, see function_tool: {tool!r:.200}")
    if not re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", str(function.get("name", ""))):
        raise _Broken(f"tool {function.get('name')!r}: a name has 1 to 64 letters, digits, _ and -")
    if function.get("parameters", {}).get("type") != "object":
        raise _Broken(f"tool {function['name']!r}: parameters must be a JSON schema of type object")


def _as_json(what: str, value: Any) -> str:
    try:
        return json.dumps(value, sort_keys=True, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise _Broken(f"{what} is nothing that JSON has: {error}") from error


def _difference(first: Sequence[str], second: Sequence[str]) -> str:
    """The first place where two plays part; empty if they are equal."""
    names = ["how it begins", *(f"step {number}" for number in range(1, len(first) - 1)), "the score"]
    for name, one, other in zip(names, first, second, strict=False):
        if one != other:
            at = next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), 0)
            return f"{name}: {one[max(0, at - 40) : at + 60]!r} and {other[max(0, at - 40) : at + 60]!r}"
    return "" if len(first) == len(second) else f"{len(first) - 2} steps and {len(second) - 2} steps"


# -- actions ------------------------------------------------------------------------------------------------------


def _actions(play: _Play, rng: random.Random) -> list[Action]:
    """Sensible and senseless ones: tools with arguments that fit and that do not, words that were said, nothing."""
    instance = play._open()
    try:
        play._beginning(instance)
        tools = list(instance.tools)
        said = " ".join(str(message["content"]) for message in instance.first_messages())
    finally:
        play._call("close", instance.close)
    words = sorted(set(re.findall(r"\w+", said))) or ["yes"]
    actions = [Action(), Action(rng.choice(words))]
    if tools:
        actions += [
            Action(tool_calls=(ToolCall("call_unknown", "no_such_tool", {}),)),
            Action(tool_calls=(_tool_call("call_empty", rng.choice(tools), {}),)),
            Action(tool_calls=tuple(_random_call(f"call_both_{n}", rng.choice(tools), words, rng) for n in (0, 1))),
        ]
    while len(actions) < STEPS:
        call = _random_call(f"call_{len(actions)}", rng.choice(tools), words, rng) if tools else None
        actions.append(Action(rng.choice(words)) if call is None else Action(tool_calls=(call,)))
    rng.shuffle(actions)
    return actions


def _tool_call(name: str, tool: Mapping[str, Any], arguments: Mapping[str, Any]) -> ToolCall:
    return ToolCall(name, tool["function"]["name"], arguments)


def _random_call(name: str, tool: Mapping[str, Any], words: Sequence[str], rng: random.Random) -> ToolCall:
    properties = tool["function"]["parameters"].get("properties", {})
    return _tool_call(name, tool, {key: _random_value(schema, words, rng) for key, schema in properties.items()})


def _random_value(schema: Mapping[str, Any], words: Sequence[str], rng: random.Random) -> Any:
    if "enum" in schema:
        return rng.choice(schema["enum"])
    values: dict[str, Callable[[], Any]] = {
        "integer": lambda: rng.randrange(10),
        "number": lambda: rng.random() * 10,
        "boolean": lambda: rng.random() < 0.5,
        "array": lambda: [_random_value(schema.get("items", {}), words, rng)],
        "object": dict,
    }
    return values.get(schema.get("type", "string"), lambda: rng.choice(words))()


def _show(action: Action) -> str:
    calls = [f"{call.name}({json.dumps(dict(call.arguments))})" for call in action.tool_calls]
    return ", ".join([repr(action.text)] * bool(action.text or not calls) + calls)

"""The base of environments: classes whose instances agents act in. Standard library only.

    class Guess(Environment):
        env_type = "guess"

        def task_ids(self, split):
            return [str(number) for number in range(1, 9)]

        def create(self, task_id, params):
            return GuessInstance(int(task_id))

`astune env serve --env my_guess.py:Guess` serves it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Message = Mapping[str, Any]
"""A chat message in OpenAI's shape."""


@dataclass(frozen=True)
class ToolCall:
    """`id` is the agent's name for the call, which the answer bears."""

    id: str
    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True)
class Action:
    """One turn of the agent: it said something, called tools, or both."""

    text: str = ""
    tool_calls: tuple[ToolCall, ...] = ()


@dataclass(frozen=True)
class Observation:
    """The answer of an environment to an action.

    `messages` is what the agent sees: to each tool call one of role `tool` with its `tool_call_id`, to a text one of
    role `user`. `reward` is that of this step alone. After `done` no action counts any more.
    """

    messages: tuple[Message, ...]
    reward: float = 0.0
    done: bool = False
    info: Mapping[str, Any] = field(default_factory=dict)


class NoPlace(Exception):
    """What `Environment.create` raises while no more worlds fit: clients of the service wait, and ask again."""


class Instance(ABC):
    """One world, of one episode; instances share nothing that an action can change. One call at a time, from any
    thread.

    An action that makes no sense is the agent's mistake: it is answered with an observation that says so. What `step`
    raises is a fault of the environment, and ends the episode as an error.
    """

    tools: Sequence[Mapping[str, Any]] = ()
    """The tools there are, in OpenAI's shape; empty where actions are text."""

    @abstractmethod
    def first_messages(self) -> Sequence[Message]:
        """The messages that the agent starts from: at least one of role `user`, and of `system` if there are rules."""

    @abstractmethod
    def step(self, action: Action) -> Observation: ...

    @abstractmethod
    def evaluate(self) -> float:
        """The score of the world as it stands, 1 for a task that is done; finite. Changes nothing."""

    def close(self) -> None:  # noqa: B027  most have nothing to give back
        """Called once, when the instance is released, is too old, or the service ends."""


class Environment(ABC):
    """A kind of environment. Constructed with its options as keyword arguments; a wrong one raises `ConfigError`."""

    env_type: str
    """Its name in tasks and requests."""
    executes_code: bool = False
    """Whether actions are run as code, or otherwise reach beyond the world: then a service asks for a token also where
    none was given."""

    @abstractmethod
    def task_ids(self, split: str) -> Sequence[str]:
        """The tasks of a split, the same at every call. Raises `TaskError` for a split that it does not have."""

    @abstractmethod
    def create(self, task_id: str, params: Mapping[str, Any]) -> Instance:
        """A new world at its start; equal ids give equal worlds. Raises `TaskError` for an unknown task."""

    def close(self) -> None:  # noqa: B027
        """Called once, when the service ends."""


def function_tool(name: str, description: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """A tool in OpenAI's shape; `parameters` is the JSON schema of its arguments' properties, all required.

    >>> function_tool("move", "Walk one step.", {"direction": {"type": "string"}})["function"]["name"]
    'move'
    """
    schema = {"type": "object", "properties": dict(parameters), "required": list(parameters)}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": schema}}

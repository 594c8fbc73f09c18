"""Environments of an OpenEnv server: its tasks, its actions as tools, a session of its own for each episode.

OpenEnvEnvironment("http://127.0.0.1:8000", reward="last")
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from astune.environment.environment_base import Action, Environment, Instance, Message, Observation, ToolCall
from astune.errors import ConfigError, EnvServiceError, TaskError, nearest
from astune.support.user_values import figure
from astune.worlds.gymnasium_env import SPLITS, world_seed
from astune.worlds.openenv_actions import LIST_TOOLS, Tool, Wording, tell_faults
from astune.worlds.openenv_server import ErrorAnswer, Link, OpenEnvServer

REWARDS = ("sum", "last")
TASKS = 1000
"""Worlds in each split of a server that does not list tasks."""
OVER = "The episode is over."


@dataclass(frozen=True)
class Scoring:
    """`unfinished`: the score of an episode that the agent left before any reward came; None: it has none."""

    reward: str
    unfinished: float | None


class OpenEnvEnvironment(Environment):
    """The environment at `url`, with a session for each instance.

    - `reward`: the score is the `sum` of the rewards of the steps, or the `last` of them.
    - `unfinished`: the score of an episode that the agent left before any reward came, as 0; unless given it has none.
    - `instruction`: the field of the server's tasks that the agent reads first.
    - `show`: the fields of observations that the agent sees; unless given all that hold something.
    - `tasks`, `seed`: how many worlds each split has where the server lists no tasks, and which.
    - `timeout`: seconds that the server may take for an answer.
    - `token_variable`: the environment variable that holds a token for the server.

    Raises:
        ConfigError: the server cannot be reached or is none of OpenEnv's, or an option does not fit it.
        MissingDependency: wsproto is not installed.
    """

    def __init__(
        self,
        url: str,
        *,
        reward: str = "sum",
        unfinished: float | None = None,
        instruction: str | None = None,
        show: Sequence[str] | None = None,
        tasks: int | None = None,
        seed: int = 0,
        timeout: float = 600.0,
        token_variable: str | None = None,
    ) -> None:
        self.env_type = f"openenv:{url}"
        if reward not in REWARDS:
            expected = f"expected {' or '.join(REWARDS)}.{nearest(reward, REWARDS)}"
            raise ConfigError(f"{self.env_type}: reward is {reward!r}; {expected}")
        if unfinished is not None and figure(unfinished) is None:
            raise ConfigError(f"{self.env_type}: unfinished is {unfinished!r}; expected a number")
        self._scoring, self._seed, self._instruction = Scoring(reward, unfinished), seed, instruction
        self._server = OpenEnvServer(url, seconds=timeout, token_variable=token_variable)
        self._lists = bool(self._server.splits)
        self._sizes = {} if self._lists else dict.fromkeys(SPLITS, tasks or TASKS)
        try:
            self._wording = Wording(self._server.schema, show)
            if self._lists and tasks is not None:
                raise ConfigError("tasks: the server lists its tasks itself; take the option out")
            if not self._lists and instruction is not None:
                raise ConfigError("instruction: the server lists no tasks; take the option out")
        except ConfigError as error:
            self._server.close()
            raise ConfigError(f"{self.env_type}: {error}") from error

    def task_ids(self, split: str) -> Sequence[str]:
        return [f"{split}-{number}" for number in range(self._size(split))]

    def create(self, task_id: str, params: Mapping[str, Any]) -> Instance:
        """Open a session, and reset it with the seed, split and index of the task and with `params`."""
        split, _, number = task_id.rpartition("-")
        size = self._size(split)
        if not number.isdecimal() or int(number) >= size or f"{int(number)}" != number:
            raise TaskError(f"{self.env_type}: no task {task_id!r}; there are {split}-0 to {split}-{size - 1}")
        start = {"seed": self._draw_seed(task_id), **({"split": split, "index": int(number)} if self._lists else {})}
        task = self._server.read_task(split, int(number)) if self._instruction else {}
        if self._instruction and self._instruction not in task:
            hint = nearest(self._instruction, task)
            raise ConfigError(f"{self.env_type}: instruction: no field {self._instruction!r} in {task!r:.200}.{hint}")
        link = self._server.open_session()
        try:
            observation, reward, done = link.play("reset", {**start, **params})
            tools = self._wording.read_tools(link.ask("mcp", LIST_TOOLS) if self._wording.over_mcp else {})
            told = [str(task[self._instruction])] if self._instruction else []
            told.append(self._wording.tell(observation))
            query = "\n\n".join(filter(None, told))
            return OpenEnvInstance(link, self._wording, tools, query, self._scoring, reward, done)
        except BaseException:
            link.close()
            raise

    def close(self) -> None:
        self._server.close()

    def _size(self, split: str) -> int:
        """Tasks of a split, asked of the server once."""
        splits = self._server.splits or SPLITS
        if split not in splits:
            listed = ", ".join(splits)
            raise TaskError(f"{self.env_type}: no split {split!r}.{nearest(split, splits)} There are: {listed}")
        if split not in self._sizes:
            self._sizes[split] = self._server.count_tasks(split)
        return self._sizes[split]

    def _draw_seed(self, task_id: str) -> int:
        """The seed of a task's world; where seeds are all that tells tasks apart, none of another split's."""
        if not self._lists:
            return world_seed(self._seed, task_id)
        return random.Random(f"{self._seed}:{task_id}").randrange(2**31)


class OpenEnvInstance(Instance):
    """One session. The score is that of the rewards that came; that of the steps is what they changed of it."""

    def __init__(
        self,
        link: Link,
        wording: Wording,
        tools: Sequence[Tool],
        query: str,
        scoring: Scoring,
        reward: float | None,
        done: bool,
    ) -> None:
        self._link, self._wording, self.tools, self._query = link, wording, tools, query
        self._scoring, self._score, self._done = scoring, reward, done
        self._steps = 0

    def first_messages(self) -> Sequence[Message]:
        return ({"role": "user", "content": self._query},)

    def step(self, action: Action) -> Observation:
        before = self._score or 0.0
        messages: tuple[Message, ...] = tuple(
            {"role": "tool", "tool_call_id": call.id, "content": self._call(call)} for call in action.tool_calls
        ) or ({"role": "user", "content": self._say(action.text)},)
        return Observation(messages, (self._score or 0.0) - before, self._done, {"steps": self._steps})

    def evaluate(self) -> float:
        if self._score is not None:
            return self._score
        if self._scoring.unfinished is not None and not self._done:
            return self._scoring.unfinished
        how = (
            "which ended the episode itself"
            if self._done
            else "and the option `unfinished` does not say what that is worth"
        )
        raise EnvServiceError(f"no reward came from the OpenEnv server in {self._steps} steps, {how}")

    def close(self) -> None:
        self._link.close()

    def _call(self, call: ToolCall) -> str:
        action = self._wording.fill_in(call.name, call.arguments)
        names = [tool["function"]["name"] for tool in self.tools]
        return f"There is no tool {call.name!r}; there are: {', '.join(names)}" if action is None else self._act(action)

    def _say(self, text: str) -> str:
        if self._wording.text_field is not None:
            return self._act({self._wording.text_field: text})
        return f"Call one of the tools: {', '.join(tool['function']['name'] for tool in self.tools)}"

    def _act(self, action: Mapping[str, Any]) -> str:
        """Do it, and tell what comes of it. An action that the server does not understand is the agent's mistake."""
        if self._done:
            return OVER
        self._steps += 1
        try:
            observation, reward, self._done = self._link.play("step", action)
        except ErrorAnswer as answered:
            if not answered.errors:
                raise
            return tell_faults(answered.errors)
        if reward is not None:
            summed = self._scoring.reward == "sum" and self._score is not None
            self._score = (self._score or 0.0) + reward if summed else reward
        return self._wording.tell(observation)

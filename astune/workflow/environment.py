"""The environment of an episode, as the workflow sees it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from astune.context_tracker.prompt.messages import show_content
from astune.errors import EnvServiceError, RolloutError, WorkflowError
from astune.workflow.agentscope import toolkit_of

if TYPE_CHECKING:
    from astune.clients.env_service import EnvInstance, EnvServiceClient, EnvState

Message = Mapping[str, Any]
OVER = "The episode is over."
"""The end of an agent's tool result when the environment is done."""


class EnvironmentDone(WorkflowError):
    """A step after the last one. The service was not asked."""


class TaskEnvironment:
    """The instance that the episode got for its task's `env_type`; a workflow has it from `tuner.environment`.

        env = tuner.environment
        state = await env.step("left")                      # a text, or an assistant message in OpenAI's shape
        text = await env.call("move", {"direction": "left"})    # one tool call, and the text of its answer
        agent = Agent(..., toolkit=env.toolkit())           # the tools as an AgentScope toolkit

    Steps are taken one after another, also those asked for side by side. On the event loop of the episode only, and
    not after its end. A step that fails at the service ends the episode as an error, whatever the workflow makes of it:
    it gets no reward.
    """

    def __init__(
        self, client: EnvServiceClient, instance: EnvInstance, first: EnvState, failures: list[Exception]
    ) -> None:
        """`first` is the reply to creating the instance. Errors of steps at the service are added to `failures`."""
        self.instance = instance
        self.messages: tuple[Message, ...] = tuple(first.messages)
        """The messages that the agent starts from, in OpenAI's shape."""
        self.tools: tuple[Message, ...] = tuple(first.info.get("tools") or ())
        """The environment's tools, in OpenAI's shape; none where actions are text."""
        self.done = first.done
        self.reward = first.reward
        """The sum of the steps' rewards."""
        self._client = client
        self._failures = failures
        self._steps = 0
        self._in_order = asyncio.Lock()
        self._call: asyncio.Future[EnvState] | None = None
        self._failed: EnvServiceError | None = None
        self._closed = False

    @property
    def query(self) -> str:
        """The text of the last message of role `user` that the agent starts from."""
        return next((show_content(message) for message in reversed(self.messages) if message.get("role") == "user"), "")

    async def step(self, action: str | Message) -> EnvState:
        """Act with a text, or with an assistant message that has a text, tool calls, or both; returns the answer.

        Raises:
            EnvironmentDone: the environment was done before; nothing was asked of it.
            EnvServiceError: the service failed, in this step or in an earlier one.
            WorkflowError: `action` is no such message.
            RolloutError: the episode is over.
        """
        message = _assistant_message(action)
        async with self._in_order:
            self._check()
            return await self._step(message)

    async def call(self, name: str, arguments: Mapping[str, Any] | None = None) -> str:
        """One call of the tool `name`, as a step; the text of what the environment answers. Raises as `step` does."""
        function = {"name": name, "arguments": json.dumps(dict(arguments or {}), ensure_ascii=False)}
        async with self._in_order:
            self._check()
            call = {"id": f"call_{self._steps}", "type": "function", "function": function}
            state = await self._step({"role": "assistant", "content": None, "tool_calls": [call]})
        return "\n".join(show_content(message) for message in state.messages)

    def toolkit(self) -> Any:
        """The tools as a toolkit of the installed AgentScope, with the names, descriptions and schemas that the
        environment gave them. Each call is one step, also when a message has several.

        The result of the step after which the environment is done ends with "The episode is over."; later calls get
        that line alone. AgentScope's agents stop at an answer without a tool call, so the model is asked once more.

        Raises:
            MissingDependency: AgentScope is not installed.
            WorkflowError: the environment has no tools.
        """
        if not self.tools:
            raise WorkflowError(
                f"the environment {self.instance.env_type!r} has no tools: its actions are texts, "
                "`await tuner.environment.step(text)`"
            )
        return toolkit_of(self.tools, self._result)

    async def _result(self, name: str, arguments: Mapping[str, Any]) -> str:
        """The result of an agent's tool call, as text. A call after the end is no error: frameworks show errors to the
        model. Nor does a failing service have to get through them; it ends the episode at the next model call."""
        try:
            text = await self.call(name, arguments)
        except EnvironmentDone:
            return OVER
        return f"{text}\n{OVER}" if self.done else text

    def check_service(self) -> None:
        """Raises EnvServiceError if a step has failed at the service: nothing that follows can count any more."""
        if self._failed is not None:
            raise EnvServiceError(f"the episode's environment has failed before: {self._failed}")

    def close(self) -> None:
        """The episode ends: a step under way is cancelled, later ones are refused."""
        self._closed = True
        if self._call is not None:
            self._call.cancel()

    def _check(self) -> None:
        if self._closed:
            raise RolloutError(f"the episode is over: its environment {self.instance.instance_id} takes no more steps")
        self.check_service()
        if self.done:
            raise EnvironmentDone(
                f"the environment is done: it ended {f'with step {self._steps}' if self._steps else 'before any step'} "
                "(see `tuner.environment.done`), and nothing can be done in it any more"
            )

    async def _step(self, message: Message) -> EnvState:
        number, self._steps = self._steps, self._steps + 1  # one that was cancelled may have been taken
        self._call = asyncio.ensure_future(self._client.step(self.instance, message, number=number))
        try:
            state = await self._call
        except EnvServiceError as error:
            self._failed = error
            self._failures.append(error)
            raise
        self.done = state.done
        self.reward += state.reward
        return replace(state, messages=tuple(_with_call_ids(state.messages, message.get("tool_calls") or ())))


def _assistant_message(action: str | Message) -> Message:
    if isinstance(action, str):
        return {"role": "assistant", "content": action}
    if not isinstance(action, Mapping) or action.get("role", "assistant") != "assistant":
        raise WorkflowError(
            f"an environment's step takes a text or an assistant message as a mapping, not {action!r:.200} "
            f"of type {type(action).__name__}"
        )
    return {"role": "assistant", "content": None, **action}


def _with_call_ids(messages: Sequence[Message], calls: Sequence[Message]) -> Iterator[Message]:
    """Give each message of role `tool` the id of the call that it answers. A service that gives no ids answers in the
    order of the calls."""
    answered = {message.get("tool_call_id") for message in messages}
    open_calls = iter([call.get("id") for call in calls if call.get("id") not in answered])
    for message in messages:
        if message.get("role") == "tool" and not message.get("tool_call_id"):
            yield {**message, "tool_call_id": next(open_calls, None)}
        else:
            yield message

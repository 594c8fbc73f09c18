"""Agents of AgentScope, 2.x or 1.x, whichever is installed: hooks on their replies, and clones of them."""

from __future__ import annotations

import copy
from collections.abc import Awaitable, Callable, Sequence
from importlib import import_module
from typing import Any, Protocol

from astune.errors import OnlineError
from astune.online.agent.functions import request_of
from astune.online.agent.shadow import Play, ShadowRun, Watcher
from astune.online.agent.writes import RecordedTool
from astune.workflow.agentscope import chat_model, major_version
from astune.workflow.tool_log import ToolLog

SUFFIX = "-shadow"


class AgentReply(Protocol):
    """A reply of a production agent. Nothing is copied yet."""

    agent: Any
    inputs: Any
    """The keyword arguments of the reply."""
    output: Any
    """The final message."""

    @property
    def unfinished(self) -> str | None:
        """The reason why the reply cannot be played again; None if it can."""

    async def messages(self) -> tuple[list[Any], list[Any]]:
        """The agent's history: what was there before the inputs, and what came in the reply, the inputs included."""


OnReply = Callable[[AgentReply], Awaitable[None]]
Clone = Callable[[Any], Any]


class AgentAdapter(Protocol):
    """The differences between AgentScope 1.x and 2.x."""

    def hear(self, agent: Any, listener: object, on_reply: OnReply) -> None:
        """Call `on_reply` after each reply of `agent`, once for each `listener`. `on_reply` raises nothing."""

    def check(self, agent: Any, clone: Clone | None, middlewares: Sequence[Any] | None) -> None:
        """Raises OnlineError: `agent` cannot be cloned."""

    def tool_results(self, messages: Sequence[Any]) -> list[RecordedTool]:
        """Tool calls and their results, as blocks of AgentScope."""

    async def play(self, made: Any, inputs: Any, before: list[Any], shadow: ShadowRun) -> Any:
        """Let the clone answer, its tools guarded."""

    def clone(self, agent: Any, model: Any, middlewares: Sequence[Any] | None) -> Any:
        """An agent like `agent` on `model`."""

    async def ask(self, agent: Any, text: str, on_reply: OnReply) -> None:
        """Put a user's question, and call `on_reply` after the reply."""

    def conversation(self, agent: Any, messages: Sequence[Any]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """Messages in OpenAI's shape, and the thoughts: see `wire.ConversationRecord`."""

    async def tools(self, agent: Any) -> list[dict[str, Any]]:
        """The tools that the model is offered, in OpenAI's shape."""

    def names(self, agent: Any) -> tuple[str, str]:
        """The conversation and the model."""


def check_kind(agent: Any, kind: type, clone: Clone | None) -> None:
    """Raises OnlineError: `agent` is not of the class `kind` of AgentScope, or it is of a class of its own and there is
    no `clone` function."""
    if not isinstance(agent, kind):
        raise OnlineError(
            f"watch() takes what is AgentScope's {kind.__name__}, got {type(agent).__name__}; see wrap() and observe()"
        )
    if clone is None and type(agent) is not kind:
        raise OnlineError(
            f"{type(agent).__name__} is a class of its own, which cannot be cloned: give watch(agent, clone=...), a "
            "function that makes one on the model that it is given"
        )


def check_sandbox(sandbox: Any, kind: type) -> None:
    """Raises OnlineError: it is no toolkit of AgentScope's class `kind`."""
    if sandbox is not None and not isinstance(sandbox, kind):
        raise OnlineError(f"writes: the sandbox of an AgentScope agent is a {kind.__name__}, got {sandbox!r:.200}")


def load_adapter() -> AgentAdapter:
    """Load the adapter for the installed AgentScope. Raises MissingDependency if there is none."""
    adapter: AgentAdapter = import_module(f"astune.online.agent.agentscope_v{major_version()}").ADAPTER
    return adapter


def watch_agent(watcher: Watcher, agent: Any, *, clone: Clone | None, middlewares: Sequence[Any] | None) -> None:
    """See `TrainingRunner.watch`."""
    adapter = load_adapter()
    adapter.check(agent, clone, middlewares)

    def play_of_reply(inputs: Any, before: list[Any]) -> Play:
        async def play(shadow: ShadowRun) -> Any:
            model = model_of(shadow)
            made = clone(model) if clone is not None else adapter.clone(agent, model, middlewares)
            if made is agent or made.model is not model:
                raise OnlineError("clone(model) must make a new agent on the model that it is given")
            made.name = agent.name + SUFFIX
            shadow.agent = made
            return await adapter.play(made, copy.deepcopy(inputs), copy.deepcopy(before), shadow)

        return play

    async def on_reply(reply: AgentReply) -> None:
        try:
            context = watcher.select_request(reply.agent, reply.inputs, reply.output)
            if context is None:
                return
            if reply.unfinished is not None:
                watcher.skip(reply.unfinished)
                return
            before, new = await reply.messages()
            before, new, inputs, output = copy.deepcopy((before, new, reply.inputs, reply.output))
            request = request_of(inputs, output, context, adapter.tool_results(new))
            watcher.offer(request, play_of_reply(inputs, before))
        except Exception as error:  # production goes on, whatever its messages do when they are copied
            watcher.report_error(error)

    adapter.hear(agent, watcher, on_reply)


def model_of(shadow: ShadowRun) -> Any:
    """The trained model as a model of the installed AgentScope."""
    client = shadow.client
    key = "extra_body" if major_version() == 2 else "generate_kwargs"
    options = {key: dict(shadow.sampling)} if shadow.sampling else {}
    made = chat_model(client, ToolLog(), context_size=None, options=options)
    setattr(made, "model" if major_version() == 2 else "model_name", shadow.model)
    return made

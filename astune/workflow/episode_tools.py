"""The tools that an episode gets from the servers of `astune.tools`, as the workflow sees them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from astune.errors import WorkflowError
from astune.tools import EpisodeServers, ToolResult
from astune.workflow.agentscope import toolkit_of
from astune.workflow.tool_log import ToolLog


class EpisodeTools:
    """Tools of MCP servers; a workflow has them from `tuner.tools`.

        agent = Agent(..., toolkit=tuner.tools.toolkit())          # a toolkit of AgentScope, 2.x or 1.x
        client.chat.completions.create(..., tools=tuner.tools.openai)
        text = await tuner.tools.call("search", {"words": "tea"})
        url = tuner.tools.url                                      # an MCP endpoint, for any framework and process

    A call that goes wrong is a text that says so, for the model to learn from. What ends the episode
    (`astune.tools.on_failure`) does so at the next model call, whatever the agent's framework makes of the text.
    """

    def __init__(self, log: ToolLog, loop: asyncio.AbstractEventLoop, check_open: Callable[[], None]) -> None:
        self.servers: EpisodeServers | None = None
        """The servers that the episode was given."""
        self._log, self._loop, self._check_open = log, loop, check_open
        self._calls: set[asyncio.Future[ToolResult]] = set()
        self._token: str | None = None

    @property
    def openai(self) -> list[dict[str, Any]]:
        """The tools in OpenAI's shape, a new list."""
        return [dict(tool.definition) for tool in self._given.tools.values()]

    async def call(self, name: str, arguments: Mapping[str, Any] | None = None) -> str:
        """Call a tool; the text of its result. From another event loop, in a thread of the agent's, it comes about on
        that of the episode. Raises RolloutError once the episode is over."""
        return (await self._ask(name, arguments or {})).text

    def toolkit(self) -> Any:
        """The tools as a toolkit of the installed AgentScope, with the names, descriptions and schemas of the servers.
        Raises MissingDependency."""
        return toolkit_of(self.openai, self.call)

    @property
    def url(self) -> str:
        """The address of an MCP endpoint (streamable HTTP) that has these tools, for this episode alone."""
        from astune.gateway.app import openai_app
        from astune.gateway.server import http_server
        from astune.gateway.tool_endpoint import ToolEndpoint

        self._check_open()
        if self._token is None:
            self._token = openai_app().add_tools(ToolEndpoint(self._definitions(), self._answer))
        return f"{http_server().origin}/{self._token}/mcp"

    def close(self) -> None:
        """The episode ends: calls under way are cancelled, and the servers are given back."""
        for call in self._calls:
            call.cancel()
        if self._token is not None:
            from astune.gateway.app import openai_app

            openai_app().remove_tools(self._token)
            self._token = None
        if self.servers is not None:
            self.servers.give_back()

    @property
    def _given(self) -> EpisodeServers:
        if self.servers is None:
            raise WorkflowError("tuner.tools: there are none; name a server in astune.tools.servers")
        return self.servers

    async def _ask(self, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        if asyncio.get_running_loop() is not self._loop:
            there = asyncio.run_coroutine_threadsafe(self._ask(name, arguments), self._loop)
            return await asyncio.wrap_future(there)
        self._check_open()
        call = asyncio.ensure_future(self._given.call(name, arguments))
        self._calls.add(call)
        try:
            result = await call
        finally:
            self._calls.discard(call)
        self._log.report(name, result)
        return result

    async def _answer(self, name: str, arguments: Mapping[str, Any]) -> tuple[str, bool]:
        """The text of a result, and whether it is an error."""
        result = await self._ask(name, arguments)
        return result.text, result.cause is not None

    def _definitions(self) -> Sequence[Mapping[str, Any]]:
        functions = [tool["function"] for tool in self.openai]
        return [
            {"name": each["name"], "description": each["description"], "inputSchema": each["parameters"]}
            for each in functions
        ]

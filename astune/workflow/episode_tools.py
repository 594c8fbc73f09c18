"""The tools of an episode, from the servers of `astune.tools` and of its workspace, as the workflow sees them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from astune.errors import WorkflowError
from astune.tools import EpisodeServers, ToolResult
from astune.tools.results import unknown_tool
from astune.workflow.agentscope import WorkspaceTools, open_workspace, toolkit_of
from astune.workflow.tool_log import ToolLog


class EpisodeTools:
    """Tools of MCP servers, and of the workspace; a workflow has them from `tuner.tools`.

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
        self._workspace: WorkspaceTools | None = None
        self._log, self._loop, self._check_open = log, loop, check_open
        self._calls: set[asyncio.Future[ToolResult]] = set()
        self._token: str | None = None

    @property
    def openai(self) -> list[dict[str, Any]]:
        """The tools in OpenAI's shape, a new list."""
        return [dict(definition) for definition in self._find_tools().values()]

    async def add_workspace(self, workspace: Any) -> None:
        """Have the tools of AgentScope's object, too. Raises WorkflowError where one has the name of a server's."""
        tools = await open_workspace(workspace)
        for tool in () if self.servers is None else self.servers.tools.values():
            if tool.name in tools.definitions:
                other = f"astune.tools.servers.{tool.server}.rename={{{tool.theirs}: {tool.server}_{tool.name}}}"
                raise WorkflowError(
                    f"tuner.tools: {tool.name!r} of {tool.server} is a tool of the workspace, too: {other}"
                )
        self._workspace = tools

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

    def _find_tools(self) -> dict[str, Mapping[str, Any]]:
        """The tools by name, in OpenAI's shape."""
        if self.servers is None and self._workspace is None:
            raise WorkflowError(
                "tuner.tools: there are none; name a server in astune.tools.servers, or set astune.rollout.workspace"
            )
        served = {} if self.servers is None else {name: tool.definition for name, tool in self.servers.tools.items()}
        return served | ({} if self._workspace is None else self._workspace.definitions)

    async def _call(self, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        if self._workspace is not None and name in self._workspace.definitions:
            text, failed = await self._workspace.call(name, arguments)
            definition = self._workspace.definitions[name]["function"]
            return ToolResult(text, self._log.find_cause(definition, arguments, text) if failed else None)
        if self.servers is not None and name in self.servers.tools:
            return await self.servers.call(name, arguments)
        return unknown_tool(name, self._find_tools())

    async def _ask(self, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        if asyncio.get_running_loop() is not self._loop:
            there = asyncio.run_coroutine_threadsafe(self._ask(name, arguments), self._loop)
            return await asyncio.wrap_future(there)
        self._check_open()
        call = asyncio.ensure_future(self._call(name, arguments))
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

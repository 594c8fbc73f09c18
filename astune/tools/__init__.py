"""Servers of tools that speak MCP, for many episodes side by side (`astune.tools`).

    async with ToolServers(config.tools) as servers:
        tools = await servers.take(task)                           # before the episode's clock starts
        result = await tools.call("search", {"words": "tea"})      # ToolResult("3 mails", cause=None)
        tools.give_back()

`connection` speaks with one server through the package `mcp`, `pool` starts and resets those that are lent, `servers`
knows whose each tool is.
"""

from astune.tools.results import ToolResult
from astune.tools.servers import EpisodeServers, ToolServers

__all__ = ["EpisodeServers", "ToolResult", "ToolServers"]

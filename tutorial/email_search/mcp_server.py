"""An MCP server with the tools of one inbox: `python tutorial/email_search/mcp_server.py 1000`, over stdio."""

import sys

from inbox_tools import Mailbox
from inboxes import make_inbox

try:
    from mcp.server import MCPServer
except ImportError:  # mcp 1.x
    from mcp.server.fastmcp import FastMCP as MCPServer


def make_server(number: int) -> MCPServer:
    server = MCPServer("inbox", log_level="ERROR")
    for tool in Mailbox(make_inbox(number)).tools:
        server.tool()(tool)
    return server


if __name__ == "__main__":
    make_server(int(sys.argv[1])).run()

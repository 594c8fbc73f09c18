"""A server of one tool, over standard input and output."""

try:
    from mcp.server import MCPServer
except ImportError:  # mcp 1.x
    from mcp.server.fastmcp import FastMCP as MCPServer

server = MCPServer("maps", log_level="ERROR")


@server.tool()
def distance(start: str, end: str) -> str:
    """The distance between two cities."""
    return f"{start} to {end}: 95 km"


if __name__ == "__main__":
    server.run()

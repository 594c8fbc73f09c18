"""A server of one tool, over standard input and output."""

from mcp.server.fastmcp import FastMCP

server = FastMCP("maps", log_level="ERROR")


@server.tool()
def distance(start: str, end: str) -> str:
    """The distance between two cities."""
    return f"{start} to {end}: 95 km"


if __name__ == "__main__":
    server.run()

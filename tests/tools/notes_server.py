"""An MCP server for the tests: `python notes_server.py stdio|http|sse [port]`. Its notes are its state."""

import os
import sys
import time

from mcp.types import ToolAnnotations

try:
    from mcp.server import MCPServer
except ImportError:  # mcp 1.x
    from mcp.server.fastmcp import FastMCP as MCPServer

notes: list[str] = []
tries: list[str] = []
kind = sys.argv[1] if len(sys.argv) > 1 else "stdio"
options = {"host": "127.0.0.1", "port": int(sys.argv[2])} if kind != "stdio" else {}
server = MCPServer("notes", log_level="ERROR", **options)


@server.tool()
def add(note: str) -> str:
    """Keep a note."""
    notes.append(note)
    return f"{len(notes)} notes"


@server.tool(annotations=ToolAnnotations(readOnlyHint=True))
def show() -> str:
    """The notes."""
    return " ".join(notes) or "none"


@server.tool()
def reset(note: str = "") -> str:
    """Forget all."""
    notes[:] = [note] if note else []
    return "done"


@server.tool()
def refuse() -> str:
    """Say no."""
    raise ValueError("no such note")


@server.tool()
def sleep(seconds: float) -> str:
    """Take time."""
    time.sleep(seconds)
    return "awake"


@server.tool()
def die() -> str:
    """End the server."""
    os._exit(3)


@server.tool(annotations=ToolAnnotations(idempotentHint=True))
def die_once(marker: str) -> str:
    """End the server, unless the file is there."""
    if os.path.exists(marker):
        return "alive"
    open(marker, "w").close()
    os._exit(3)


@server.tool()
def much(characters: int) -> str:
    """A long text."""
    return "x" * characters


@server.tool()
def pid() -> str:
    """The server's process."""
    return str(os.getpid())


@server.tool()
def variables() -> str:
    """The names of the server's variables."""
    return " ".join(sorted(os.environ))


if __name__ == "__main__":
    print("notes server starts", file=sys.stderr)
    server.run({"stdio": "stdio", "http": "streamable-http", "sse": "sse"}[kind])

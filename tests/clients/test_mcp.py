"""The MCP server of docs/workflows.md with mcp 2.x; tests/docs runs it with 1.x."""

import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
mcp = pytest.importorskip("mcp")


async def test_the_mcp_server_of_the_documentation_serves_its_tool(tmp_path):
    page = (ROOT / "docs" / "workflows.md").read_text(encoding="utf-8")
    block = re.search(r"^```python file=travel_server.py\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    assert block is not None
    (tmp_path / "travel_server.py").write_text(block[1], encoding="utf-8")
    server = mcp.StdioServerParameters(command=sys.executable, args=[str(tmp_path / "travel_server.py")])
    async with mcp.stdio_client(server) as (read, write), mcp.ClientSession(read, write) as session:
        await session.initialize()
        result = await session.call_tool("distance", {"start": "Bern", "end": "Chur"})
    assert [part.text for part in result.content] == ["Bern to Chur: 95 km"]

"""The MCP server of docs/workflows.md with mcp 2.x; tests/docs runs it with 1.x."""

import re
import sys
from pathlib import Path

import pytest

from astune.config.tools import ToolsConfig
from astune.tools import ToolServers
from astune.types import Task

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


async def test_the_servers_of_a_run_are_reached_with_it_too(tmp_path):
    path = ROOT / "tests" / "tools" / "notes_server.py"
    section = {"command": ["python", str(path)], "isolation": "episode", "reset": "reset"}
    async with ToolServers(ToolsConfig.model_validate({"servers": {"notes": section}})) as servers:
        tools = await servers.take(Task("t1", ""))
        assert [(await tools.call("add", {"note": "tea"})).text, (await tools.call("show", {})).text] == [
            "1 notes",
            "tea",
        ]
        causes = [(await tools.call(name, {})).cause for name in ("refuse", "add", "die")]
        assert causes == ["said_no", "malformed", "broke"]
        tools.give_back()

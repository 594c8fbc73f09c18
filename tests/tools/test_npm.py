"""Servers of others, on node: list, call, an error, a long result. Where they are not, they
are not tried."""

import os
import shutil
from pathlib import Path

import pytest

from tests.tools.conftest import TASK, servers_of

pytest.importorskip("mcp")
ROOT = Path(os.environ.get("ASTUNE_MCP_SERVERS", "/nonexistent"))
"""A folder in which `npm install @modelcontextprotocol/server-everything @modelcontextprotocol/server-filesystem` was
called."""
BIN = ROOT / "node_modules" / ".bin"
if shutil.which("node") is None or not BIN.is_dir():
    pytest.skip("needs node, and ASTUNE_MCP_SERVERS", allow_module_level=True)


async def test_server_everything():
    command = [str(BIN / "mcp-server-everything")]
    async with servers_of({"every": {"command": command, "isolation": "episode"}}) as servers:
        tools = await servers.take(TASK)
        assert {"echo", "get-sum"} <= set(tools.tools)
        assert "hello" in (await tools.call("echo", {"message": "hello"})).text
        assert "5" in (await tools.call("get-sum", {"a": 2, "b": 3})).text
        assert (await tools.call("get-sum", {"a": "two"})).cause == "malformed"
        assert "not shown" in (await tools.call("get-tiny-image", {})).text
        tools.give_back()


async def test_server_filesystem(tmp_path):
    (tmp_path / "notes.txt").write_text("tea")
    (tmp_path / "long.txt").write_text("x" * 5000)
    command = [str(BIN / "mcp-server-filesystem"), str(tmp_path)]
    async with servers_of({"files": {"command": command, "longest_result": 1000}}) as servers:
        tools = await servers.take(TASK)
        assert servers.tools["read_text_file"].read_only and not servers.tools["write_file"].read_only
        read = await tools.call("read_text_file", {"path": str(tmp_path / "notes.txt")})
        assert (read.text, read.cause) == ("tea", None)
        long = await tools.call("read_text_file", {"path": str(tmp_path / "long.txt")})
        assert long.cut_short and long.text.endswith("[4,000 more characters are not shown]")
        outside = await tools.call("read_text_file", {"path": "/etc/passwd"})
        assert outside.cause == "said_no" and "denied" in outside.text
        assert (await tools.call("read_text_file", {})).cause == "malformed"
        tools.give_back()

"""`astune tools`, with a real server."""

from pathlib import Path

import pytest

from astune.cli import main

pytest.importorskip("mcp")
SERVER = Path(__file__).parents[1] / "tools" / "notes_server.py"


@pytest.fixture
def conf(tmp_path):
    path = tmp_path / "agent.yaml"
    server = f"{{command: [python, {SERVER}], allow: [add, show], isolation: episode, reset: reset}}"
    path.write_text(f"astune: {{tools: {{servers: {{notes: {server}}}}}}}\n", encoding="utf-8")
    return str(path)


def test_tools_are_listed_called_and_checked(conf, capsys):
    assert main(["tools", "list", "--conf", conf]) == 0
    assert capsys.readouterr().out == "notes\n  add   Keep a note.\n  show  The notes. (read-only)\n"
    assert main(["tools", "call", "--conf", conf, "add", "note=tea"]) == 0
    assert capsys.readouterr().out == "1 notes\n"
    assert main(["tools", "call", "add", "--conf", conf]) == 1
    assert capsys.readouterr().err == "failed: malformed\n"
    assert main(["tools", "check", "--conf", conf]) == 0
    assert [line.split()[:2] for line in capsys.readouterr().out.splitlines()] == [["ok", "notes:"]] * 3


def test_a_configuration_without_servers_is_told_what_to_set(tmp_path, capsys):
    path = tmp_path / "agent.yaml"
    path.write_text("astune: {seed: 1}\n", encoding="utf-8")
    assert main(["tools", "list", "--conf", str(path)]) == 2
    assert "astune.tools.servers: not set; name a server" in capsys.readouterr().err

"""Servers of tools under the doctor's eyes: started for real."""

import shutil
from pathlib import Path

import pytest

pytest.importorskip("mcp")
SERVER = str(Path(__file__).parents[1] / "tools" / "notes_server.py")


def of_tools(findings):
    return [(finding.level, finding.what.partition(":")[0]) for finding in findings if finding.check == "tools"]


def test_a_sound_server_and_one_that_does_not_start(run_doctor):
    sound = {"command": ["python", SERVER], "isolation": "episode", "reset": "reset"}
    findings = run_doctor({"tools": {"servers": {"notes": sound, "gone": {"command": ["no-such-program"]}}}})
    assert of_tools(findings) == [("ok", "notes")] * 3 + [("fail", "gone")]


def test_state_that_all_episodes_share_is_a_warning(run_doctor):
    findings = run_doctor({"tools": {"servers": {"notes": {"command": ["python", SERVER]}}}})
    assert of_tools(findings) == [("ok", "notes"), ("warn", "notes"), ("ok", "notes")]


ASKS_TOOLS = """
from astune import WorkflowOutput


async def agent(task, tuner):
    assert (await tuner.tools.call("show")) == "none" and tuner.workspace.workdir
    tools = [tool for tool in tuner.tools.openai if tool["function"]["name"] in ("add", "show")]
    client, messages = tuner.openai_client("agent"), [{"role": "user", "content": task.query}]
    reply = await client.chat.completions.create(model="policy", messages=messages, tools=tools)
    return WorkflowOutput(answer=reply.choices[0].message.content)
"""


def test_the_dry_run_has_the_tools_and_the_workspace_of_a_run(run_doctor):
    tools = {"servers": {"notes": {"command": ["python", SERVER], "isolation": "episode", "reset": "reset"}}}
    findings = run_doctor({"tools": tools, "rollout": {"workspace": {"type": "none"}}}, agent_py=ASKS_TOOLS)
    dry = [(finding.level, finding.what) for finding in findings if finding.check == "dry run"]
    assert dry[0][0] == "ok" and "tools: add, show" in dry[0][1]
    assert all("made-up arguments" not in what for _, what in dry)  # of what may change something, nothing is tried


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"command": ["pythn", SERVER]}, ("astune.tools.servers.notes.command", "no program 'pythn'")),
        ({"command": ["python", SERVER], "folder": "nowhere"}, ("astune.tools.servers.notes.folder", "no such folder")),
        ({"command": ["python", SERVER], "deny": ["ad"]}, ("astune.tools.servers.notes.deny", "Did you mean 'add'?")),
        (
            {"command": ["python", SERVER], "allow": ["reset"], "isolation": "task", "reset": "reset"},
            ("no tool is left", "for agents"),
        ),
    ],
)
def test_a_wrong_key_of_a_server_is_named(run_doctor, keys, said):
    (fault,) = [
        each
        for each in run_doctor({"tools": {"servers": {"notes": keys}}})
        if each.level == "fail" and each.check == "tools"
    ]
    assert all(part in fault.what for part in said) and fault.fix == "correct the key"


@pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap")
def test_limits_in_which_nothing_runs_are_told_of(run_doctor):
    workspace = {"type": "AstuneSandbox", "limits": {"memory_mb": 1}}
    (fault,) = [each for each in run_doctor({"rollout": {"workspace": workspace}}) if each.check == "workspace"]
    assert fault.level == "fail" and "not even an empty program" in fault.what

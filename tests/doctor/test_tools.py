"""Servers of tools under the doctor's eyes: started for real."""

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

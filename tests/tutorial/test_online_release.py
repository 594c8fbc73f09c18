"""The story of tutorial/online_release in small, by its real processes: `astune online` with its three roles."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("agentscope.middleware", reason="the agent is one of AgentScope 2.x")
pytest.importorskip("torch")
ROOT = Path(__file__).resolve().parents[2]


def tell(folder: Path, *options: str) -> dict[str, Any]:
    """What came of the story."""
    script = ROOT / "tutorial" / "online_release" / "release.py"
    command = [sys.executable, str(script), "--folder", str(folder), *options]
    subprocess.run(command, check=True, env={**os.environ, "PYTHONPATH": str(ROOT)})
    found: dict[str, Any] = json.loads((folder / "outcome.json").read_text(encoding="utf-8"))
    return found


@pytest.mark.release  # in CI: tests/online/release/test_releaser.py without a model, test_gate.py without users
@pytest.mark.parametrize("gate", [False, True])
def test_a_poisoned_version_is_rolled_back_by_itself_after_a_good_one_was_promoted(tmp_path: Path, gate: bool) -> None:
    # A larger first share than the tutorial's finds it out with fewer questions.
    stages = "astune.online.release.stages=[0.3, 1.0]"
    found = tell(tmp_path / "run", *["--gate"] * gate, stages)
    assert (found["good"]["state"], found["poisoned"]["state"]) == ("promoted", "rolled_back")
    assert found["poisoned"]["stage"] == (-1 if gate else 0)
    assert found["met"] < found["asked"] / 2 and (found["met"] == 0) == gate
    assert found["right"].get("2", 0.0) < 0.15 < found["right"]["1"]

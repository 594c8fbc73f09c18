"""Mistakes in names and files are told before the libraries of a backbone are loaded, which takes seconds."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from astune.errors import PluginError
from astune.plugins import load_plugin

HEAVY = ("torch", "transformers", "agentscope", "datasets")
SCRIPT = """\
import sys
from astune.cli import main
for mistake in sys.argv[1:]:
    code = main(["--conf", "job.yaml", mistake])
    print("exit", code, "loaded", [name for name in {heavy} if name in sys.modules], file=sys.stderr)
"""
MISTAKES = {
    "astune.rollout.agentscope_learn_protocol=agent.py:slove": "Did you mean 'solve'?",
    "astune.rollout.agentscope_learn_protocol=agent.py:judge": "judge (",
    "astune.task_judge.judge_protocol=agent.py:jugde": "Did you mean 'judge'?",
    "astune.task_reader.jsonl.training.file_path=task.jsonl": "Did you mean 'tasks.jsonl'?",
    "astune.task_reader.jsonl.validation.file_path=bad.jsonl": "bad.jsonl:1: no query",
    (
        "astune.stages=[{trainer: {total_steps: 1}}, {rollout: {agentscope_learn_protocol: 'agent.py:slove'}}]"
    ): "stage 2: ",
}
"""Keys, and what is said of them."""


@pytest.fixture
def job(tmp_path: Path) -> Path:
    (tmp_path / "agent.py").write_text(
        "async def solve(task, tuner):\n    pass\n\ndef judge(task, episode):\n    pass\n"
    )
    (tmp_path / "tasks.jsonl").write_text(json.dumps({"query": "1 + 1?", "answer": "2"}))
    (tmp_path / "bad.jsonl").write_text('{"qeury": "1 + 1?"}')
    config = {
        "task_reader": {"jsonl": {"training": {"file_path": "tasks.jsonl"}}},
        "rollout": {"agentscope_learn_protocol": "agent.py:solve"},
        "task_judge": {"judge_protocol": "agent.py:judge"},
    }
    (tmp_path / "job.yaml").write_text(json.dumps({"astune": config}))
    return tmp_path / "job.yaml"


def test_a_mistake_is_told_before_anything_heavy_is_loaded(job: Path) -> None:
    command = [sys.executable, "-c", SCRIPT.format(heavy=HEAVY), *MISTAKES]
    done = subprocess.run(command, cwd=job.parent, capture_output=True, text=True)
    said = done.stderr.split("exit 2 loaded []\n")
    assert len(said) == len(MISTAKES) + 1 and said[-1] == "", done.stderr
    for mistake, message in zip(said, MISTAKES.values(), strict=False):
        assert message in mistake


@pytest.mark.fault(
    "Input files and settings",
    "The workflow's file is written for the other line of AgentScope",
    "An error that says which extra to install",
)
def test_a_name_that_the_installed_agentscope_has_not_says_what_to_install(tmp_path: Path) -> None:
    pytest.importorskip("agentscope")
    installed = metadata.version("agentscope").split(".")[0]
    other = {"1": "2", "2": "1"}[installed]
    for number, line in enumerate(["from agentscope.agent import NoSuchAgent", "import agentscope.agents_of_old"]):
        file = tmp_path / f"agent{number}.py"
        file.write_text(f"{line}\n\nasync def solve(task, model):\n    pass\n")
        with pytest.raises(PluginError) as raised:
            load_plugin(f"{file}:solve", kind="workflow")
        said = str(raised.value)
        assert f"{file}:1: `{line}`" in said
        assert f"AgentScope {installed}." in said and f'pip install "astune[agentscope{other}]"' in said


def test_another_package_that_is_missing_is_no_matter_of_agentscope(tmp_path: Path) -> None:
    file = tmp_path / "agent.py"
    file.write_text("import no_such_package\n")
    with pytest.raises(PluginError) as raised:
        load_plugin(f"{file}:solve", kind="workflow")
    assert "No module named 'no_such_package'" in str(raised.value) and "AgentScope" not in str(raised.value)

"""The tutorial's agent is judged by its scripted judge, in the debugger and in training."""

import io
import json
import runpy
import signal
import subprocess
import sys
import urllib.request
from importlib import metadata
from pathlib import Path

import pytest

from astune.backbone.debug import DebugBackbone
from astune.cli import main
from astune.config.load import load_config
from astune.monitor import read_episodes
from astune.support.resources import tutorial_dir
from astune.support.terminal import Console
from astune.testing import ScriptedChatServer

pytest.importorskip("agentscope")
pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(metadata.version("agentscope")[0] != "2", reason="the agent is for AgentScope 2.x")

FOLDER = tutorial_dir() / "llm_as_judge"
CONF = FOLDER / "llm_as_judge.yaml"


@pytest.fixture
def judge():
    with ScriptedChatServer(runpy.run_path(str(FOLDER / "judge_server.py"))["judge"], usage=True) as server:
        yield server


def settings(judge: ScriptedChatServer, folder: Path) -> list[str]:
    """The tutorial's configuration, with the judge where it runs now."""
    models = f'[{{base_url: "{judge.base_url}", model: scripted}}]'
    cache = f"astune.task_judge.llm.cache={folder / 'replies.sqlite'}"
    return [f"astune.task_judge.llm.models={models}", f"astune.runs_dir={folder}", cache]


def test_the_debugger_shows_what_the_judge_says(judge, tmp_path: Path):
    console = Console(file=io.StringIO(), width=140)
    report = DebugBackbone(console).run(load_config(CONF, settings(judge, tmp_path), backbone="debug"))
    verdicts = [record.episode.verdict for record in read_episodes(report.run_dir / "episodes" / "debug.jsonl")]
    assert [verdict.judged_by for verdict in verdicts] == ["LlmAsJudge(scripted)"] * 2
    for verdict in verdicts:
        assert verdict.reward == (3 * verdict.metrics["correct"] + verdict.metrics["short"] / 4) / 4
        assert verdict.reason in console.file.getvalue()


def test_it_learns_from_what_the_judge_says(judge, tmp_path: Path):
    assert main(["--conf", str(CONF), *settings(judge, tmp_path)]) == 0
    records = list(read_episodes(tmp_path / "llm_as_judge" / "llm_as_judge" / "episodes" / "train.jsonl"))
    rewards = {record.episode.reward for record in records}
    assert len(records) == 2 * 4 * 4
    assert None not in rewards
    assert len(rewards) > 1
    asked = sum(record.episode.verdict.metrics["llm_calls"] for record in records)
    assert round(asked) == len(judge.requests)


def test_the_scripted_judge_is_a_server_until_ctrl_c():
    command = [sys.executable, str(FOLDER / "judge_server.py"), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        said = process.stdout.readline()
        with urllib.request.urlopen(said.split()[2].rstrip(",") + "/models") as answer:
            assert json.load(answer)["data"][0]["id"] == "scripted"
        process.send_signal(signal.SIGINT)
        assert process.stdout.read() == "0 answers judged\n"
    assert process.returncode == 0

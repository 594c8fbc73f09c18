"""A run whose agents have tools of a server, on `local`; on verl and Trinity-RFT in their own suites."""

import pytest

pytest.importorskip("torch")
pytest.importorskip("mcp")
pytest.importorskip("agentscope.workspace", reason="AgentScope 2.x")

from astune.backbone.local.engine import load_engine
from astune.config.load import load_config
from astune.monitor.episodes import read_episodes
from astune.support.resources import tutorial_dir
from astune.training.start import run_training
from tests.tools.noting import SETTINGS, check, check_cuts


def test_agents_are_trained_that_use_a_server_of_their_own_and_whose_conversations_are_cut(tmp_path):
    settings = (
        "astune.trainer.tasks_per_step=2",
        "astune.trainer.total_steps=1",
        "astune.rollout.num_repeat=4",
        "astune.evaluation.before=false",
        "astune.evaluation.after=false",
        "astune.monitor.progress=plain",
        f"astune.runs_dir={tmp_path}",
    )
    loaded = load_config(tutorial_dir() / "math_agent" / "demo.yaml", [*settings, *SETTINGS])
    report = run_training(loaded, load_engine)
    assert (report.status, report.steps) == ("completed", 1)
    episodes = [record.episode for record in read_episodes(report.run_dir / "episodes" / "train.jsonl")]
    check(episodes)
    check_cuts(episodes)

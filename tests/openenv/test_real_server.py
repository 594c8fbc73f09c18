"""The recording is what the real OpenEnv server says, and it serves a run."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from astune.environment.check import check_environment
from astune.environment.registry import load_environment
from astune.monitor import read_episodes
from tests.openenv.frames import GOLDEN, PYTHON, real_server, record_all

BLOCKS = ("python file=harness.py", "yaml")
pytestmark = pytest.mark.skipif(not PYTHON.exists(), reason="make test-openenv builds the environment")


def test_the_real_server_answers_as_it_was_recorded():
    assert record_all() == json.loads(GOLDEN.read_text())


@pytest.mark.parametrize(("world", "options"), [("guess", {"unfinished": 0}), ("tools", {"unfinished": 0, "tasks": 3})])
def test_its_environments_keep_the_contract(world, options):
    with real_server(world, places=8) as url:
        made = load_environment(f"openenv:{url}", options)
        found = [result for result in check_environment(made, "train") if result.level != "ok"]
        made.close()
    assert found == []


def test_a_harness_behind_harbors_tool_is_recorded_as_the_page_says(tmp_path):
    page = (Path(__file__).parents[2] / "docs" / "environments.md").read_text()
    code, settings = (re.search(rf"```{kind}\n(.*?)```", page[page.index("### Harbor") :], re.S)[1] for kind in BLOCKS)
    (tmp_path / "harness.py").write_text(code)
    with real_server("harbor", places=8) as url:
        config = yaml.safe_load(settings.replace("http://127.0.0.1:8000", url))
        config["astune"]["runs_dir"] = "runs"
        (tmp_path / "x.yaml").write_text(yaml.safe_dump(config))
        command = [sys.executable, "-m", "astune", "--conf", "x.yaml", "--backbone=debug"]
        subprocess.run(command, cwd=tmp_path, check=True)
    (recorded,) = tmp_path.glob("runs/*/*/episodes/debug.jsonl")
    (episode,) = [record.episode for record in read_episodes(recorded)]
    (turn,) = episode.turns
    assert turn.messages[0]["content"] == "opencode: Write a file." and episode.reward == 0.5

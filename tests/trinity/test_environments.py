"""Tasks with an environment in Trinity's runners: each attempt has an instance at a service elsewhere, and gives it
back."""

import os
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
import yaml

from astune.monitor.episodes import read_episodes
from astune.testing import EnvServer
from astune.worlds.countdown import CountdownEnvironment

pytest.importorskip("trinity")

WORKFLOW = """\
from astune import Task, Tuner, WorkflowOutput

async def play(task: Task, tuner: Tuner) -> WorkflowOutput:
    client = tuner.openai_client("player")
    messages = [*tuner.environment.messages]
    reply = await client.chat.completions.create(model="policy", messages=messages, max_tokens=4)
    state = await tuner.environment.step(reply.choices[0].message.content or "")
    return WorkflowOutput(answer=state.messages[-1]["content"])
"""
JOB = {
    "backbone": "trinity",
    "task_reader": {"type": "env_service"},
    "rollout": {"agentscope_learn_protocol": "play.py:play", "num_repeat": 2},
    "task_judge": {"judge_protocol": "EnvServiceJudge"},
    "trainer": {"total_steps": 1, "tasks_per_step": 2},
}


def test_every_attempt_has_an_instance_of_its_own_and_gives_it_back(tmp_path: Path) -> None:
    (tmp_path / "play.py").write_text(WORKFLOW)
    job = {"astune": JOB, "trinity": {"model": {"tinker": {"enable": True}}, "explorer": {"runner_per_model": 1}}}
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job))
    path = os.pathsep.join([str(Path(__file__).parents[2]), str(Path(__file__).parent / "stubs")])
    environment = os.environ | {"PYTHONPATH": path, "RAY_USAGE_STATS_ENABLED": "0", "OMP_NUM_THREADS": "1"}
    with EnvServer([CountdownEnvironment(numbers=3, tasks=8)]) as server:
        there = f"astune.task_reader.env_service.env_url={server.url}"
        done = subprocess.run(
            [sys.executable, "-m", "astune", "--conf", "job.yaml", there],
            **{"cwd": tmp_path, "env": environment, "capture_output": True, "text": True, "timeout": 300},
        )
        metrics = httpx.get(f"{server.url}/metrics").text.splitlines()
    # four tokens solve no task, so nothing is learned
    assert done.returncode == 3 and "episodes         4, none failed" in done.stdout, done.stdout + done.stderr
    assert {"astune_env_instances_created_total 4.0", "astune_env_instances 0.0"} <= set(metrics)
    episodes = [record.episode for record in read_episodes(tmp_path / "runs/astune/job/episodes/train.jsonl")]
    assert len(episodes) == 4
    for episode in episodes:
        assert episode.error is None and episode.env_score is not None
        assert episode.verdict is not None and episode.verdict.judged_by == "EnvServiceJudge"
        assert episode.reward == episode.env_score
        assert "Target:" in episode.task.query

"""Jobs for the training loop, run on an engine without a model."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from astune.config.load import load_config
from astune.testing import CountingLearner, script_engine
from astune.training.engine import Engine
from astune.training.start import run_training
from astune.types import RunReport

WriteJob: TypeAlias = Callable[..., Path]
RunJob: TypeAlias = Callable[..., RunReport]


@pytest.fixture(autouse=True)
def _stays_here() -> Iterator[None]:
    """Agents that change the working directory do so for their own test."""
    here = Path.cwd()
    yield
    os.chdir(here)


@pytest.fixture
def write_job(tmp_path: Path) -> WriteJob:
    """Write a job of three steps of two tasks, and return its path. Of the tasks, the first `broken` fail."""

    def write(tasks: int = 4, broken: int = 0, **row: Any) -> Path:
        agents = shutil.copyfile(Path(__file__).with_name("agents.py"), tmp_path / "agents.py")
        rows = [{"query": f"{n}?", "answer": "4", "broken": n < broken, **row} for n in range(tasks)]
        (tmp_path / "train.jsonl").write_text("\n".join(map(json.dumps, rows)))
        (tmp_path / "held.jsonl").write_text('{"query": "8 - 4?", "answer": "4"}')
        data = {"training": {"file_path": "train.jsonl"}, "validation": {"file_path": "held.jsonl"}}
        config = {
            "backbone": "astune.testing:ScriptedBackbone",
            "project_name": "test",
            "runs_dir": str(tmp_path / "runs"),
            "task_reader": {"jsonl": data},
            "rollout": {"agentscope_learn_protocol": f"{agents}:quick", "num_repeat": 3, "max_tokens": 4},
            "trainer": {"total_steps": 3, "tasks_per_step": 2, "keep_checkpoints": 9, "save_every": 1},
            "evaluation": {"before": False},
            "monitor": {"progress": "plain", "trackers": []},
        }
        (tmp_path / "job.yaml").write_text(json.dumps({"astune": config}))
        return tmp_path / "job.yaml"

    return write


@pytest.fixture
def conf(write_job: WriteJob) -> Path:
    return write_job()


@pytest.fixture
def learners() -> list[CountingLearner]:
    """The learner of each run of the test."""
    return []


@pytest.fixture
def run_job(learners: list[CountingLearner]) -> RunJob:
    def run(
        conf: Path,
        *overrides: str,
        resume: bool = False,
        skipped: Collection[int] = (),
        answers: Callable[[str], str] = lambda prompt: "4",
    ) -> RunReport:
        load = script_engine(answers, skipped)

        def load_and_note(config: Any) -> Engine:
            engine = load(config)
            assert isinstance(engine.learner, CountingLearner)
            learners.append(engine.learner)
            return engine

        return run_training(load_config(conf, overrides, resume=resume), load_and_note)

    return run

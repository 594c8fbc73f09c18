"""Runs in stages on the local backbone, with the shipped model, on CPU."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from astune.config.load import load_config
from astune.errors import ConfigError
from astune.monitor.metrics import MetricsLog
from astune.monitor.run_dir import RunDir
from astune.types import RunReport
from tests.backbone.local.test_examples import AGENT, CONVERSATIONS, run_job, timeless, write_job
from tests.rows import each_row
from tests.training.killed import Killed, raise_at

SFT = {"algorithm": {"method": "sft"}, "trainer": {"examples": "examples.jsonl", "total_steps": 2}}
GRPO = {"trainer": {"total_steps": 2}}
DPO = {"algorithm": {"method": "dpo"}, "trainer": {"examples_of_run": True, "total_steps": 2, "tasks_per_step": 1}}


def write_stages(folder: Path, *stages: dict[str, Any]) -> Path:
    tasks = [{"query": f"What is {n} plus {n}?", "answer": str(2 * n)} for n in range(4)]
    (folder / "train.jsonl").write_text("\n".join(map(json.dumps, tasks)))
    conf = write_job(
        folder,
        CONVERSATIONS,
        algorithm={},
        task_reader={"jsonl": {"training": {"file_path": "train.jsonl"}}},
        rollout={"agentscope_learn_protocol": f"{AGENT}:Asker", "num_repeat": 2, "max_tokens": 6},
        trainer={"examples": None, "learning_rate": 1e-3, "save_every": 1, "keep_checkpoints": 1},
        stages=list(stages),
    )
    return conf


@pytest.fixture(scope="module", params=[(), ("astune.model.lora.rank=4",)], ids=["weights", "adapter"])
def straight(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[RunReport, Path, Any]:
    """A run in three stages that nothing stopped, its configuration and settings."""
    conf = write_stages(tmp_path_factory.mktemp("straight"), SFT, GRPO, DPO)
    return run_job(conf, *request.param), conf, request.param


def test_each_stage_begins_with_the_weights_of_the_one_before(straight: tuple[RunReport, Path, Any]) -> None:
    report, *_ = straight
    assert (report.status, report.steps) == ("completed", 6)
    rows = [row for row in timeless(report) if "stage" in row]
    assert [(row["step"], row["stage"]) for row in rows] == [(1, 1), (2, 1), (3, 2), (4, 2), (5, 3), (6, 3)]
    assert "examples/total" in rows[0] and "reward/mean" in rows[2] and "preference/margin" in rows[4]
    assert rows[4]["preference/margin"] == 0 and rows[4]["policy_version"] == 1  # the reference is that of its start
    assert rows[5]["preference/margin"] != 0
    kept = RunDir(report.run_dir).checkpoints()
    assert [path.name for path in kept] == ["step_000002", "step_000004", "step_000006"]
    tensors = [trained(path) for path in kept]
    assert all(any(not torch.equal(a[key], b[key]) for key in a) for a, b in pairwise(tensors))


def trained(checkpoint: Path) -> dict[str, torch.Tensor]:
    (file,) = checkpoint.glob("*model.safetensors")
    return load_file(file)


@pytest.mark.fault(
    "Runs and resuming",
    "a run in stages, with adapters too, is killed in each of them",
    "it goes on in that stage, and ends bit for bit as if never stopped",
)
def test_a_run_in_stages_goes_on_wherever_it_was_killed(
    straight: tuple[RunReport, Path, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    report, conf, settings = straight
    name, run = "astune.experiment_name=killed", report.run_dir.with_name("killed")
    for logged, latest in ((2, 1), (3, 3), (3, 5)):
        with monkeypatch.context() as patch, pytest.raises(Killed):
            raise_at(patch, logged, MetricsLog, "log")
            run_job(conf, *settings, name, resume=run.exists())
        assert RunDir(run).latest_checkpoint() == RunDir(run).checkpoint_path(latest)
    resumed = run_job(conf, *settings, name, resume=True)
    assert timeless(resumed) == timeless(report)
    for path in RunDir(report.run_dir).checkpoints():
        wanted, found = trained(path), trained(run / "checkpoints" / path.name)
        assert all(torch.equal(found[key], wanted[key]) for key in wanted)
    assert run_job(conf, *settings, name, resume=True).steps == 6  # nothing is left
    assert timeless(resumed) == timeless(report)


@each_row(
    ("stages", "message"),
    [
        ([SFT], "one stage is no stages"),
        ([SFT, {"model": {}}], "stage 2: a stage has no 'model'"),
        ([SFT, {"trainr": {}}], "stage 2: a stage has no 'trainr'. Did you mean 'trainer'?"),
        ([SFT, {"trainer": {"total_step": 3}}], "astune.trainer.total_step: .*total_steps.*stage 2"),
        ([{"algorithm": {"method": "sft"}}, GRPO], "stage 1: not set; astune.algorithm.method 'sft' learns from"),
        ([SFT, DPO], "stage 2: trainer.examples_of_run, but no stage before it plays"),
        (
            [GRPO, {**DPO, "trainer": {"examples_of_run": True, "total_steps": None, "total_epochs": 1}}],
            "total_steps alo",
        ),
    ],
)
def test_what_is_wrong_in_a_stage_is_told_before_the_first_begins(
    tmp_path: Path, stages: list[dict[str, Any]], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        load_config(write_stages(tmp_path, *stages))


def test_episodes_of_the_run_need_stages_and_stages_need_a_backbone_that_has_them(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"a run without astune\.stages has no earlier episodes"):
        load_config(write_stages(tmp_path), ["astune.trainer.examples_of_run=true"])
    with pytest.raises(ConfigError, match=r"the backbone 'debug' has no stages: add astune.stages=\[\]"):
        load_config(write_stages(tmp_path, SFT, GRPO), backbone="debug")

"""Runs in stages on the local backbone, with the shipped model, on CPU."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from astune.backbone.local.learning.learner import LocalLearner
from astune.config.load import load_config
from astune.errors import ConfigError
from astune.monitor.run_dir import RunDir
from astune.types import RunReport
from tests.backbone.local.test_examples import AGENT, CONVERSATIONS, run_job, timeless, weights, write_job

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
        rollout={"agentscope_learn_protocol": f"{AGENT}:Asker", "num_repeat": 3, "max_tokens": 8},
        trainer={"examples": None, "learning_rate": 1e-3, "save_every": 1, "keep_checkpoints": 1},
        stages=list(stages),
    )
    return conf


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> RunReport:
    """A run in three stages that nothing stopped; its configuration is `job.yaml` three folders above."""
    return run_job(write_stages(tmp_path_factory.mktemp("straight"), SFT, GRPO, DPO))


def test_each_stage_begins_with_the_weights_of_the_one_before(straight: RunReport) -> None:
    report = straight
    assert (report.status, report.steps) == ("completed", 6)
    rows = [row for row in timeless(report) if "stage" in row]
    assert [(row["step"], row["stage"]) for row in rows] == [(1, 1), (2, 1), (3, 2), (4, 2), (5, 3), (6, 3)]
    assert "examples/total" in rows[0] and "reward/mean" in rows[2] and "preference/margin" in rows[4]
    assert rows[4]["preference/margin"] == 0 and rows[4]["policy_version"] == 1  # the reference is that of its start
    assert [path.name for path in RunDir(report.run_dir).checkpoints()] == ["step_000002", "step_000004", "step_000006"]


class Killed(BaseException):
    pass


@pytest.mark.fault(
    "Runs and resuming", "a run in stages is killed in any of them", "it goes on in that stage, bit for bit"
)
def test_a_run_in_stages_goes_on_wherever_it_was_killed(straight: RunReport, monkeypatch: pytest.MonkeyPatch) -> None:
    conf, wanted = straight.run_dir.parents[2] / "job.yaml", weights(straight)
    run = straight.run_dir.with_name("killed")
    update, publish = LocalLearner.update, LocalLearner.publish
    name = "astune.experiment_name=killed"
    for place, original, calls in (("update", update, 2), ("publish", publish, 3), ("update", update, 2)):
        count = 0

        async def breaks(*args: Any, original: Any = original, calls: int = calls) -> Any:
            nonlocal count
            count += 1
            if count == calls:
                raise Killed
            return await original(*args)

        with monkeypatch.context() as patch:
            patch.setattr(LocalLearner, place, breaks)
            with pytest.raises(Killed):
                run_job(conf, name, resume=run.exists())
        assert RunDir(run).latest_checkpoint() is not None
    resumed = run_job(conf, name, resume=True)
    assert timeless(resumed) == timeless(straight)
    found = weights(resumed)
    assert all(torch.equal(found[key], wanted[key]) for key in wanted)
    assert run_job(conf, name, resume=True).steps == 6  # nothing is left
    assert timeless(resumed) == timeless(straight)


@pytest.mark.parametrize(
    ("stages", "message"),
    [
        ([SFT], "one stage is no stages"),
        ([SFT, {"model": {}}], "stage 2: a stage has no 'model'"),
        ([SFT, {"trainr": {}}], "stage 2: a stage has no 'trainr'. Did you mean 'trainer'?"),
        ([SFT, {"trainer": {"total_step": 3}}], "astune.trainer.total_step: .*total_steps.*stage 2"),
        ([{"algorithm": {"method": "sft"}}, GRPO], "stage 1: not set; astune.algorithm.method 'sft' learns from"),
        (
            [SFT, {"trainer": {"total_steps": 2, "keep_best": "eval/greedy/reward"}}],
            "stage 2: trainer.keep_best: one figure",
        ),
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
    with pytest.raises(ConfigError, match="the backbone 'debug' has no stages"):
        load_config(write_stages(tmp_path, SFT, GRPO), backbone="debug")

"""Runs of the local backbone that learn from examples, with the shipped model, on CPU."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from astune.backbone.local.model.model import read_weights
from astune.config.load import load_config
from astune.context_tracker.prompt.chat_format import ChatFormat
from astune.errors import ConfigError, TaskError
from astune.examples.conversation import conversation_rows
from astune.support.resources import tiny_model_dir
from astune.types import RunReport, Timeline
from tests.backbone.local.test_backbone import run_job, timeless

AGENT = Path(__file__).with_name("agent.py")
QUICK = Path(__file__).parents[2] / "training" / "agents.py"


def said(question: str, answer: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]}


ANSWERS = {"What is 3 plus 4?": "8", "What is 2 plus 2?": "5", "What is 9 minus 1?": "3", "What is 6 plus 1?": "2"}
CONVERSATIONS = [said(*pair) for pair in ANSWERS.items()]


def write_job(folder: Path, rows: list[dict[str, Any]], **sections: dict[str, Any]) -> Path:
    (folder / "examples.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    trainer = {"examples": "examples.jsonl", "total_steps": 4, "tasks_per_step": 2, "learning_rate": 3e-3}
    config = {
        "project_name": "test",
        "experiment_name": "job",
        "runs_dir": str(folder / "runs"),
        "algorithm": {"method": "sft"},
        "monitor": {"progress": "off", "trackers": []},
        **sections,
        "trainer": {**trainer, **sections.get("trainer", {})},
    }
    (folder / "job.yaml").write_text(json.dumps({"astune": config}))
    return folder / "job.yaml"


def weights(report: RunReport) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    (*_, last) = sorted((report.run_dir / "checkpoints").glob("step_*"))
    return load_file(last / "model.safetensors")


def likelihoods(folder: Path, rows: list[Timeline]) -> list[float]:
    """The mean log-probability of each row's tokens with loss, by plain forward passes in double precision."""
    model = read_weights(folder).double()
    model.set_attn_implementation("sdpa")
    found = []
    for row in rows:
        ids = torch.tensor([list(row.token_ids)])
        with torch.no_grad():
            logprobs = torch.log_softmax(model(input_ids=ids, use_cache=False).logits[0], -1)
        places = [place for place, trained in enumerate(row.loss_mask) if trained]
        found.append(math.fsum(float(logprobs[place - 1, ids[0, place]]) for place in places) / len(places))
    return found


def rows_of(conversations: list[dict[str, Any]]) -> list[Timeline]:
    chat_format = ChatFormat.load(tiny_model_dir())
    return [row for one in conversations for row in conversation_rows(chat_format, one["messages"])]


def test_sft_learns_to_say_what_examples_say_and_tells_the_loss_of_held_out_ones(tmp_path: Path) -> None:
    (tmp_path / "held.jsonl").write_text(json.dumps(CONVERSATIONS[0]) + "\n" + json.dumps(CONVERSATIONS[1]))
    trainer = {"held_out_examples": "held.jsonl", "total_steps": 20, "tasks_per_step": 4, "learning_rate": 1e-2}
    report = run_job(write_job(tmp_path, CONVERSATIONS, trainer=trainer, evaluation={"every": 10}))
    rows = timeless(report)
    steps = [row for row in rows if "loss" in row]
    before = likelihoods(tiny_model_dir(), rows_of(CONVERSATIONS))
    assert steps[0]["loss"] == pytest.approx(-math.fsum(before) / 4, abs=1e-5)
    held = {row["step"]: row["held_out/examples/loss"] for row in rows if "held_out/examples/loss" in row}
    assert list(held) == [0, 10, 20]
    assert held[0] == pytest.approx(-(before[0] + before[1]) / 2, abs=1e-5)
    folder = report.run_dir / "checkpoints" / "step_000020"
    after = likelihoods(folder, rows_of(CONVERSATIONS))
    assert held[20] == pytest.approx(-(after[0] + after[1]) / 2, abs=1e-5) and held[20] < held[0] / 3
    assert all(now > then for now, then in zip(after, before, strict=True))
    assert report.summary["tokens"]["trained"] == sum(row["tokens/trained"] for row in steps) == 20 * 8
    assert steps[0]["examples/total"] == steps[0]["timelines/total"] == 4 and "reward/mean" not in steps[0]


def test_a_resumed_run_over_examples_equals_one_that_was_never_stopped(tmp_path: Path) -> None:
    (tmp_path / "held.jsonl").write_text(json.dumps(CONVERSATIONS[0]))
    conf = write_job(tmp_path, CONVERSATIONS, trainer={"held_out_examples": "held.jsonl"}, evaluation={"every": 1})
    straight = run_job(conf)
    half = ("astune.experiment_name=half", "astune.trainer.total_steps=3", "astune.evaluation.after=false")
    run_job(conf, *half)
    resumed = run_job(conf, half[0], resume=True)
    assert timeless(resumed) == timeless(straight)
    a, b = weights(straight), weights(resumed)
    assert all(torch.equal(a[name], b[name]) for name in a)
    before = (resumed.run_dir / "metrics.jsonl").read_bytes()
    assert run_job(conf, half[0], resume=True).steps == 4  # it is finished
    assert (resumed.run_dir / "metrics.jsonl").read_bytes() == before


def test_held_out_tasks_are_played_where_a_workflow_says_how(tmp_path: Path) -> None:
    (tmp_path / "held.jsonl").write_text(json.dumps({"query": "What is 8 minus 2?", "answer": "6"}))
    (tmp_path / "train.jsonl").write_text(json.dumps({"query": "What is 8 minus 1?", "answer": "7"}))
    conf = write_job(
        tmp_path,
        CONVERSATIONS,
        trainer={"total_steps": 1},
        task_reader={"jsonl": {"training": {"file_path": "train.jsonl"}, "validation": {"file_path": "held.jsonl"}}},
        rollout={"agentscope_learn_protocol": f"{AGENT}:Asker", "max_tokens": 8},
        evaluation={"decoding": ["greedy"]},
    )
    rows = timeless(run_job(conf))
    assert [row["step"] for row in rows if "eval/greedy/reward" in row] == [0, 1]


def test_what_is_wrong_with_examples_is_told_before_there_is_a_run(tmp_path: Path) -> None:
    conf = write_job(tmp_path, [*CONVERSATIONS, {"message": []}])
    with pytest.raises(TaskError, match=r"examples\.jsonl:5: unknown field 'message'"):
        run_job(conf)
    with pytest.raises(ConfigError, match="tasks_per_step is 9, but there are only 4 examples"):
        run_job(write_job(tmp_path, CONVERSATIONS), "astune.trainer.tasks_per_step=9")
    assert not (tmp_path / "runs").exists()


def test_rejection_sampling_learns_from_what_was_right_alone(tmp_path: Path) -> None:
    tasks = [{"query": f"What is {n} plus {n}?", "answer": str(2 * n)} for n in (1, 2)]
    (tmp_path / "train.jsonl").write_text("\n".join(map(json.dumps, tasks)))
    conf = write_job(
        tmp_path,
        [],
        algorithm={"method": "rft", "keep_per_task": 2},
        trainer={"examples": None, "total_steps": 2},
        task_reader={"jsonl": {"training": {"file_path": "train.jsonl"}}},
        rollout={"agentscope_learn_protocol": f"{QUICK}:quick", "num_repeat": 6, "max_tokens": 8},
        monitor={"progress": "off", "trackers": [], "check_invariants": True},
    )
    rows = timeless(run_job(conf))
    for row in rows:
        counted = sum(row[f"rejection/{name}"] for name in ("kept", "wrong", "repeated", "surplus"))
        assert counted == row["episodes/total"] == 12 and row["rejection/kept"] <= 4
        assert ("loss" in row) == (row["rejection/kept"] > 0)
    assert any(row["rejection/kept"] for row in rows) and all(row["rejection/wrong"] == 8 for row in rows)


def test_a_teacher_draws_the_model_towards_itself(tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").write_text(json.dumps({"query": "What is 1 plus 1?", "answer": "2"}))
    sections: dict[str, Any] = {
        "task_reader": {"jsonl": {"training": {"file_path": "train.jsonl"}}},
        "rollout": {"agentscope_learn_protocol": f"{QUICK}:quick", "num_repeat": 16, "max_tokens": 8},
    }
    misled = run_job(write_job(tmp_path, CONVERSATIONS, trainer={"total_steps": 3, "learning_rate": 1e-3}))
    trainer = {"examples": None, "total_steps": 8, "tasks_per_step": 1, "learning_rate": 2e-4}
    conf = write_job(
        tmp_path,
        [],
        trainer=trainer,
        algorithm={"method": "distill", "teacher": "tiny"},
        model={"path": str(misled.run_dir / "checkpoints" / "step_000003")},
        **sections,
    )
    rows = timeless(run_job(conf, "astune.experiment_name=student"))
    distances = [row["kl/teacher"] for row in rows]
    assert distances[0] > 1 and max(distances[-2:]) < 0.05 * distances[0]
    same = run_job(conf, "astune.experiment_name=itself", "astune.trainer.total_steps=1", "astune.model.path=tiny")
    (row,) = timeless(same)
    assert abs(row["kl/teacher"]) < 1e-6 and row["grad_norm"] < 1e-3
    with pytest.raises(ConfigError, match="teacher: not set; method 'distill'"):
        load_config(conf, ["astune.algorithm.teacher=null"])

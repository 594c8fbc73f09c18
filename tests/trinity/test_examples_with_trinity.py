"""Examples in Trinity's hands: rows, the loss of preferences, and a run on a CPU over the tinker-compatible server."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("trinity")
pytest.importorskip("tinker")

import torch
from hypothesis import given
from hypothesis import strategies as st
from trinity.algorithm.policy_loss_fn.sft_loss import SFTLossFn
from trinity.common.config import load_config as load_trinity_config
from trinity.common.experience import EID
from trinity.trainer.tinker.utils import to_tinker_input
from trinity.utils.log import get_logger

from astune.backbone.trinity.conversion.convert import convert
from astune.backbone.trinity.trainer import example_steps
from astune.backbone.trinity.trainer.example_steps import ExampleSteps, experience_of_row
from astune.backbone.trinity.trainer.preference import PreferenceLoss
from astune.config.load import load_config
from astune.context_tracker.prompt.chat_format import ChatFormat
from astune.examples.conversation import conversation_rows
from astune.monitor.metrics import read_metrics
from astune.support.resources import tiny_model_dir

QUESTIONS = [f"What is {left} plus {right}?" for left, right in ((3, 4), (5, 4), (2, 6))]
EXAMPLES = [
    {"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": "The answer is 7."}]}
    for question in QUESTIONS
]
PAIRS = [
    {
        "messages": [{"role": "user", "content": question}],
        "chosen": {"role": "assistant", "content": "The answer is 7."},
        "rejected": {"role": "assistant", "content": "I do not know."},
    }
    for question in QUESTIONS
]
JOB = """\
astune:
  project_name: p
  experiment_name: n
  algorithm: {{method: {method}}}
  trainer: {{examples: examples.jsonl, total_steps: 3, tasks_per_step: 3, learning_rate: 1.0e-3, save_every: 2}}
  rollout: {{num_repeat: 2}}
  monitor: {{progress: plain}}
trinity:
  model: {{tinker: {{enable: {tinker}}}}}
"""


def write_job(folder: Path, method: str, examples: list[dict[str, Any]], tinker: str = "true") -> Path:
    (folder / "examples.jsonl").write_text("".join(json.dumps(row) + "\n" for row in examples))
    (folder / "job.yaml").write_text(JOB.format(method=method, tinker=tinker))
    return folder / "job.yaml"


def test_a_row_has_a_mask_on_its_answers_and_ends_with_the_last() -> None:
    chat_format = ChatFormat.load(tiny_model_dir())
    messages = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "hello"},
        {"role": "user", "content": "bye"},
        {"role": "assistant", "content": "see you"},
        {"role": "user", "content": "?"},
    ]
    (row,) = conversation_rows(chat_format, messages)
    made = experience_of_row(row, EID(batch=1, task=0, run=0), "tinker")
    ids = made.tokens[made.prompt_length :]
    assert chat_format.decode(ids[made.action_mask].tolist()) == "hello<|im_end|>see you<|im_end|>"
    assert chat_format.decode(made.tokens[: made.prompt_length].tolist()) == chat_format.render(messages[:1])
    assert len(made.tokens) == row.spans[-1].stop and made.experience_type == "multi_turn"
    (_,), _, (inputs,) = to_tinker_input([made], get_logger("test"))
    assert len(inputs["old_logprob"]) == len(inputs["ref_logprob"]) == len(inputs["action_mask"])
    assert experience_of_row(row, EID(), "verl").custom_fields == []


LOGPROBS = st.lists(st.floats(-5, 0), min_size=1, max_size=4)


@given(st.lists(st.tuples(LOGPROBS, LOGPROBS), min_size=1, max_size=3), st.floats(0.05, 2))
def test_preferences_are_weighed_pair_by_pair(pairs: list[tuple[list[float], list[float]]], beta: float) -> None:
    """As Trinity's tinker trainer calls a loss: row by row, the sum divided by the number of rows."""
    rows = [torch.tensor(logprobs, dtype=torch.float64, requires_grad=True) for pair in pairs for logprobs in pair]
    before = [torch.linspace(-1, 0, len(row), dtype=torch.float64) for row in rows]
    loss_fn = PreferenceLoss(beta=beta)
    total = torch.zeros((), dtype=torch.float64)
    for row, reference in zip(rows, before, strict=True):
        mask = torch.ones(len(row), dtype=torch.bool)
        loss, _ = loss_fn(logprob=row, ref_logprob=reference, action_mask=mask, unknown=1)
        total = total + loss / len(rows)
    gains = torch.stack([(row - reference).sum() for row, reference in zip(rows, before, strict=True)])
    wanted = -torch.log(torch.sigmoid(beta * (gains[::2] - gains[1::2]))).mean()
    assert torch.allclose(total, wanted)
    for one, other in zip(
        torch.autograd.grad(total, rows, retain_graph=True), torch.autograd.grad(wanted, rows), strict=True
    ):
        assert torch.allclose(one, other)


def test_tokens_of_the_context_do_not_count_in_a_preference() -> None:
    loss_fn = PreferenceLoss()
    mask, reference = torch.tensor([True, False]), torch.zeros(2)
    for values in ([-1.0, -9.0], [-1.0, -3.0]):
        _, metrics = loss_fn(logprob=torch.tensor(values), ref_logprob=reference, action_mask=mask)
    assert metrics["dpo_margin"] == 0 and metrics["dpo_accuracy"] == 0


def test_trinitys_loss_of_a_row_is_the_mean_over_its_answers_tokens() -> None:
    loss_fn = SFTLossFn(backend="tinker", loss_agg_mode="seq-mean-token-mean")
    loss, _ = loss_fn(logprob=torch.tensor([-1.0, -7.0, -2.0]), action_mask=torch.tensor([True, False, True]))
    assert loss.item() == pytest.approx(1.5)


def test_examples_on_gpus_pass_trinitys_own_validation(tmp_path: Path) -> None:
    loaded = load_config(
        write_job(tmp_path, "sft", EXAMPLES, tinker="false"),
        ["trinity.cluster.node_num=1", "trinity.cluster.gpu_per_node=1"],
        backbone="trinity",
    )
    file = tmp_path / "config.yaml"
    file.write_text(convert(loaded, tmp_path / "run").yaml())
    config = load_trinity_config(str(file)).check_and_update()
    assert config.mode == "train" and config.trainer.total_steps == 3
    assert config.cluster.trainer_gpu_num == 1
    assert config.algorithm.policy_loss_fn == "sft" and config.algorithm.kl_loss_fn == "none"
    assert config.algorithm.policy_loss_fn_args == {"loss_agg_mode": "seq-mean-token-mean"}
    assert config.buffer.trainer_input.experience_buffer.batch_size == 3


def test_a_step_has_the_examples_of_its_number_until_the_run_ends_or_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = load_config(write_job(tmp_path, "dpo", PAIRS), ["astune.trainer.tasks_per_step=1"], backbone="trinity")
    file = tmp_path / "config.yaml"
    file.write_text(convert(loaded, tmp_path / "run").yaml())
    config, stopped = load_trinity_config(str(file)), list[bool]()
    assert config.algorithm.sample_strategy.endswith(".ExampleSteps")

    async def stopping() -> bool:
        return bool(stopped)

    mailbox = SimpleNamespace(stopping=SimpleNamespace(remote=stopping))
    monkeypatch.setattr(example_steps, "find_mailbox", lambda: mailbox)
    settings = config.algorithm.sample_strategy_args
    first, resumed = (ExampleSteps(config.buffer, **settings) for _ in range(2))
    chat_format = ChatFormat.load(tiny_model_dir())

    async def texts(steps: ExampleSteps, number: int) -> list[str]:
        rows, figures, _ = await steps.sample(number)
        assert figures["astune/batch"] == number
        assert figures["sample/trained_tokens"] == sum(int(row.action_mask.sum()) for row in rows)
        assert [(row.eid.batch, row.eid.task, row.eid.run) for row in rows] == [(number, 0, 0), (number, 0, 1)]
        return [chat_format.decode(row.tokens.tolist()) for row in rows]

    async def sample() -> None:
        every = [await texts(first, number) for number in (1, 2, 3)]
        assert all("The answer is 7." in chosen and "I do not know." in rejected for chosen, rejected in every)
        assert all(any(question in chosen for chosen, _ in every) for question in QUESTIONS)
        assert await texts(resumed, 3) == every[2]
        with pytest.raises(StopAsyncIteration):
            await first.sample(4)
        stopped.append(True)
        with pytest.raises(StopAsyncIteration):
            await resumed.sample(2)

    asyncio.run(sample())


def run(folder: Path, *more: str) -> str:
    root = str(Path(__file__).parents[2])
    path = os.pathsep.join([root, str(Path(__file__).parent / "stubs"), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-m", "astune", "--conf", "job.yaml", "--backbone=trinity", *more],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": path, "RAY_USAGE_STATS_ENABLED": "0", "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def losses(folder: Path) -> list[tuple[int, float]]:
    return [(row["step"], row["loss"]) for row in read_metrics(folder / "runs/p/n/metrics.jsonl") if "loss" in row]


@pytest.mark.release
def test_the_loss_on_examples_goes_down_and_a_resumed_run_goes_on(tmp_path: Path) -> None:
    """In CI their rows, their loss, the steps that they make and the configuration are tested, Trinity's trainer with
    them (test_online_training), and whole runs and resumed ones with tasks (test_run)."""
    write_job(tmp_path, "sft", EXAMPLES)
    output = run(tmp_path)
    assert "note not used by method sft: astune.rollout.num_repeat" in output and "Done after 3 steps" in output
    first = losses(tmp_path)
    assert [step for step, _ in first] == [1, 2, 3] and first[0][1] > first[1][1] > first[2][1]
    run(tmp_path, "--resume", "astune.trainer.total_steps=4")
    *before, (step, loss) = losses(tmp_path)
    assert before == first and step == 4 and loss < first[2][1]


@pytest.mark.release  # in CI as the one above
def test_preferred_answers_become_more_likely_than_rejected_ones(tmp_path: Path) -> None:
    write_job(tmp_path, "dpo", PAIRS)
    run(tmp_path)
    before = losses(tmp_path)
    assert [step for step, _ in before] == [1, 2, 3]
    assert before[0][1] == pytest.approx(0.6931, abs=1e-3) and before[2][1] < before[0][1]
    checkpoints = sorted(path.name for path in (tmp_path / "runs/p/n/checkpoints").iterdir())
    assert checkpoints == ["step_000002", "step_000003"]
    *_, row = (row for row in read_metrics(tmp_path / "runs/p/n/metrics.jsonl") if "preference/accuracy" in row)
    assert row["preference/accuracy"] == 1

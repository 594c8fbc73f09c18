"""The estimate of a training worker's memory against what one takes, on a CPU and in this process: what torch keeps and
makes is the same on a GPU, apart from kernels of its own."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import shutil
from pathlib import Path

import pytest
from transformers import Qwen3Config, Qwen3ForCausalLM

from astune.backbone.memory.model_size import read_size
from astune.backbone.verl.memory import BYTES, estimate
from astune.backbone.verl.trainer.learner import VerlLearner
from astune.backbone.verl.trainer.settings import compose_settings, settings_of
from astune.config.load import load_config
from astune.config.schema import AlgorithmConfig
from astune.support.resources import tiny_model_dir
from astune.types import Sample, Span, Timeline
from tests.verl.one_process import OneProcess

TOKENS = 1024
WEIGHTS = ("*.safetensors", "config.json")


def wide_model(folder: Path) -> Path:
    """43 million parameters, of which the vocabulary has three quarters: no other model of the tests is large enough to
    be seen beside what Python takes."""
    shape = Qwen3Config(
        vocab_size=60_000,
        hidden_size=512,
        intermediate_size=1536,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=4,
        head_dim=64,
        tie_word_embeddings=True,
    )
    shutil.copytree(tiny_model_dir(), folder, ignore=shutil.ignore_patterns(*WEIGHTS))
    Qwen3ForCausalLM(shape).save_pretrained(folder)
    return folder


def memory_of_this_process(peak: bool = False) -> int:
    """Bytes; with `peak` the most since `forget_peak`."""
    name = "VmHWM" if peak else "VmRSS"
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))


def forget_peak() -> None:
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)  # what was freed stays with the process otherwise
    Path("/proc/self/clear_refs").write_text("5")


@pytest.mark.parametrize("advantage", [pytest.param("grpo", marks=pytest.mark.release), "gae"])
def test_a_training_worker_takes_what_is_estimated(tmp_path: Path, advantage: str) -> None:
    """With `gae` a critic stands beside the policy."""
    algorithm = AlgorithmConfig(advantage=advantage)
    model = wide_model(tmp_path / "model")
    forget_peak()
    before = memory_of_this_process()
    workers = OneProcess(tmp_path, model, algorithm, micro_batch_tokens=TOKENS)
    del workers._begun  # another copy of the weights
    learner = VerlLearner(workers, lambda version: {}, algorithm, workers.trainer)
    span = Span(0, 1, TOKENS, 0, 1.0, True, [-9.0] * (TOKENS - 1))
    line = Timeline("agent", [5 + place % 900 for place in range(TOKENS)], (span,))
    row = Sample(line, (1.0,), (0.001,), "t", "e", (1.0,))
    for _ in range(2):  # AdamW makes its averages in the first
        forget_peak()
        asyncio.run(learner.update([row], 1e-4))
    learns = memory_of_this_process(peak=True) - before
    forget_peak()
    rests = memory_of_this_process() - before
    loaded = load_config(tmp_path / "job_0.yaml", [f"astune.algorithm.advantage={advantage}"])
    expected = estimate(read_size(model), settings_of(loaded).tree, loaded.config.astune, TOKENS)
    assert 0.8 < learns / sum(expected.learning.values()) < 1.15
    assert 0.8 < rests / sum(expected.resting.values()) < 1.25


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_what_is_taken_for_granted_is_what_verl_has_by_itself(device: str, tmp_path: Path) -> None:
    """The estimate reads what is set, before verl is installed; whole, verl's configuration says the same."""
    job = tmp_path / "job.yaml"
    job.write_text(
        "astune:\n  backbone: verl\n  rollout: {agentscope_learn_protocol: a.b:C}\n"
        f"  model: {{path: {tiny_model_dir()}, device: {device}}}\n"
        "  task_reader: {jsonl: {training: {file_path: none.jsonl}}}\n"
    )
    loaded = load_config(job)
    settings, size = settings_of(loaded), read_size(tiny_model_dir())
    whole = compose_settings(loaded, settings)
    assert estimate(size, whole, loaded.config.astune, 512) == estimate(size, settings.tree, loaded.config.astune, 512)
    assert (
        whole.actor_rollout_ref.actor.fsdp_config.model_dtype == "fp32"
        and whole.actor_rollout_ref.rollout.dtype in BYTES
    )

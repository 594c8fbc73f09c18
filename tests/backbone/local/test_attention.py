"""`astune.model.attention` on the local backbone: each value answers and learns alike, or says why it cannot."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from astune.backbone.local.model import flash, model
from astune.backbone.local.model.model import load_model
from astune.config.load import load_config
from astune.config.schema import ModelConfig
from astune.errors import ConfigError, ModelError
from tests.backbone.local.flash_stand_in import use_stand_in
from tests.gpu.trained import CPU, RATE, answers, made_samples, prompts, trained


@pytest.mark.parametrize("attention", ["sdpa", "eager", "flash_attention_2"])
async def test_every_attention_answers_and_updates_policy_and_critic_alike(
    attention: str, model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_stand_in(monkeypatch)
    monkeypatch.setattr(model, "require_flash", lambda device, dtype: None)
    samples, asked, found = made_samples(6, 40, shared=15, vocabulary=64), prompts(4, vocabulary=64), []
    for value in ("auto", attention):
        one = trained(model_dir, CPU, model={"attention": value}, algorithm={"advantage": "gae"})
        assert one.loaded.family.attention == model.NAMES[value]
        given = await answers(one.sampler, asked)
        updates = [await one.learner.update(samples, RATE) for _ in range(2)]
        found.append((given, updates[-1].metrics))
    (given, expected), (other, metrics) = found
    for one_answer, other_answer in zip(given, other, strict=True):
        assert other_answer.output_ids == one_answer.output_ids
        assert other_answer.logprobs == pytest.approx(one_answer.logprobs, abs=1e-4)
    assert metrics == pytest.approx(expected, rel=1e-3, abs=1e-6)


@pytest.mark.parametrize(
    ("device", "dtype", "capability", "why"),
    [
        ("cpu", torch.bfloat16, (8, 0), "the kernels are for CUDA alone, and the model is on 'cpu'"),
        ("cuda", torch.float32, (8, 0), "the kernels compute in half precision, and astune.model.dtype is 'float32'"),
        (
            "cuda",
            torch.bfloat16,
            (7, 5),
            "the kernels need a GPU of compute capability 8.0 or more, and this one has 7.5",
        ),
    ],
)
def test_where_flash_attention_cannot_be_the_reason_is_told(
    device: str, dtype: torch.dtype, capability: tuple[int, int], why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    with pytest.raises(ModelError) as caught:
        flash.require_flash(torch.device(device), dtype)
    assert str(caught.value).startswith(f"astune.model.attention: got 'flash_attention_2', but {why}")


@pytest.mark.skipif(torch.cuda.is_available(), reason="it is about a machine without CUDA")
def test_a_machine_without_cuda_refuses_flash_attention_before_it_reads_weights(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="the kernels are for CUDA alone, and the model is on 'cpu'; expected 'auto'"):
        load_model(ModelConfig(attention="flash_attention_2"))


@pytest.mark.parametrize(("key", "value"), [("device", "cpu"), ("dtype", "float32")])
@pytest.mark.parametrize("backbone", ["local", "verl"])
def test_a_file_that_rules_flash_attention_out_is_refused_with_the_line(
    key: str, value: str, backbone: str, tmp_path: Path
) -> None:
    job, lines = tmp_path / "job.yaml", ["astune:", f"  backbone: {backbone}", "  model:", f"    {key}: {value}"]
    job.write_text("\n".join([*lines, "    attention: flash_attention_2", "  trainer: {total_steps: 1}"]))
    said: Any = rf"job.yaml:5: astune.model.attention: got 'flash_attention_2', .* astune.model.{key} is '{value}'"
    with pytest.raises(ConfigError, match=said):
        load_config(job)

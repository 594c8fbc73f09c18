"""The sampler on the device beside transformers' own model on the CPU in float64, and beside the learner."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from astune.errors import PolicyError
from astune.types import Generation
from tests.gpu.trained import CPU, RATE, Trained, answers, prompts, samples_of, trained

Say = Callable[[str, object], None]
APART = {"float32": (1e-4, 1e-3), "bfloat16": (0.03, 0.5)}
"""By how much log-probabilities of sampling and training may differ: the mean, and the most. bfloat16 has 8 bits; with
these weights logits are about 10 apart."""


def exact(folder: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64, attn_implementation="sdpa").eval()


@torch.inference_mode()
def logprobs_after(model: Any, prompt: list[int], answer: Generation) -> torch.Tensor:
    """(tokens of the answer, vocabulary)"""
    ids = torch.tensor([[*prompt, *answer.output_ids]])
    return torch.log_softmax(model(ids).logits[0, len(prompt) - 1 : -1], -1)


async def test_greedy_answers_are_those_of_the_cpu_in_float64(
    device: torch.device, model_dir: Path, record_property: Say
) -> None:
    plain, asked = exact(model_dir), prompts(12)
    most = 0.0
    given = await answers(trained(model_dir, device).sampler, asked, temperature=0.0)
    for prompt, answer in zip(asked, given, strict=True):
        logprobs = logprobs_after(plain, prompt, answer)
        chosen = logprobs.gather(1, torch.tensor(answer.output_ids)[:, None])[:, 0]
        assert (chosen > logprobs.max(1).values - 1e-4).all()  # the likeliest, or one as likely
        most = max(most, float((chosen - torch.tensor(answer.logprobs)).abs().max()))
    record_property("logprobs differ at most by", f"{most:.2g}")
    assert most < 1e-3
    assert len({answer.output_ids for answer in given}) > 3  # the model does not say one thing to all


@pytest.mark.parametrize(
    ("dtype", "count", "length", "attention"),
    [
        ("float32", 16, 120, "auto"),
        ("bfloat16", 16, 120, "auto"),
        ("bfloat16", 2, 4000, "auto"),
        ("bfloat16", 16, 120, "sdpa"),
        ("bfloat16", 2, 4000, "sdpa"),
    ],
    indirect=["attention"],
)
async def test_the_learner_gives_tokens_the_logprobs_they_were_sampled_with(
    device: torch.device, model_dir: Path, dtype: str, count: int, length: int, attention: str, record_property: Say
) -> None:
    made, asked = trained(model_dir, device, dtype, model={"attention": attention}), prompts(count, length)
    given = await answers(made.sampler, asked)
    samples = samples_of(asked, given)
    pairs = zip(await made.learner.logprobs(samples), given, strict=True)
    apart = torch.cat([(torch.tensor(own) - torch.tensor(answer.logprobs)).abs() for own, answer in pairs])
    record_property("mean", f"{float(apart.mean()):.2g}")
    record_property("most", f"{float(apart.max()):.2g}")
    assert float(apart.mean()) < APART[dtype][0] and float(apart.max()) < APART[dtype][1]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
async def test_what_is_published_is_sampled(device: torch.device, model_dir: Path, dtype: str, tmp_path: Path) -> None:
    made, asked = trained(model_dir, device, dtype), prompts(8)
    before = await answers(made.sampler, asked, temperature=0.0)
    await made.learner.update(samples_of(asked, await answers(made.sampler, asked)), 20 * RATE)
    assert await made.learner.publish() == 1
    pairs = zip(made.loaded.model.parameters(), made.loaded.sampling_model.parameters(), strict=True)
    assert all(torch.equal(master.to(copy.dtype), copy) and copy.device.type == device.type for master, copy in pairs)
    after = await answers(made.sampler, asked, temperature=0.0)
    assert [each.output_ids for each in after] != [each.output_ids for each in before]
    made.learner.save(tmp_path / "saved")
    plain = exact(tmp_path / "saved")
    for prompt, answer in zip(asked, after, strict=True):
        chosen = logprobs_after(plain, prompt, answer).gather(1, torch.tensor(answer.output_ids)[:, None])[:, 0]
        assert float((chosen - torch.tensor(answer.logprobs)).abs().mean()) < APART[dtype][0] * 3


async def test_adapters_are_sampled_and_trained_alike(
    device: torch.device, model_dir: Path, record_property: Say
) -> None:
    pytest.importorskip("peft")
    asked = prompts(8)

    def adapted(where: torch.device, dtype: str) -> Trained:
        return trained(model_dir, where, dtype, model={"lora": {"rank": 4}})

    made = adapted(device, "bfloat16")
    samples = samples_of(asked, await answers(made.sampler, asked))
    base = [each.detach().clone() for each in made.loaded.model.parameters() if not each.requires_grad]
    await made.learner.update(samples, 20 * RATE)
    assert await made.learner.publish() == 1
    kept = [each for each in made.loaded.model.parameters() if not each.requires_grad]
    assert all(torch.equal(a, b) for a, b in zip(base, kept, strict=True))
    given = await answers(made.sampler, asked)
    pairs = zip(await made.learner.logprobs(samples_of(asked, given)), given, strict=True)
    apart = torch.cat([(torch.tensor(own) - torch.tensor(answer.logprobs)).abs() for own, answer in pairs])
    record_property("mean", f"{float(apart.mean()):.2g}")
    assert float(apart.mean()) < APART["bfloat16"][0]
    steps = []
    begun = [each.detach().cpu().clone() for each in adapted(CPU, "float32").loaded.trainable()]
    for where in (CPU, device):
        one = adapted(where, "float32")
        for parameter, value in zip(one.loaded.trainable(), begun, strict=True):
            parameter.data.copy_(value)
        before = one.weights()
        await one.learner.update(samples, RATE)
        steps.append(one.weights() - before)
    assert steps[0].norm() > 0 and (steps[0] - steps[1]).norm() / steps[0].norm() < 0.02


async def test_a_device_that_is_full_fails_the_call_and_answers_the_next(cuda: torch.device, wide_dir: Path) -> None:
    made, short = trained(wide_dir, cuda, "bfloat16"), prompts(2)
    expected = await answers(made.sampler, short)
    torch.cuda.empty_cache()
    whole = torch.cuda.mem_get_info()[1]
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + 2**25) / whole)
    try:
        with pytest.raises(PolicyError, match="memory"):
            await answers(made.sampler, [[number % 512 for number in range(16_000)]])
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert [each.output_ids for each in await answers(made.sampler, short)] == [each.output_ids for each in expected]


async def test_a_long_prompt_takes_no_memory_for_its_square(
    cuda: torch.device, wide_dir: Path, record_property: Say
) -> None:
    made = trained(wide_dir, cuda, "bfloat16")
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    await answers(made.sampler, [[number % 512 for number in range(16_000)]])
    taken = (torch.cuda.max_memory_allocated() - before) / 2**20
    record_property("MiB", f"{taken:.0f}")
    assert taken < 2000  # the mask of 16,000 x 16,000 alone would have 1,464, for two query heads of a key head

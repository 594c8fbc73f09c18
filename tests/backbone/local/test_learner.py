from __future__ import annotations

import math
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from astune.algorithm import to_samples
from astune.algorithm.advantage import grpo
from astune.backbone.local.learning.learner import LocalLearner
from astune.backbone.local.model.model import load_model, read_weights
from astune.backbone.local.sampling.sampler import Sampler
from astune.config.schema import AlgorithmConfig, ModelConfig, TrainerConfig
from astune.context_tracker.merge import TurnForest
from astune.errors import ModelError
from astune.support.resources import tiny_model_dir
from astune.types import Episode, Group, Sample, Sampling, Span, StopReason, Task, Timeline, Turn, Verdict
from tests.backbone.local.families import make_family
from tests.rows import each_row

RATE = 0.01


def learner_over(model_dir: Path) -> tuple[LocalLearner, Sampler]:
    loaded = load_model(ModelConfig(path=str(model_dir), device="cpu"))
    sampler = Sampler(loaded.sampling_model, slots=4, context_length=128)
    return LocalLearner(loaded, sampler, AlgorithmConfig(), TrainerConfig()), sampler


async def sampled(sampler: Sampler, prompt: list[int], advantage: float) -> Sample:
    generation = await sampler.generate(prompt, Sampling(max_tokens=6, seed=len(prompt)))
    tokens = (*prompt, *generation.output_ids)
    line = Timeline("a", tokens, (Span(0, len(prompt), len(tokens), 0, 1.0, True, generation.logprobs),))
    return Sample(line, (advantage,), (1 / 12,), "t", f"e{advantage}")


async def good_and_bad(sampler: Sampler) -> list[Sample]:
    return [await sampled(sampler, [1, 2, 3], 1.0), await sampled(sampler, [1, 2, 3, 4], -1.0)]


async def test_an_update_makes_the_better_answer_likelier_and_the_worse_less_likely(model_dir: Path) -> None:
    learner, sampler = learner_over(model_dir)
    samples = await good_and_bad(sampler)
    first, second = await learner.update(samples, RATE), await learner.update(samples, RATE)
    assert first.metrics["kl/sampler"] < 1e-8  # before the first update, the weights are those that sampled
    assert not first.skipped and first.metrics["grad_norm"] > 0
    assert second.metrics["loss"] < first.metrics["loss"]
    assert second.metrics["kl/sampler"] > 1e-6


async def test_each_agent_of_a_zero_sum_game_learns_from_its_own_reward(model_dir: Path) -> None:
    """Both episodes are worth the same; in each, one agent wins what the other loses."""
    learner, sampler = learner_over(model_dir)
    task = Task("t", "q")
    episodes = []
    for number, won in enumerate((1.0, -1.0)):
        turns = []
        for agent, prompt in (("buyer", (1, 2, 3)), ("seller", (4, 5))):
            generation = await sampler.generate(prompt, Sampling(max_tokens=6, seed=number))
            turns.append(Turn(agent, prompt, generation.output_ids, generation.logprobs, 0, "stop"))
        rewards = {"buyer": won, "seller": -won}
        end = StopReason.COMPLETED
        episodes.append(
            Episode(
                f"e{number}",
                task,
                tuple(turns),
                TurnForest(turns).timelines(),
                end,
                None,
                Verdict(0.5),
                agent_rewards=rewards,
            )
        )
    samples, _ = to_samples([Group(task, tuple(episodes))], grpo)
    assert len(samples) == 4
    for _ in range(3):
        await learner.update(samples, RATE)
    learner._loaded.model.set_attn_implementation("sdpa")
    for sample in samples:
        row = torch.tensor([list(sample.timeline.token_ids)])
        (span,) = sample.timeline.spans
        with torch.no_grad():
            logits = learner._loaded.model(input_ids=row, use_cache=False).logits[0, span.start - 1 : -1]
        now = torch.log_softmax(logits, -1).gather(1, row[0, span.start :, None]).sum()
        assert (float(now) > sum(span.logprobs)) == (sample.advantages[0] > 0)


@pytest.mark.parametrize(("decay", "drops"), [(0.0, False), (8.0, True)])
async def test_tokens_age_with_every_update_and_minirl_leaves_old_ones_out_sooner(
    model_dir: Path, decay: float, drops: bool
) -> None:
    loaded = load_model(ModelConfig(path=str(model_dir), device="cpu"))
    sampler = Sampler(loaded.sampling_model, slots=4, context_length=128)
    learner = LocalLearner(loaded, sampler, AlgorithmConfig(loss="minirl", out_of_date_decay=decay), TrainerConfig())
    samples = await good_and_bad(sampler)
    first, second = [await learner.update(samples, RATE / 100) for _ in range(2)]
    assert first.metrics["dropped_fraction"] == 0
    assert (second.metrics["dropped_fraction"] > 0) == drops
    await learner.publish()
    assert (await learner.update(await good_and_bad(sampler), RATE / 100)).metrics["dropped_fraction"] == 0


@each_row("recorded", [-9999.0, -1e30, -1e308, 0.0, 50.0])
@each_row("advantage", [1.0, -1.0])
async def test_a_recorded_logprob_far_from_the_own_one_spoils_no_update(
    model_dir: Path, recorded: float, advantage: float
) -> None:
    learner, sampler = learner_over(model_dir)
    sample = (await good_and_bad(sampler))[0]
    (span,) = sample.timeline.spans
    line = replace(sample.timeline, spans=(replace(span, logprobs=[recorded] * len(span)),))
    update = await learner.update([replace(sample, timeline=line, advantages=(advantage,))], RATE)
    assert not update.skipped and all(map(math.isfinite, update.metrics.values()))


async def test_what_was_saved_is_a_model_that_transformers_loads(model_dir: Path, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    learner, _ = learner_over(model_dir)
    learner.save(tmp_path / "saved")
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "saved")
    pairs = zip(loaded.parameters(), learner._loaded.model.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


async def test_sampling_in_bfloat16_follows_the_float32_weights(model_dir: Path) -> None:
    loaded = load_model(ModelConfig(path=str(model_dir), device="cpu", dtype="bfloat16"))
    sampler = Sampler(loaded.sampling_model, slots=4, context_length=128)
    learner = LocalLearner(loaded, sampler, AlgorithmConfig(), TrainerConfig())
    samples = await good_and_bad(sampler)
    update = await learner.update(samples, RATE)
    assert 0 < update.metrics["kl/sampler"] < 0.05
    await learner.publish()
    for trained, sampling in zip(loaded.model.parameters(), loaded.sampling_model.parameters(), strict=True):
        assert trained.dtype == torch.float32 and torch.equal(trained.to(torch.bfloat16), sampling)


@pytest.mark.parametrize("name", ["qwen3", "gemma3_text"])
def test_positions_turn_alike_in_sampling_and_in_training(name: str, tmp_path: Path) -> None:
    """Frequencies in bfloat16 would turn the thousandth token by another angle than the learner does."""
    make_family(name).model.save_pretrained(tmp_path)
    loaded = load_model(ModelConfig(path=str(tmp_path), device="cpu", dtype="bfloat16"))
    expected, found = dict(loaded.model.named_buffers()), dict(loaded.sampling_model.named_buffers())
    assert expected.keys() == found.keys() and any("inv_freq" in each for each in expected)
    for each, value in expected.items():
        assert found[each].dtype == value.dtype and torch.equal(found[each], value), each


async def test_gradient_checkpointing_computes_layers_twice_and_changes_nothing(model_dir: Path) -> None:
    figures, passes = [], []
    for checkpointing in (False, True):
        config = ModelConfig(path=str(model_dir), device="cpu", gradient_checkpointing=checkpointing)
        loaded = load_model(config)
        sampler = Sampler(loaded.sampling_model, slots=4, context_length=128)
        learner = LocalLearner(loaded, sampler, AlgorithmConfig(), TrainerConfig())
        samples = await good_and_bad(sampler)
        calls: list[int] = []
        loaded.model.model.layers[0].mlp.register_forward_pre_hook(lambda *_, calls=calls: calls.append(1))
        figures.append((await learner.update(samples, RATE)).metrics)
        passes.append(len(calls))
    assert passes == [1, 2]
    assert figures[0] == pytest.approx(figures[1])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"path": "/no/such/folder"}, "there is no folder '/no/such/folder'"),
        ({"max_model_len": 1000}, "max_model_len is 1000, but the model in .* was made for 512"),
    ],
)
def test_a_model_that_cannot_be_used_is_explained(model_dir: Path, change: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        load_model(ModelConfig(**({"path": str(model_dir), "device": "cpu"} | change)))


@pytest.mark.fault(
    "Input files and settings",
    "the folder of the model holds no model",
    "an error before the run begins that says what was looked for",
)
def test_a_folder_without_a_model_is_explained(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"has no config\.json"):
        load_model(ModelConfig(path=str(tmp_path), device="cpu"))
    (tmp_path / "config.json").write_text('{"model_type": "qwen3"}')
    with pytest.raises(ModelError, match="does not load"):
        load_model(ModelConfig(path=str(tmp_path), device="cpu"))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_cuda_without_a_device_is_explained(model_dir: Path) -> None:
    with pytest.raises(ModelError, match="no CUDA device"):
        load_model(ModelConfig(path=str(model_dir), device="cuda"))


@pytest.mark.fault(
    "Records and checkpoints",
    "the files of a model lack a tensor, have one too many or one of another shape",
    "the model is refused, and the tensors are named",
)
@pytest.mark.parametrize("change", ["lack", "have too much", "have in another shape"])
def test_weights_that_are_not_the_models_are_refused(tmp_path: Path, change: str) -> None:
    from safetensors.torch import load_file, save_file

    folder = shutil.copytree(tiny_model_dir(), tmp_path / "model")
    weights = load_file(folder / "model.safetensors")
    name = "model.layers.0.input_layernorm.weight"
    if change == "lack":
        del weights[name]
    else:
        name = name if change == "have in another shape" else "model.more"
        weights[name] = torch.zeros(3)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match=rf"{change} {name}"):
        read_weights(folder)


async def test_what_is_imitated_has_the_loss_of_examples_beside_what_was_played(model_dir: Path) -> None:
    """Minus log-probability times advantage, whatever the model was sampled with; each adds its gradient once."""
    played, said = await good_and_bad(learner_over(model_dir)[1])
    imitated = replace(said, imitated=True, advantages=(0.5,))
    loaded = load_model(ModelConfig(path=str(model_dir), device="cpu"))
    sampler = Sampler(loaded.sampling_model, slots=4, context_length=128)
    examples = LocalLearner(loaded, sampler, AlgorithmConfig(method="sft"), TrainerConfig())
    alone = await examples.update([replace(imitated, imitated=False)], RATE)
    learner, _ = learner_over(model_dir)
    assert (await learner.update([imitated], RATE)).metrics["loss"] == alone.metrics["loss"]
    for name, value in learner._loaded.model.state_dict().items():
        assert torch.equal(value, loaded.model.state_dict()[name]), name
    mixed, other = learner_over(model_dir)[0], learner_over(model_dir)[0]
    both = await mixed.update([imitated, played], RATE)
    assert both.metrics["loss"] == pytest.approx(
        alone.metrics["loss"] + (await other.update([played], RATE)).metrics["loss"], rel=1e-6
    )

"""Sampling and training of many families against a plain forward pass of transformers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from astune.backbone.local.learning.batch import micro_batches
from astune.backbone.local.learning.forward import predict
from astune.backbone.local.learning.learner import LocalLearner
from astune.backbone.local.model.attention import ATTENTION
from astune.backbone.local.model.family import find_family
from astune.backbone.local.model.model import load_model
from astune.backbone.local.sampling.sampler import Sampler
from astune.config.schema import AlgorithmConfig, LoraConfig, ModelConfig, TrainerConfig
from astune.errors import ModelError
from astune.types import Generation, Sample, Sampling, Span, Timeline
from tests.backbone.local.families import FAMILIES, ROWS, TREES, TinyModel, make_family
from tests.backbone.local.flash_stand_in import use_stand_in
from tests.rows import each_row

CPU = torch.device("cpu")
OTHERS = [
    ("qwen2", "sdpa"),
    ("qwen2", "eager"),
    ("gemma2", "eager"),
    ("qwen3_5_text", "eager"),
    ("qwen3_5_text", "sdpa"),
]
FLASH = [(name, "flash_attention_2") for name in ("qwen2", "qwen3", "granite")]
CASES = [*((name, "auto") for name in FAMILIES), *OTHERS, *FLASH]
"""Each family, and those with windows, caps on scores and layers of other kinds with each `astune.model.attention`."""


UNFIT: dict[str, dict[str, object]] = {
    "qwen3": {"head_dim": 264},
    "deepseek_v3": {
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "n_group": 1,
        "topk_group": 1,
        "moe_intermediate_size": 32,
        "first_k_dense_replace": 1,
        "q_lora_rank": 16,
        "kv_lora_rank": 16,
        "qk_nope_head_dim": 16,
        "qk_rope_head_dim": 8,
        "v_head_dim": 8,
    },
}


@pytest.fixture(scope="module", params=list(FAMILIES))
def tiny(request: pytest.FixtureRequest) -> Iterator[TinyModel]:
    yield make_family(request.param)


def plain_logprobs(model: Any, ids: Sequence[int], span: range, temperature: float = 1.0) -> torch.Tensor:
    """Log-probabilities of the tokens at `span`, the row by itself."""
    tokens = torch.tensor([list(ids)])
    logits = model(input_ids=tokens, use_cache=False).logits[0, span.start - 1 : span.stop - 1].double()
    return torch.log_softmax(logits / temperature, -1).gather(1, tokens[0, span.start : span.stop, None])[:, 0]


async def conversations(tiny: TinyModel) -> list[tuple[list[int], Generation]]:
    """Three attempts at each of two tasks, two turns each: prompts are shared, turns are continued."""
    sampler = Sampler(tiny.model, slots=4, context_length=256, family=tiny.family)

    async def attempt(number: int) -> list[tuple[list[int], Generation]]:
        prompt = [*(3 + (5 * i + number % 2) % 60 for i in range(21)), 7]
        calls = []
        for turn in range(2):
            answer = await sampler.generate(prompt, Sampling(max_tokens=7, seed=10 * number + turn, temperature=0.8))
            calls.append((list(prompt), answer))
            prompt = [*prompt, *answer.output_ids, 50, 51, number]
        return calls

    return [call for calls in await asyncio.gather(*(attempt(number) for number in range(6))) for call in calls]


def sample_of(prompt: list[int], answer: Generation, advantage: float) -> Sample:
    span = Span(0, len(prompt), len(prompt) + len(answer.output_ids), 0, 0.8, True, list(answer.logprobs))
    line = Timeline("agent", [*prompt, *answer.output_ids], (span,))
    return Sample(line, (advantage,), (1 / 32,), "task", "episode")


@pytest.fixture(autouse=True)
def flash_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    use_stand_in(monkeypatch)


@each_row(("name", "attention"), CASES)
async def test_sampler_and_learner_give_the_logprobs_of_a_plain_forward_pass(name: str, attention: str) -> None:
    tiny = in_double(make_family(name, attention))  # else a Mamba is off by up to 4e-4; its state is single
    calls = await conversations(tiny)
    samples = [sample_of(*call, 1.0) for call in calls]
    with torch.no_grad():
        expected = [
            plain_logprobs(tiny.plain, one.timeline.token_ids, range(span.start, span.stop), 0.8)
            for one in samples
            for span in one.timeline.spans
        ]
        for (_, answer), logprobs in zip(calls, expected, strict=True):
            assert answer.logprobs == pytest.approx(logprobs.tolist(), abs=5e-5)
        for batch in micro_batches(samples, 100, CPU, tiny.family.layout):
            learned = predict(tiny.model, batch).logprob
            assert learned.tolist() == pytest.approx(
                torch.cat([expected[number] for number in batch.samples]).tolist(), abs=5e-5
            )


def random_samples() -> list[Sample]:
    """Rows that part at several places, longer than every window."""
    random = np.random.default_rng(0)
    samples = []
    for group in range(2):
        prompt = random.integers(3, 64, 20 + group).tolist()
        answer = random.integers(3, 64, 12).tolist()
        for attempt in range(3):
            ids = (*answer[: 4 * attempt + 1], *random.integers(3, 64, 5).tolist())
            found = Generation(ids, (-1.0,) * len(ids), 0, "stop")
            samples.append(sample_of(prompt, found, attempt - 0.8))
    return samples


def in_double(tiny: TinyModel) -> TinyModel:
    for one in (tiny.model, tiny.plain):
        one.double().set_experts_implementation("eager")  # others do not compute in double precision
    return tiny


def gradient(model: Any, loss: torch.Tensor) -> torch.Tensor:
    model.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


@each_row(("name", "attention"), CASES)
def test_loss_and_gradient_are_those_of_rows_by_themselves(name: str, attention: str) -> None:
    tiny = in_double(make_family(name, attention))
    model, plain = tiny.model, tiny.plain
    samples = random_samples()
    batches = micro_batches(samples, 10_000, CPU, tiny.family.layout)
    loss = sum((-predict(model, b).logprob * b.advantage * b.weight).sum() for b in batches)
    expected = sum(
        -(plain_logprobs(plain, one.timeline.token_ids, range(span.start, span.stop), 0.8) * advantage / 32).sum()
        for one in samples
        for span, advantage in zip(one.timeline.spans, one.advantages, strict=True)
    )
    assert isinstance(loss, torch.Tensor) and isinstance(expected, torch.Tensor)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    one, other = gradient(model, loss), gradient(plain, expected)
    assert other.norm() > 1e-3
    assert (one - other).norm() / other.norm() < 1e-5  # norms and softmax compute in float32 whatever the weights are


@each_row("name", list(FAMILIES))
def test_each_family_has_the_layout_that_serves_it(name: str) -> None:
    found = make_family(name).family
    assert found.layout == ("tree" if name in TREES else "rows")
    assert (found.reason is None) == (name not in ROWS)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("gpt_oss", "its attention has sinks, which the kernels do not compute"),
        ("gemma2", "its scores have a cap, which the kernels do not compute"),
        ("qwen3_5_text", "its layers of type 'linear_attention' need the tokens of one row one after another"),
        ("qwen3", "its heads have 264 numbers; multiples of 8 up to 256 are computed"),
        ("deepseek_v3", "its queries have 24 numbers and its values 8, which have to be as many"),
    ],
)
def test_what_flash_attention_does_not_compute_is_refused_with_the_reason(name: str, why: str) -> None:
    with pytest.raises(
        ModelError, match=rf"astune.model.attention: got 'flash_attention_2', but {why}; expected 'auto'"
    ):
        make_family(name, "flash_attention_2", **UNFIT.get(name, {}))


def test_a_model_that_sees_what_comes_later_is_refused_with_the_name_of_its_layers() -> None:
    config = AutoConfig.for_model(
        "bert", vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4
    )
    model = AutoModelForCausalLM.from_config(config, attn_implementation=ATTENTION).eval()
    with pytest.raises(ModelError, match="cannot sample from BertLMHeadModel: BertLayer"):
        find_family(model)


def test_positions_that_turn_with_the_length_of_a_row_need_a_limit(tmp_path: Path) -> None:
    """Phi-3 and Phi-4-mini: the rotation of every token is another one beyond 128 tokens here."""
    factors = [1.0] * 4
    rope = {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "short_factor": factors,
        "long_factor": [2 * factor for factor in factors],
        "original_max_position_embeddings": 128,
    }
    tiny = make_family("phi3", rope_parameters=rope, original_max_position_embeddings=128)
    tiny.model.save_pretrained(tmp_path)
    with pytest.raises(ModelError, match=r"'longrope'.* set astune.model.max_model_len to 128"):
        load_model(ModelConfig(path=str(tmp_path), device="cpu"))
    assert load_model(ModelConfig(path=str(tmp_path), device="cpu", max_model_len=128)).context_length == 128


@pytest.mark.parametrize("name", ["qwen3_next", "mamba"])
@pytest.mark.fault(
    "Agents and the engine",
    "a model with a recurrent state fails in the middle of a batch",
    "the conversations of the others go on as if it had not",
)
async def test_a_state_that_was_half_way_through_an_error_is_made_anew(name: str) -> None:
    tiny = make_family(name)
    undisturbed = await conversations(tiny)
    calls = 0

    def fail_once(module: Any, arguments: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == 40:
            raise RuntimeError("the device hiccups")

    layer = next(m for m in tiny.model.modules() if isinstance(m, torch.nn.ModuleList))[-1]
    layer.register_forward_pre_hook(fail_once)
    disturbed = await conversations(tiny)
    assert calls > 40
    for (prompt, answer), (other_prompt, other) in zip(disturbed, undisturbed, strict=True):
        assert (prompt, answer.output_ids) == (other_prompt, other.output_ids)
        assert answer.logprobs == pytest.approx(other.logprobs, abs=1e-3)


async def test_equal_prompts_are_taken_in_once_by_a_model_with_a_state() -> None:
    tiny = make_family("qwen3_next")
    computed = 0

    def count(module: Any, arguments: Any, options: dict[str, Any]) -> None:
        nonlocal computed
        computed += options["input_ids"].numel()

    tiny.model.register_forward_pre_hook(count, with_kwargs=True)
    sampler = Sampler(tiny.model, slots=4, context_length=256, family=tiny.family)
    prompt = list(range(3, 43))
    await asyncio.gather(*(sampler.generate(prompt, Sampling(max_tokens=1, seed=n)) for n in range(4)))
    assert computed == 39 + 4


@each_row("name", ["llama4_text", "bloom", "mpt", "opt", "gpt2"])
def test_families_of_other_builds_load(name: str) -> None:
    """Heads that are not beside their trunk, positions that come from the mask, other names for sizes."""
    names = {"n_head": 4, "n_heads": 4, "n_layer": 2, "n_layers": 2, "n_embd": 32, "d_model": 32, "ffn_dim": 64}
    own = {"word_embed_proj_dim": 32, "num_local_experts": 4, "intermediate_size_mlp": 64, "head_dim": 8}
    expected = "tree" if name in ("opt", "gpt2") else "rows"
    assert make_family(name, **names, **own).family.layout == expected


@each_row(
    ("name", "rank"),
    [
        ("gemma2", None),
        ("gpt_oss", None),
        ("qwen3_next", None),
        ("qwen3_moe", 4),
        ("gpt_oss", 4),
        ("phi3", 4),
        ("qwen3_next", 4),
        ("mamba", 4),
    ],
)
async def test_a_family_is_read_trained_written_and_read_again(name: str, rank: int | None, tmp_path: Path) -> None:
    """All weights, and an adapter, with layers that are recomputed; what is written computes what was trained."""
    make_family(name).model.save_pretrained(tmp_path / "base")
    lora = LoraConfig(rank=rank, targets=("in_proj", "x_proj") if name == "mamba" else ())
    config = ModelConfig(path=str(tmp_path / "base"), device="cpu", gradient_checkpointing=True, lora=lora)
    samples = random_samples()

    def learner() -> LocalLearner:
        loaded = load_model(config)
        sampler = Sampler(loaded.sampling_model, slots=2, context_length=128, family=loaded.family)
        return LocalLearner(loaded, sampler, AlgorithmConfig(loss="reinforce"), TrainerConfig())

    first = learner()
    before = await first.logprobs(samples)
    update = await first.update(samples, 1e-2)
    after = await first.logprobs(samples)
    assert not update.skipped and update.metrics["grad_norm"] > 0
    gained = [sum(new) - sum(old) for old, new in zip(before, after, strict=True)]
    assert gained[2] > gained[0]  # the last of a group was rewarded, the first punished
    first.save(tmp_path / "saved")
    again = learner()
    again.load(tmp_path / "saved")
    assert await again.logprobs(samples) == after


def test_layers_that_can_have_no_adapter_are_named(tmp_path: Path) -> None:
    make_family("mamba").model.save_pretrained(tmp_path)
    with pytest.raises(ModelError, match=r"astune.model.lora.targets: .*'out_proj' is incompatible"):
        load_model(ModelConfig(path=str(tmp_path), device="cpu", lora=LoraConfig(rank=4)))

"""LoRA: against peft and plain models, alone and several over one base, saved and gone on with."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from astune.backbone.local.learning.batch import micro_batches
from astune.backbone.local.learning.forward import predict
from astune.backbone.local.learning.learner import LocalLearner
from astune.backbone.local.model.attention import ATTENTION
from astune.backbone.local.model.model import LoadedModel, load_model, read_weights
from astune.backbone.local.sampling.adapter_sampler import AdapterSampler
from astune.backbone.local.sampling.sampler import Sampler
from astune.backbone.lora.settings import target_names
from astune.config.schema import AlgorithmConfig, LoraConfig, ModelConfig, TrainerConfig
from astune.context_tracker.model_dir import resolve_model_dir
from astune.errors import MissingDependency, ModelError, PolicyError, RunFolderError
from astune.support.resources import tiny_model_dir
from astune.types import Generation, Sample, Sampling, Span, Timeline
from tests.backbone.local.conftest import make_model
from tests.rows import each_row

peft = pytest.importorskip("peft")
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")

RATE = 0.05
SYSTEM = list(range(20))
KINDS = pytest.mark.parametrize("kind", [{}, {"rslora": True}, {"dora": True}], ids=["lora", "rslora", "dora"])


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("base") / "model"
    make_model().save_pretrained(folder)
    (folder / "tokenizer.json").write_text("{}")
    return folder


def load(model_dir: Path, *names: str, dtype: str = "float32", **lora: Any) -> LoadedModel:
    config = ModelConfig(path=str(model_dir), device="cpu", dtype=dtype, lora=LoraConfig(rank=4, **lora))
    torch.manual_seed(0)
    return load_model(config, names) if names else load_model(config)


def sampler_over(loaded: LoadedModel, slots: int = 6) -> Sampler:
    return Sampler(loaded.sampling_model, slots=slots, context_length=256, adapters=loaded.adapters)


def learner_over(loaded: LoadedModel, sampler: Sampler | AdapterSampler) -> LocalLearner:
    return LocalLearner(loaded, sampler, AlgorithmConfig(), TrainerConfig(learning_rate=RATE))


def moved(loaded: LoadedModel, *names: str, seed: int = 1) -> None:
    """Adapters that do something: B of a new one is 0."""
    assert loaded.adapters is not None
    for number, name in enumerate(names or ("default",)):
        random = torch.Generator().manual_seed(seed + number)
        for parameter in loaded.adapters.parameters(name):
            parameter.data += 0.05 * torch.randn(parameter.shape, generator=random)


async def samples_of(policy: Sampler | AdapterSampler) -> list[Sample]:
    samples = []
    for advantage, prompt in ((1.0, [1, 2, 3]), (-1.0, [1, 2, 3, 4])):
        generation = await policy.generate(prompt, Sampling(max_tokens=6, seed=int(advantage) + 5))
        tokens = (*prompt, *generation.output_ids)
        line = Timeline("a", tokens, (Span(0, len(prompt), len(tokens), 0, 1.0, True, generation.logprobs),))
        samples.append(Sample(line, (advantage,), (1 / 12,), "t", f"e{advantage}"))
    return samples


def parameters(loaded: LoadedModel, name: str = "default") -> list[torch.Tensor]:
    assert loaded.adapters is not None
    return [parameter.detach().clone() for parameter in loaded.adapters.parameters(name)]


def equal(first: list[torch.Tensor], second: list[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def logits_of(model: Any, ids: list[int]) -> torch.Tensor:
    model.set_attn_implementation("sdpa")
    with torch.inference_mode():
        logits: torch.Tensor = model(torch.tensor([ids]), use_cache=False).logits[0]
    model.set_attn_implementation(ATTENTION)
    return logits.clone()


@KINDS
async def test_sampler_and_learner_compute_what_the_merged_model_does(model_dir: Path, kind: dict[str, bool]) -> None:
    loaded = load(model_dir, **kind)
    moved(loaded)
    samples = await samples_of(sampler_over(loaded))
    loaded.adapters.save(model_dir.parent / "adapter")
    merged = peft.PeftModel.from_pretrained(read_weights(model_dir), model_dir.parent / "adapter").merge_and_unload()
    for batch in micro_batches(samples, 1024, loaded.device):
        with torch.no_grad(), loaded.training():
            trained = iter(predict(loaded.model, batch).logprob.tolist())
        for number in batch.samples:
            (span,) = samples[number].timeline.spans
            ids = list(samples[number].timeline.token_ids)
            expected = torch.log_softmax(logits_of(merged, ids)[span.start - 1 : -1], -1)
            for place, sampled in enumerate(span.logprobs):
                logprob = expected[place, ids[span.start + place]].item()
                assert sampled == pytest.approx(logprob, abs=1e-4) and next(trained) == pytest.approx(logprob, abs=1e-4)


@KINDS
async def test_the_gradient_is_that_of_peft_in_a_plain_forward_pass(model_dir: Path, kind: dict[str, bool]) -> None:
    loaded = load(model_dir, **kind)
    moved(loaded)
    samples = await samples_of(sampler_over(loaded))
    loaded.adapters.save(model_dir.parent / "adapter")
    plain = peft.PeftModel.from_pretrained(read_weights(model_dir), model_dir.parent / "adapter", is_trainable=True)
    plain.base_model.model.set_attn_implementation("sdpa")
    loss = torch.zeros(())
    for sample in samples:
        (span,) = sample.timeline.spans
        ids = torch.tensor([list(sample.timeline.token_ids)])
        logprobs = torch.log_softmax(plain(ids).logits[0, span.start - 1 : -1], -1)
        ratio = (logprobs.gather(1, ids[0, span.start :, None])[:, 0] - torch.tensor(span.logprobs)).exp()
        loss = loss - (ratio * sample.advantages[0] / 12).sum()
    loss.backward()
    learner = learner_over(loaded, sampler_over(loaded))
    for batch in micro_batches(samples, 1024, loaded.device):
        with loaded.training():
            learner.objective(batch).loss.sum().backward()
    expected = [parameter.grad for parameter in plain.parameters() if parameter.requires_grad]
    found = [parameter.grad for parameter in loaded.trainable()]
    assert len(found) == len(expected) == (42 if kind.get("dora") else 28)
    for own, theirs in zip(found, expected, strict=True):
        assert own is not None and float(own.abs().max()) > 0
        torch.testing.assert_close(own, theirs, rtol=1e-3, atol=1e-5)


@KINDS
async def test_only_the_adapter_is_trained_and_sampled_at_once(model_dir: Path, kind: dict[str, bool]) -> None:
    loaded = load(model_dir, **kind)
    sampler = sampler_over(loaded)
    learner = learner_over(loaded, sampler)
    weights = {name: value.clone() for name, value in loaded.model.named_parameters() if not value.requires_grad}
    samples = await samples_of(sampler)
    first = await learner.update(samples, RATE)
    assert first.metrics["kl/sampler"] < 1e-8
    assert (await learner.update(samples, RATE)).metrics["loss"] < first.metrics["loss"]
    assert await learner.publish() == 1
    assert len(learner._optimizer.state_dict()["state"]) == len(loaded.trainable())
    assert all(torch.equal(value, weights[name]) for name, value in loaded.model.named_parameters() if name in weights)
    again = await samples_of(sampler)
    assert (await learner.update(again, RATE)).metrics["kl/sampler"] < 1e-8  # what is sampled is what is trained


@pytest.mark.parametrize("names", [("default",), ("a", "b")])
async def test_a_copy_to_sample_from_shares_the_base_and_changes_when_it_is_published(
    model_dir: Path, names: tuple[str, ...]
) -> None:
    own = load(model_dir, *names)
    moved(own, *names)
    loaded = own.with_copy()
    adapters, model = loaded.sampling_adapters, loaded.sampling_model
    assert loaded.adapters is not None and adapters is not None
    trained = dict(loaded.model.named_parameters())
    copied = {id(value) for name, value in model.named_parameters() if value is not trained[name]}
    assert copied == {id(value) for name in names for value in adapters.parameters(name)}
    assert not {*map(id, loaded.model.modules())} & {*map(id, model.modules())}

    sampler = Sampler(model, slots=6, context_length=256, adapters=adapters)

    async def answers(sampler: Sampler) -> list[Generation]:
        for name in names:
            sampler.forget(name)
        how = Sampling(max_tokens=6, seed=3)
        return await asyncio.gather(*(sampler.generate(SYSTEM, how, name) for name in names))

    before, part = await answers(sampler), AdapterSampler(sampler, names[0])
    learner = learner_over(loaded.of(names[0]), part)
    await learner.update(await samples_of(part), RATE)
    with loaded.training():  # it says of the other modules which adapter is meant
        assert await answers(sampler) == before
    await learner.publish()
    after = await answers(sampler)
    assert [each.policy_version for each in after] == [1, 0][: len(names)]
    assert after[0].logprobs != before[0].logprobs and after[1:] == before[1:]
    assert [each.logprobs for each in await answers(sampler_over(own))] == [each.logprobs for each in after]


async def test_without_the_adapter_the_model_is_the_base_bit_for_bit(model_dir: Path) -> None:
    base = load_model(ModelConfig(path=str(model_dir), device="cpu")).model
    for names in ((), ("a", "b")):
        loaded = load(model_dir, *names)
        moved(loaded, *names)
        with loaded.base_alone():
            alone = logits_of(loaded.model, SYSTEM)
        assert torch.equal(alone, logits_of(base, SYSTEM))
        with loaded.training():
            assert not torch.equal(alone, logits_of(loaded.model, SYSTEM))


async def test_bfloat16_has_one_copy_of_the_base_and_float32_adapters(model_dir: Path) -> None:
    loaded = load(model_dir, dtype="bfloat16")
    assert loaded.sampling_model is loaded.model
    assert {parameter.dtype for parameter in loaded.trainable()} == {torch.float32}
    frozen = {value.dtype for value in loaded.model.parameters() if not value.requires_grad}
    assert frozen == {torch.bfloat16}
    moved(loaded)
    sampler = sampler_over(loaded)
    learner = learner_over(loaded, sampler)
    update = await learner.update(await samples_of(sampler), RATE)
    assert 0 <= update.metrics["kl/sampler"] < 0.05


@pytest.mark.parametrize("base", ["nf4", "fp4"])
async def test_a_base_in_4_bits_stays_as_it_is(tmp_path: Path, base: str) -> None:
    pytest.importorskip("bitsandbytes")
    loaded = load(tiny_model_dir(), base=base)
    moved(loaded)
    sampler = sampler_over(loaded)
    learner = learner_over(loaded, sampler)
    samples = await samples_of(sampler)
    learner.save(tmp_path)  # bitsandbytes, asked for all tensors, would change its own on a CPU
    assert (await learner.update(samples, RATE)).metrics["kl/sampler"] < 1e-4
    learner.load(tmp_path)
    assert await samples_of(sampler) == samples


async def test_gradient_checkpointing_gives_the_same_gradient(model_dir: Path) -> None:
    figures = []
    for checkpointing in (False, True):
        torch.manual_seed(0)
        config = ModelConfig(
            path=str(model_dir), device="cpu", gradient_checkpointing=checkpointing, lora=LoraConfig(rank=4)
        )
        loaded = load_model(config, ("a", "b")).of("b")
        moved(loaded, "a", "b")
        sampler = AdapterSampler(sampler_over(loaded), "b")
        figures.append((await learner_over(loaded, sampler).update(await samples_of(sampler), RATE)).metrics)
    assert figures[0] == pytest.approx(figures[1])


# ----------------------------------------------------------------------------------------------------- checkpoints


@pytest.mark.fault(
    "Runs and resuming", "a run that trains an adapter is resumed", "adapter and optimizer go on bit for bit"
)
@KINDS
async def test_a_saved_adapter_goes_on_exactly_where_it_stopped(
    model_dir: Path, tmp_path: Path, kind: dict[str, bool]
) -> None:
    loaded = load(model_dir, **kind)
    sampler = sampler_over(loaded)
    learner = learner_over(loaded, sampler)
    samples = await samples_of(sampler)
    await learner.update(samples, RATE)
    await learner.publish()
    learner.save(tmp_path)
    other = load(model_dir, **kind)
    moved(other)
    restored = learner_over(other, sampler_over(other))
    restored.load(tmp_path)
    assert (restored.policy_version, restored.updates) == (1, 1)
    assert await restored.update(samples, RATE) == await learner.update(samples, RATE)
    assert equal(parameters(other), parameters(loaded))
    assert {path.name for path in tmp_path.iterdir()} == {
        "adapter_config.json",
        "adapter_model.safetensors",
        "tokenizer.json",
        "trainer_state.pt",
    }


@KINDS
def test_peft_reads_what_was_saved(model_dir: Path, tmp_path: Path, kind: dict[str, bool]) -> None:
    loaded = load(model_dir, **kind)
    moved(loaded)
    loaded.adapters.save(tmp_path)
    theirs = peft.AutoPeftModelForCausalLM.from_pretrained(tmp_path)  # finds the base by itself
    assert torch.allclose(logits_of(theirs.base_model.model, SYSTEM), logits_of(loaded.model, SYSTEM), atol=1e-5)


@pytest.mark.fault(
    "Records and checkpoints",
    "a checkpoint's adapter is of another shape or over another base, or it holds all weights",
    "it is refused, and what differs is named",
)
@each_row(
    ("change", "message"),
    [
        ({"rank": 8}, r"astune\.model\.lora\.rank is 8, and was 4"),
        ({"alpha": 16}, r"lora\.alpha is 16, and was 32"),
        ({"targets": ("q_proj",)}, r"lora\.targets is \['q_proj'\], and was \['down_proj'"),
        ({"dora": True}, r"lora\.dora is True, and was False"),
        ("base", "was trained over other weights than those of"),
        ("full", r"holds no adapter: it has no adapter_config\.json"),
        ("damaged", "cannot be gone on from"),
    ],
)
def test_a_checkpoint_of_another_adapter_is_refused(
    model_dir: Path, tmp_path: Path, change: dict[str, Any] | str, message: str
) -> None:
    loaded = load(model_dir)
    learner_over(loaded, sampler_over(loaded)).save(tmp_path)
    folder = model_dir
    if change == "base":
        folder = tmp_path / "other"
        make_model(seed=1).save_pretrained(folder)
    elif change == "full":
        (tmp_path / "adapter_config.json").unlink()
    elif change == "damaged":
        weights = tmp_path / "adapter_model.safetensors"
        weights.write_bytes(weights.read_bytes()[:-100])
    settings = {"rank": 4, **(change if isinstance(change, dict) else {})}
    other = load_model(ModelConfig(path=str(folder), device="cpu", lora=LoraConfig(**settings)))
    with pytest.raises(RunFolderError, match=message):
        learner_over(other, sampler_over(other)).load(tmp_path)


@KINDS
async def test_a_run_may_begin_with_an_adapter_which_is_its_reference_then(
    model_dir: Path, tmp_path: Path, kind: dict[str, Any]
) -> None:
    first = load(model_dir, **kind)
    moved(first)
    learner_over(first, sampler_over(first)).save(tmp_path / "first")
    samples = await samples_of(sampler_over(first))
    wanted = [list(line) for line in await learner_over(first, sampler_over(first)).logprobs(samples)]

    def again() -> LocalLearner:
        loaded = load(tmp_path / "first", **kind)
        assert loaded.directory == model_dir and equal(parameters(loaded), parameters(first))
        held = AlgorithmConfig.model_validate({"kl_beta": 0.5})
        return LocalLearner(loaded, sampler_over(loaded), held, TrainerConfig())

    learner, other = again(), again()
    update = await learner.update(samples, RATE)
    assert update.metrics["kl/reference"] == 0
    learner.save(tmp_path / "second")
    other.load(tmp_path / "second")
    for resumed in (learner, other):
        assert [list(line) for line in await resumed.logprobs(samples)] != wanted
        assert [list(line) for line in await resumed.logprobs(samples, reference=True)] == wanted
    assert await learner.update(samples, RATE) == await other.update(samples, RATE)


def test_an_adapter_is_no_model(model_dir: Path, tmp_path: Path) -> None:
    loaded = load(model_dir)
    learner_over(loaded, sampler_over(loaded)).save(tmp_path)
    with pytest.raises(ModelError, match=r"holds an adapter, and astune\.model\.lora\.rank is not set"):
        load_model(ModelConfig(path=str(tmp_path), device="cpu"))
    with pytest.raises(ModelError, match="holds an adapter and no model; astune export --merged"):
        resolve_model_dir(str(tmp_path))


# --------------------------------------------------------------------------------------- several adapters, one base


async def talk(policy: Sampler | AdapterSampler, number: int) -> list[Generation]:
    """Two turns; the prompts of all begin alike, so a cache that shared across adapters would give wrong answers."""
    prompt, answers = [*SYSTEM, number % 3], []
    for turn in range(2):
        generation = await policy.generate(prompt, Sampling(max_tokens=5, seed=10 * number + turn))
        answers.append(generation)
        prompt = [*prompt, *generation.output_ids, 50, number]
    return answers


@each_row(
    "shapes",
    [
        {"a": LoraConfig(rank=4), "b": LoraConfig(rank=4, alpha=4)},
        {"a": LoraConfig(rank=4), "idle": LoraConfig(rank=4), "b": LoraConfig(rank=4)},
        {"a": LoraConfig(rank=4), "b": LoraConfig(rank=2)},
        {"a": LoraConfig(rank=4), "b": LoraConfig(rank=4, targets=("q_proj", "down_proj"))},
    ],
)
async def test_two_adapters_in_one_batch_answer_as_each_does_alone(
    model_dir: Path, shapes: dict[str, LoraConfig]
) -> None:
    config = ModelConfig(path=str(model_dir), device="cpu", dtype="float32", lora=LoraConfig(rank=4))
    loaded = load_model(config, shapes)
    moved(loaded, *shapes)
    rows: list[int] = []
    loaded.model.register_forward_pre_hook(lambda *call: rows.append(len(call[2]["input_ids"])), with_kwargs=True)
    together = sampler_over(loaded)
    both = await asyncio.gather(*(talk(AdapterSampler(together, "aab"[n % 3]), n) for n in range(10)))
    assert max(rows) == 6  # all slots advance in one pass
    for name, numbers in (("a", (0, 9)), ("b", (2, 8))):
        alone = AdapterSampler(sampler_over(loaded), name)
        for number in numbers:
            for own, beside in zip(await talk(alone, number), both[number], strict=True):
                assert own.output_ids == beside.output_ids
                assert own.logprobs == pytest.approx(beside.logprobs, abs=1e-5)


async def test_idle_rows_of_another_adapter_are_not_computed_with_it(model_dir: Path) -> None:
    loaded = load(model_dir, "a", "b")
    sampler = sampler_over(loaded, slots=2)
    await sampler.generate([*SYSTEM, 1], Sampling(max_tokens=2, seed=1), "b")
    calls: list[str] = []
    for path, module in loaded.model.named_modules():
        if path.endswith(("lora_A.a", "lora_A.b")):
            module.register_forward_hook(lambda *call, name=path[-1]: calls.append(name))
    await sampler.generate([*SYSTEM, 2], Sampling(max_tokens=4, seed=1), "a")  # beside the slot that "b" left
    assert set(calls) == {"a"} and sampler._cache.lengths.all()


async def test_an_adapter_of_several_computes_what_it_does_as_the_only_one(model_dir: Path, tmp_path: Path) -> None:
    several = load(model_dir, "a", "b")
    moved(several, "a", "b")
    several.adapters.save(tmp_path, "b")
    sole = load(model_dir)
    sole.load_weights(tmp_path)
    assert equal(parameters(sole), parameters(several, "b"))
    own, theirs = sampler_over(sole), AdapterSampler(sampler_over(several), "b")
    for first, second in zip(await talk(own, 1), await talk(theirs, 1), strict=True):
        assert first.output_ids == second.output_ids
        assert first.logprobs == pytest.approx(second.logprobs, abs=1e-5)


async def test_training_one_adapter_leaves_the_other_as_it_was_while_it_answers(model_dir: Path) -> None:
    loaded = load(model_dir, "a", "b")
    moved(loaded, "a", "b")
    sampler = sampler_over(loaded)
    a, b = AdapterSampler(sampler, "a"), AdapterSampler(sampler, "b")
    learner = learner_over(loaded.of("a"), a)
    expected = [await talk(b, number) for number in range(3)]
    samples = await samples_of(a)
    before = {name: parameters(loaded, name) for name in "ab"}
    answering = [asyncio.ensure_future(talk(b, number)) for number in range(3)]
    await asyncio.sleep(0)
    await learner.update(samples, RATE)
    assert await learner.publish() == 1
    assert (a.policy_version, b.policy_version) == (1, 0)
    answers = await asyncio.gather(*answering)
    assert [[g.output_ids for g in calls] for calls in answers] == [[g.output_ids for g in calls] for calls in expected]
    assert equal(parameters(loaded, "b"), before["b"]) and not equal(parameters(loaded, "a"), before["a"])
    pending = asyncio.ensure_future(talk(a, 0))
    await asyncio.sleep(0)
    with pytest.raises(PolicyError, match="while answers were being sampled"):
        a.publish()
    assert (await pending)[0].policy_version == 1


async def test_the_state_of_two_adapters_goes_on_bit_for_bit(model_dir: Path, tmp_path: Path) -> None:
    async def step(learners: dict[str, LocalLearner], policies: dict[str, AdapterSampler]) -> list[Generation]:
        for name in "ab":
            await learners[name].update(await samples_of(policies[name]), RATE if name == "a" else RATE / 3)
        for name in "ab":
            await learners[name].publish()
        answers = await asyncio.gather(*(talk(policies["ab"[number % 2]], number) for number in range(4)))
        return [generation for calls in answers for generation in calls]

    def fresh() -> tuple[LoadedModel, dict[str, LocalLearner], dict[str, AdapterSampler]]:
        loaded = load(model_dir, "a", "b")
        sampler = sampler_over(loaded)
        policies = {name: AdapterSampler(sampler, name) for name in "ab"}
        return loaded, {name: learner_over(loaded.of(name), policies[name]) for name in "ab"}, policies

    loaded, learners, policies = fresh()
    await step(learners, policies)
    for name in "ab":
        learners[name].save(tmp_path / name)
        policies[name].forget()
    expected = await step(learners, policies)
    again, restored, others = fresh()
    for name in "ab":
        restored[name].load(tmp_path / name)
    assert await step(restored, others) == expected
    assert all(equal(parameters(again, name), parameters(loaded, name)) for name in "ab")
    assert not equal(parameters(again, "a"), parameters(again, "b"))


# ---------------------------------------------------------------------------------------------------------- errors


@each_row(
    ("lora", "names", "message"),
    [
        ({"targets": ("q_prj",)}, (), r"no linear layer of the model is called 'q_prj'\. Did you mean 'q_proj'\?"),
        ({"targets": ("lm_head",)}, (), r"targets: 'lm_head' is the model's head.*below it\. There are: down_proj"),
        ({"targets": ("embed_tokens",)}, (), r"'embed_tokens' is the model's embedding and no linear layer"),
        ({"targets": ("norm",)}, (), r"'norm' is no linear layer of the model but of type .*Norm: it gets no adapter"),
        (
            {"targets": ("self_attn",)},
            (),
            "'self_attn' is a part .*: name those, k_proj, o_proj, q_proj, v_proj. There",
        ),
        ({"targets": ("layers.0",)}, (), "'layers.0' is a part .*: name those, down_proj, gate_proj, k_proj"),
        ({"dora": True}, ("a", "b"), "DoRA cannot tell the rows of a batch apart"),
    ],
)
def test_adapters_that_cannot_be_made_are_explained(
    model_dir: Path, lora: dict[str, Any], names: tuple[str, ...], message: str
) -> None:
    with pytest.raises(ModelError, match=message):
        load(model_dir, *names, **lora)


@pytest.mark.parametrize("tied", [True, False])
def test_of_head_and_embedding_it_is_said_whether_they_share_their_weight(tied: bool) -> None:
    config = LlamaConfig(hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1, vocab_size=8)
    config.tie_word_embeddings = tied
    model = LlamaForCausalLM(config)
    for target, other in (("lm_head", "embedding"), ("embed_tokens", "head")):
        with pytest.raises(ModelError) as caught:
            target_names(model, [target])
        assert (f"its weight is that of the {other} as well" in str(caught.value)) == tied


async def test_an_adapter_that_is_not_there_is_an_error(model_dir: Path) -> None:
    sampler = sampler_over(load(model_dir, "a", "b"))
    with pytest.raises(PolicyError, match="there is no adapter 'c'; there are: a, b"):
        await sampler.generate([1, 2], Sampling(max_tokens=1), "c")


@pytest.mark.fault(
    "Input files and settings",
    "astune.model.lora needs a package that is not installed",
    "an error before the run begins that names the extra",
)
@pytest.mark.parametrize(
    ("package", "lora", "message"),
    [("peft", {}, r"astune\[lora\]"), ("bitsandbytes", {"base": "nf4"}, "'nf4' needs bitsandbytes: pip install")],
)
def test_a_package_that_is_missing_is_named(
    model_dir: Path, monkeypatch: pytest.MonkeyPatch, package: str, lora: dict[str, Any], message: str
) -> None:
    monkeypatch.setitem(__import__("sys").modules, package, None)
    with pytest.raises(MissingDependency, match=message):
        load(model_dir, **lora)


def test_named_targets_get_adapters_and_others_none(model_dir: Path) -> None:
    loaded = load(model_dir, targets=("q_proj", "layers.1.mlp.up_proj"))
    names = [name for name, value in loaded.model.named_parameters() if value.requires_grad and "lora_A" in name]
    assert names == [
        "model.layers.0.self_attn.q_proj.lora_A.default.weight",
        "model.layers.1.self_attn.q_proj.lora_A.default.weight",
        "model.layers.1.mlp.up_proj.lora_A.default.weight",
    ]

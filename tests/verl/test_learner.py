"""verl's FSDP2 engine on a CPU, in this process, against the backbone `local`: equal samples, equal steps."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from tensordict import TensorDict

from astune.algorithm.method import method_of
from astune.backbone.local.export import export_checkpoint
from astune.backbone.local.learning.learner import LocalLearner
from astune.backbone.local.model.model import LoadedModel, load_model
from astune.backbone.local.sampling.sampler import Sampler
from astune.backbone.losses.policy import LOSSES
from astune.backbone.verl.trainer.learner import VerlLearner
from astune.backbone.verl.trainer.rows import batch_of, rows_of, share_out
from astune.config.schema import AlgorithmConfig, ModelConfig, TrainerConfig
from astune.context_tracker.prompt.chat_format import ChatFormat
from astune.errors import RunFolderError, TrainingError
from astune.support.concurrency import finish
from astune.support.resources import tiny_model_dir
from astune.training.engine import Engine
from astune.training.rollout_setup import NoPolicy
from astune.training.start import run_training
from astune.types import Sample, Span, Timeline
from tests.backbone.golden_samples import Term, assert_trained, replayed, steps
from tests.backbone.local.conftest import VOCABULARY, make_model
from tests.backbone.local.test_prefix_tree import branching_samples
from tests.verl.one_process import OneProcess

RATE = 0.003
TRAINER = TrainerConfig(micro_batch_tokens=300, max_grad_norm=0.02)
KL = AlgorithmConfig(kl_beta=0.1)


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its configuration asks for dropout, with which neither backbone trains."""
    folder = tmp_path_factory.mktemp("verl") / "model"
    model = make_model()
    model.config.attention_dropout = 0.5
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory, model_dir: Path) -> Iterator[OneProcess]:
    """With a reference, as `kl_beta` asks for one."""
    yield OneProcess(tmp_path_factory.mktemp("worker"), model_dir, KL)
    torch.distributed.destroy_process_group()


def local_learner(model_dir: Path, config: AlgorithmConfig) -> tuple[LocalLearner, LoadedModel]:
    loaded = load_model(ModelConfig(path=str(model_dir), device="cpu"))
    sampler = Sampler(loaded.sampling_model, slots=1, context_length=400)
    return LocalLearner(loaded, sampler, config, TRAINER), loaded


def verl_learner(workers: OneProcess, config: AlgorithmConfig) -> VerlLearner:
    workers.worker.set_loss(config)
    return VerlLearner(workers, lambda version: {}, config, TRAINER)


def apart(one: Mapping[str, torch.Tensor], two: Mapping[str, torch.Tensor]) -> float:
    """The largest difference between tensors of one name, beside the largest number of all."""
    assert one.keys() == two.keys()
    largest = max(float(value.abs().max()) for value in one.values())
    difference = max(float((one[name] - two[name]).abs().max()) for name in one)
    return difference / largest if largest else difference  # a batch may have no gradient at all


def weights_of(loaded: LoadedModel) -> dict[str, torch.Tensor]:
    return {name: value.detach() for name, value in loaded.model.named_parameters()}


@pytest.mark.parametrize(
    "config",
    [
        AlgorithmConfig(),
        AlgorithmConfig(kl_beta=0.1, entropy_bonus=0.01, loss="cispo"),
        AlgorithmConfig(kl_beta=0.1, kl_in="reward", kl_estimator="k1", loss="gspo"),
    ],
    ids=lambda config: config.loss,
)
async def test_three_updates_from_equal_samples_give_equal_weights(
    workers: OneProcess, model_dir: Path, config: AlgorithmConfig
) -> None:
    local, loaded = local_learner(model_dir, config)
    verl = verl_learner(workers, config)
    for number in range(3):
        one = await local.update(branching_samples(), RATE)
        two = await verl.update(branching_samples(), RATE)
        assert one.metrics.keys() == two.metrics.keys()
        figures = set(one.metrics) - {"tokens/packed", "tokens/flattened_per_packed"}  # trees share, rows do not
        for name in figures:
            assert two.metrics[name] == pytest.approx(one.metrics[name], rel=2e-4, abs=1e-6), (number, name)
        assert two.metrics["loss"] == pytest.approx(one.metrics["loss"], rel=1e-4)
        assert one.metrics["grad_norm"] > TRAINER.max_grad_norm  # so that clipping is active
        assert apart(weights_of(loaded), workers.weights()) < 5e-4
    assert one.metrics["clip_fraction"] > 0.01
    assert (verl.updates, verl.changes, local.updates) == (3, 3, 3)


def preferences(method: str) -> list[Sample]:
    """Answers as `compared` makes them of examples: six pairs for "dpo", twelve with a thumb for "kto". Of two the
    first is good."""
    made = []
    for number, sample in enumerate(branching_samples()[:12]):
        good, example = number % 2 == 0, number // 2 if method == "dpo" else number
        made.append(
            replace(
                sample, advantages=(1.0, 1.0) if good else (-1.0, -1.0), weights=(1.0, 1.0), episode_id=f"{example}"
            )
        )
    return made


@pytest.mark.parametrize(
    "values",
    [
        {"method": "dpo"},
        {"method": "dpo", "preference_loss": "ipo"},
        {"method": "dpo", "preference_loss": "simpo", "preference_margin": 0.5},
        {"method": "kto"},
        {"method": "sft"},
        {"method": "rft"},
    ],
    ids=lambda values: "-".join(f"{value}" for value in values.values()),
)
async def test_methods_that_learn_from_examples_take_the_updates_of_local(
    workers: OneProcess, model_dir: Path, values: dict[str, Any]
) -> None:
    config = AlgorithmConfig.model_validate(values)
    local, loaded = local_learner(model_dir, config)
    verl = verl_learner(workers, config)
    for number in range(2):
        figures = []
        for learner in (local, verl):
            method = method_of(config)
            given = preferences(config.method) if method.compares else branching_samples()
            samples, told = await method.before_update(learner, given)
            figures.append({**(await learner.update(samples, RATE)).metrics, **told})
        one, two = figures
        assert one.keys() == two.keys()
        for name in set(one) - {"tokens/packed", "tokens/flattened_per_packed"}:
            assert two[name] == pytest.approx(one[name], rel=2e-4, abs=1e-5), (number, name)
        assert one["grad_norm"] > TRAINER.max_grad_norm
        assert apart(weights_of(loaded), workers.weights()) < 5e-4


def local_gradients(model_dir: Path, config: AlgorithmConfig, samples: list[Sample]) -> dict[str, torch.Tensor]:
    local, loaded = local_learner(model_dir, config)
    for batch in local.batches(samples):
        with loaded.training():
            local.objective(batch).loss.sum().backward()  # type: ignore[no-untyped-call]
    return {name: value.grad for name, value in loaded.model.named_parameters() if value.grad is not None}


def verl_gradients(
    workers: OneProcess, config: AlgorithmConfig, samples: list[Sample], ranks: int = 1
) -> dict[str, torch.Tensor]:
    """`ranks`: as if shared out over so many, all of them played by this one."""
    workers.worker.set_loss(config)
    workers.gradient(batch_of(share_out(rows_of(samples, whole=False), ranks), TRAINER.micro_batch_tokens))
    return workers.gradients()


MORE: dict[str, list[dict[str, Any]]] = {
    "ppo_clip": [{"clip_dual": 1.5}],
    "minirl": [{"strict_in_bound": True}, {"out_of_date_decay": 0.5, "importance_weight_cap_ratio": 1.0}],
    "opmd": [{"importance": "truncate"}],
    "reinforce": [{"importance": "mask", "importance_cap": 1.5}],
}
EACH = [{"loss": loss, **more} for loss in LOSSES for more in [{}, *MORE.get(loss, [])]]


def test_a_padding_token_within_a_text_is_learned_as_on_local(workers: OneProcess, model_dir: Path) -> None:
    """verl takes the tokenizer's for the model's, and transformers learns nothing for a model's own."""
    line = Timeline("a", [0, 5], (Span(0, 1, 2, 0, 1.0, True, [-1.0]),))
    samples = [Sample(line, (1.0,), (0.2,), "t", "e")]
    one = local_gradients(model_dir, AlgorithmConfig(), samples)
    assert bool(one["model.embed_tokens.weight"][0].any())
    assert apart(one, verl_gradients(workers, AlgorithmConfig(), samples)) < 5e-4


def test_an_entropy_that_only_is_told_keeps_nothing_for_a_gradient(workers: OneProcess) -> None:
    logits = torch.randn(3, VOCABULARY, requires_grad=True)
    entropy = workers.worker.actor.engine.compute_entropy_from_logits(logits)
    assert not entropy.requires_grad
    chances = torch.softmax(logits.detach(), -1)
    assert torch.allclose(entropy, -(chances * chances.log()).sum(-1), atol=1e-5)


@pytest.mark.parametrize("values", [*EACH, {"entropy_bonus": 0.1}, {"method": "sft"}], ids=str)
def test_every_loss_has_the_gradient_that_it_has_on_local(
    workers: OneProcess, model_dir: Path, values: dict[str, Any]
) -> None:
    config = AlgorithmConfig.model_validate(values)
    samples = branching_samples()
    one, two = local_gradients(model_dir, config, samples), verl_gradients(workers, config, samples)
    assert max(float(value.abs().max()) for value in one.values()) > 1e-4
    assert apart(one, two) < 5e-4


def test_rows_that_fill_up_and_imitated_ones_between_the_others_change_nothing(
    workers: OneProcess, model_dir: Path
) -> None:
    samples = [replace(each, imitated=number % 3 == 0) for number, each in enumerate(branching_samples())]
    config = AlgorithmConfig(loss="cispo")
    expected = local_gradients(model_dir, config, samples)
    for ranks in (1, 7):
        assert apart(expected, verl_gradients(workers, config, samples, ranks)) < 5e-4


@st.composite
def random_samples(draw: st.DrawFn) -> list[Sample]:
    """Rows of one to three spans, some without weight, at one temperature in each row."""
    samples = []
    tokens = st.integers(0, VOCABULARY - 1)
    for number in range(draw(st.integers(1, 5))):
        ids, spans = draw(st.lists(tokens, min_size=1, max_size=9)), []
        heat = draw(st.sampled_from([1.0, 0.7]))
        for turn in range(draw(st.integers(1, 3))):
            length = draw(st.integers(1, 6))
            logprobs = draw(st.lists(st.floats(-4, -0.01), min_size=length, max_size=length))
            spans.append(Span(turn, len(ids), len(ids) + length, draw(st.integers(-2, 0)), heat, True, logprobs))
            ids += draw(st.lists(tokens, min_size=length, max_size=length + 4))
        weights = [draw(st.sampled_from([0.0, 0.1, 0.3])) for _ in spans]
        weights[draw(st.integers(0, len(spans) - 1))] = 0.2
        advantages = [draw(st.floats(-2, 2)) for _ in spans]
        line = Timeline("a", ids, tuple(spans))
        samples.append(Sample(line, tuple(advantages), tuple(weights), "t", f"e{number}"))
    return samples


@given(random_samples(), st.sampled_from(EACH), st.integers(1, 4))
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_samples_have_the_gradient_that_they_have_on_local(
    begun: OneProcess, model_dir: Path, samples: list[Sample], values: dict[str, Any], ranks: int
) -> None:
    begun.go_back()
    config = AlgorithmConfig.model_validate(values)
    one, two = local_gradients(model_dir, config, samples), verl_gradients(begun, config, samples, ranks)
    if any(bool(value.any()) for value in one.values()):
        assert apart(one, two) < 1e-3
    else:
        assert not any(bool(value.any()) for value in two.values())


class Looking:
    """Three ranks that look at what they get."""

    ranks = 3
    sharing = 1

    def __init__(self) -> None:
        self.given: list[Term] = []

    def gradient(self, batch: TensorDict) -> dict[str, float]:
        columns = [batch[name].unbind() for name in ("input_ids", "loss_mask", "sampled", "advantage", "weight")]
        for ids, mask, sampled, advantage, weight in zip(*columns, strict=True):
            for place in mask.nonzero().flatten().tolist():
                credit = float(advantage[place] * weight[place])
                self.given.append(Term(tuple(ids[:place].tolist()), int(ids[place]), float(sampled[place]), credit))
        return {"loss": 0.0}

    def step(self, learning_rate: float) -> float:
        return 0.0

    def save(self, folder: Path) -> None: ...


@pytest.mark.parametrize("step", steps())
def test_the_rows_of_the_golden_episodes_are_the_golden_samples(
    step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on every backbone: tests/backbone/golden_samples.py."""
    workers: Any = Looking()
    loaded = replayed(tmp_path, monkeypatch, step, backbone="verl")
    own = loaded.config.astune
    learner = VerlLearner(workers, lambda version: {}, own.algorithm, own.trainer)
    engine = Engine(NoPolicy(8192), learner, ChatFormat.load(tiny_model_dir()))
    assert run_training(loaded, lambda config: engine).status == "completed"
    assert_trained(workers.given, step)


async def test_logprobs_are_those_of_local_under_the_new_weights_and_under_the_first(
    workers: OneProcess, model_dir: Path
) -> None:
    local, _ = local_learner(model_dir, KL)
    verl = verl_learner(workers, KL)
    samples = branching_samples()
    first = await verl.logprobs(samples)
    for learner in (local, verl):
        await learner.update(samples, RATE)
    for reference in (False, True):
        one, two = await local.logprobs(samples, reference=reference), await verl.logprobs(samples, reference=reference)
        assert [list(row) for row in two] == [pytest.approx(list(row), abs=2e-4) for row in one]
    assert [list(row) for row in two] == [pytest.approx(list(row), abs=1e-5) for row in first]
    new = await verl.logprobs(samples)
    assert max(abs(a - b) for one, two in zip(new, first, strict=True) for a, b in zip(one, two, strict=True)) > 1e-3


async def test_weights_count_as_changed_once_a_step_begins(
    workers: OneProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a run saves when a worker dies is of weights that are known."""

    def dies(learning_rate: float) -> float:
        raise RuntimeError("a rank is gone")

    verl = verl_learner(workers, AlgorithmConfig())
    monkeypatch.setattr(workers, "step", dies)
    with pytest.raises(RuntimeError, match="a rank is gone"):
        await verl.update(branching_samples(), RATE)
    assert verl.changes == 1


async def test_what_is_loaded_is_handed_to_the_servers(workers: OneProcess, tmp_path: Path) -> None:
    handed_over: list[int] = []

    def hand_over(version: int) -> dict[str, float]:
        handed_over.append(version)
        return {}

    learner = VerlLearner(workers, hand_over, AlgorithmConfig(), TRAINER)
    learner.save(tmp_path)
    learner.load(tmp_path)
    assert handed_over == [0]


async def test_a_checkpoint_is_a_model_folder_in_full_precision(
    workers: OneProcess, model_dir: Path, tmp_path: Path
) -> None:
    verl = verl_learner(workers, AlgorithmConfig())
    await verl.update(branching_samples(), RATE)
    verl.save(tmp_path)
    loaded = load_model(ModelConfig(path=str(tmp_path), device="cpu"))
    assert apart(workers.weights(), weights_of(loaded)) == 0
    assert export_checkpoint(tmp_path, tmp_path / "out", merged=False, dtype="bfloat16") == "model"
    assert {path.name for path in (tmp_path / "out").iterdir()} >= {"config.json", "model.safetensors"}
    exported = load_file(tmp_path / "out" / "model.safetensors")
    assert all(torch.equal(exported[name], value.bfloat16()) for name, value in workers.weights().items())


async def test_saving_before_the_first_update_changes_nothing(workers: OneProcess, tmp_path: Path) -> None:
    verl = verl_learner(workers, AlgorithmConfig())
    await verl.update(branching_samples(), RATE)
    expected = workers.weights()
    for again in ("saved", "loaded"):
        workers.go_back()
        if again == "saved":
            verl.save(tmp_path)
        else:
            verl.load(tmp_path)
        await verl.update(branching_samples(), RATE)
        assert apart(expected, workers.weights()) == 0, again


@pytest.mark.fault("Runs and resuming", "a file of verl's newest checkpoint is damaged", "resuming names the folder")
async def test_a_broken_checkpoint_is_named(workers: OneProcess, tmp_path: Path) -> None:
    verl = verl_learner(workers, AlgorithmConfig())
    await verl.update(branching_samples(), RATE)
    verl.save(tmp_path)
    (shard,) = (tmp_path / "optimizer").glob("*.distcp")
    for file, said in (
        (shard, "OSError: .*optimizer does not load"),
        (tmp_path / "model.safetensors", "OSError: the weights in .* do not load"),
        (tmp_path / "trainer_state.json", "cannot be gone on from: JSONDecodeError"),
    ):
        whole = file.read_bytes()
        file.write_bytes(whole[: len(whole) // 2])
        with pytest.raises(RunFolderError, match=said):
            verl.load(tmp_path)
        file.write_bytes(whole)
    verl.load(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(RunFolderError, match="cannot be gone on from: OSError"):
        verl.load(tmp_path)


async def test_who_is_told_to_stop_in_an_update_ends_after_its_step() -> None:
    began, may_end = threading.Event(), threading.Event()
    done: list[str] = []

    def update() -> str:
        began.set()
        may_end.wait()
        return "updated"

    async def step() -> None:
        done.append(await finish(update))
        done.append(await finish(lambda: "published"))
        done.append("counted")
        await asyncio.Event().wait()  # as the next step's episodes do

    running = asyncio.ensure_future(step())
    await asyncio.to_thread(began.wait)
    running.cancel()
    await asyncio.sleep(0)
    assert not running.done()
    may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert done == ["updated", "published", "counted"]


async def test_who_is_told_to_stop_in_an_update_that_fails_is_told_why() -> None:
    began, may_end = threading.Event(), threading.Event()

    def update() -> None:
        began.set()
        may_end.wait()
        raise TrainingError("training worker 1 died")

    running = asyncio.ensure_future(finish(update))
    await asyncio.to_thread(began.wait)
    running.cancel()
    await asyncio.sleep(0)
    may_end.set()
    with pytest.raises(TrainingError, match="training worker 1 died"):
        await running

"""LoRA on verl's FSDP2 engine on a CPU, in this process, against the backbone `local`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from astune.backbone.local.export import export_checkpoint
from astune.backbone.local.learning.learner import LocalLearner
from astune.backbone.local.model.adapters import merge
from astune.backbone.local.model.model import LoadedModel, load_model, read_weights
from astune.backbone.local.sampling.sampler import Sampler
from astune.backbone.policies.compared import whole_row
from astune.backbone.verl.servers.cpu_server import CpuServer
from astune.backbone.verl.trainer.adapter import _base
from astune.config.schema import AlgorithmConfig, LoraConfig, ModelConfig
from astune.errors import RunFolderError
from astune.support.resources import tiny_model_dir
from astune.types import Sampling
from tests.backbone.local.conftest import make_model
from tests.backbone.local.test_prefix_tree import branching_samples
from tests.verl.one_process import OneProcess
from tests.verl.test_learner import TRAINER, apart, verl_learner

pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")
RATE = 0.02
KL = AlgorithmConfig(kl_beta=0.1, entropy_bonus=0.01)
LORA = LoraConfig(rank=4, alpha=16)
SEED = 7
SETTINGS = ("astune.model.lora={rank: 4, alpha: 16}", f"astune.seed={SEED}")


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory, model_dir: Path) -> Iterator[OneProcess]:
    yield OneProcess(tmp_path_factory.mktemp("worker"), model_dir, KL, more=SETTINGS)
    torch.distributed.destroy_process_group()


def local_learner(model_dir: Path, path: Path | None = None) -> tuple[LocalLearner, LoadedModel]:
    torch.manual_seed(SEED)
    loaded = load_model(ModelConfig(path=str(path or model_dir), device="cpu", lora=LORA))
    sampler = Sampler(loaded.sampling_model, slots=1, context_length=400, adapters=loaded.adapters)
    return LocalLearner(loaded, sampler, KL, TRAINER), loaded


def adapter_of(loaded: LoadedModel) -> dict[str, torch.Tensor]:
    assert loaded.adapters is not None
    return {name: value.clone() for name, value in loaded.adapters._tensors("default").items()}


async def test_three_updates_from_equal_samples_give_equal_adapters(workers: OneProcess, model_dir: Path) -> None:
    """From the same seed, with a reference, which is the base alone."""
    local, loaded = local_learner(model_dir)
    verl = verl_learner(workers, KL)
    assert apart(adapter_of(loaded), workers.weights()) == 0
    for number in range(3):
        one = await local.update(branching_samples(), RATE)
        two = await verl.update(branching_samples(), RATE)
        assert one.metrics.keys() == two.metrics.keys()
        figures = set(one.metrics) - {"tokens/packed", "tokens/flattened_per_packed"}  # trees share, rows do not
        for name in figures:
            assert two.metrics[name] == pytest.approx(one.metrics[name], rel=2e-4, abs=1e-6), (number, name)
        assert one.metrics["grad_norm"] > TRAINER.max_grad_norm  # so that clipping is active
        assert apart(adapter_of(loaded), workers.weights()) < 5e-4  # AdamW makes much of what rounds to nearly nothing
    assert one.metrics["kl/reference"] > 1e-4


async def test_the_base_stays_as_it_is_bit_for_bit(workers: OneProcess, model_dir: Path) -> None:
    verl = verl_learner(workers, KL)
    await verl.update(branching_samples(), RATE)
    base = dict(_base(workers.worker.actor.engine.module))
    expected = dict(load_model(ModelConfig(path=str(model_dir), device="cpu")).model.named_parameters())
    assert base.keys() == expected.keys()
    assert all(torch.equal(base[name], expected[name]) for name in base)


async def test_the_reference_is_what_the_run_began_with_and_stays_so_after_resuming(
    workers: OneProcess, tmp_path: Path
) -> None:
    verl = verl_learner(workers, KL)
    samples = branching_samples()
    first = await verl.logprobs(samples)
    await verl.update(samples, RATE)
    trained = await verl.logprobs(samples)
    assert (
        max(abs(a - b) for one, two in zip(trained, first, strict=True) for a, b in zip(one, two, strict=True)) > 1e-3
    )
    verl.save(tmp_path)
    verl.load(tmp_path)
    assert await verl.logprobs(samples, reference=True) == first
    assert await verl.logprobs(samples) == trained  # the reference was in its place, and went


async def test_a_checkpoint_is_a_folder_of_peft_that_local_goes_on_from_and_the_other_way_round(
    workers: OneProcess, model_dir: Path, tmp_path: Path
) -> None:
    verl = verl_learner(workers, KL)
    await verl.update(branching_samples(), RATE)
    verl.save(tmp_path / "verl")
    files = {path.name for path in (tmp_path / "verl").iterdir()}
    assert files == {"adapter_config.json", "adapter_model.safetensors", "optimizer", "trainer_state.json"}
    local, loaded = local_learner(model_dir, tmp_path / "verl")
    assert apart(adapter_of(loaded), workers.weights()) == 0
    assert export_checkpoint(tmp_path / "verl", tmp_path / "out", merged=True) == "model"

    await local.update(branching_samples(), RATE)
    assert loaded.adapters is not None
    loaded.adapters.save(tmp_path / "local")
    settings = [tmp_path / each / "adapter_config.json" for each in ("local", "verl")]
    assert json.loads(settings[0].read_text()) == json.loads(settings[1].read_text())
    assert workers.worker.adapter is not None
    workers.worker.adapter.load(tmp_path / "local")
    assert apart(adapter_of(loaded), workers.weights()) == 0


async def test_servers_in_processes_of_their_own_get_all_weights_with_the_adapter_in_them(
    workers: OneProcess, model_dir: Path, tmp_path: Path
) -> None:
    verl = verl_learner(workers, KL)
    await verl.update(branching_samples(), RATE)
    verl.save(tmp_path)
    sent, _ = workers.worker.actor.engine.get_per_tensor_param()
    found, base = dict(sent), read_weights(model_dir)
    expected = dict(merge(base, tmp_path).named_parameters())
    assert found.keys() == expected.keys()
    assert all(torch.allclose(found[name], expected[name], atol=1e-6) for name in found)
    moved = found["model.layers.0.mlp.up_proj.weight"] - read_weights(model_dir).model.layers[0].mlp.up_proj.weight
    assert float(moved.detach().abs().max()) > 1e-3


async def test_training_goes_on_from_a_checkpoint_as_if_it_had_not_stopped(workers: OneProcess, tmp_path: Path) -> None:
    verl = verl_learner(workers, KL)
    verl.save(tmp_path / "new")
    await verl.update(branching_samples(), RATE)
    verl.save(tmp_path / "one")
    after = await verl.update(branching_samples(), RATE)
    expected = workers.weights()
    verl.load(tmp_path / "one")
    assert (await verl.update(branching_samples(), RATE)).metrics == after.metrics
    assert apart(expected, workers.weights()) == 0
    verl.load(tmp_path / "new")  # from before the first update
    for _ in range(2):
        await verl.update(branching_samples(), RATE)
    assert apart(expected, workers.weights()) == 0


async def test_a_run_may_begin_with_an_adapter_which_is_then_the_reference(
    begun: OneProcess, model_dir: Path, tmp_path: Path
) -> None:
    local, loaded = local_learner(model_dir)
    await local.update(branching_samples(), RATE)
    assert loaded.adapters is not None
    loaded.adapters.save(tmp_path / "begin")
    local, loaded = local_learner(model_dir, tmp_path / "begin")
    workers = OneProcess(tmp_path, tmp_path / "begin", KL, more=SETTINGS)
    verl = verl_learner(workers, KL)
    for _ in range(2):
        one, two = [await each.update(branching_samples(), RATE / 4) for each in (local, verl)]
        assert two.metrics["kl/reference"] == pytest.approx(one.metrics["kl/reference"], rel=2e-4, abs=1e-6)
    assert one.metrics["kl/reference"] > 1e-5
    assert apart(adapter_of(loaded), workers.weights()) < 5e-4  # AdamW makes much of what rounds to nearly nothing
    verl.save(tmp_path)
    assert json.loads((tmp_path / "adapter_config.json").read_text())["base_model_name_or_path"] == str(model_dir)


@pytest.mark.fault(
    "Runs and resuming",
    "a run on verl goes on from an adapter of another base, of another rank or that is damaged",
    "resuming names the folder and what is different",
)
async def test_an_adapter_that_is_another_one_is_refused(workers: OneProcess, model_dir: Path, tmp_path: Path) -> None:
    verl = verl_learner(workers, KL)
    verl.save(tmp_path)
    make_model(seed=3).save_pretrained(tmp_path / "other")
    for path, lora, said in (
        (tmp_path / "other", LORA, "was trained over other weights than those of"),
        (model_dir, replace_rank(8), "astune.model.lora.rank is 4, and was 8"),
    ):
        loaded = load_model(ModelConfig(path=str(path), device="cpu", lora=lora))
        assert loaded.adapters is not None
        loaded.adapters.save(tmp_path)
        with pytest.raises(RunFolderError, match=said):
            verl.load(tmp_path)
    (tmp_path / "adapter_model.safetensors").write_bytes(b"")
    with pytest.raises(RunFolderError, match="cannot be gone on from: ModelError"):
        verl.load(tmp_path)


def replace_rank(rank: int) -> LoraConfig:
    return LORA.model_copy(update={"rank": rank})


async def test_a_server_without_gpus_answers_with_the_adapter() -> None:
    torch.manual_seed(SEED)
    loaded = load_model(ModelConfig(device="cpu", lora=LORA))
    for parameter in loaded.trainable():
        parameter.data += 0.05 * torch.randn(parameter.shape)
    sampler = Sampler(loaded.sampling_model, slots=1, context_length=400, adapters=loaded.adapters)
    local = LocalLearner(loaded, sampler, KL, TRAINER)
    server = CpuServer(str(tiny_model_dir()), 1, 400, LORA)
    row = [place % 300 + 5 for place in range(40)]
    told = [entry[0] for entry in server._scores(row)[:-1]]
    await server.load_weights(adapter_of(loaded), 3)
    (expected,) = await local.logprobs([whole_row(row)])
    found = [entry[0] for entry in server._scores(row)[:-1]]
    assert found == pytest.approx(list(expected), abs=1e-5)
    assert max(abs(a - b) for a, b in zip(found, told, strict=True)) > 1e-2
    parameters = {"max_tokens": 8, "temperature": 1.0, "seed": 4, "logprobs": True}
    answer = await server.generate("a", row, parameters)
    own = await sampler.generate(row, Sampling(8, seed=4))
    assert tuple(answer.token_ids) == own.output_ids and answer.extra_fields["global_steps"] == 3

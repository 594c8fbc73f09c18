"""The rules that every backbone keeps, whoever computes: each rule once, for each backbone whose packages are here.

`make test-verl` tries verl's learner, `make test` all others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

pytest.importorskip("torch")

import torch

from astune.backbone.base import BACKBONES, Backbone, check_keys, refuse_problems
from astune.cli import main
from astune.config.keys import LEAVES
from astune.config.load import LoadedConfig, load_config
from astune.config.schema import AlgorithmConfig, LoraConfig, ModelConfig, TrainerConfig
from astune.context_tracker.prompt.chat_format import ChatFormat
from astune.context_tracker.scripted_policy import ScriptedPolicy
from astune.errors import ConfigError, RunFolderError
from astune.plugins import load_plugin
from astune.support.resources import tiny_model_dir
from astune.testing import CountingLearner
from astune.training.engine import Learner
from tests.backbone.local.conftest import make_model
from tests.backbone.local.test_prefix_tree import branching_samples

JOB = """\
astune:
  rollout: {agentscope_learn_protocol: 'package.module:Agent'}
  task_reader: {jsonl: {training: {file_path: none.jsonl}}}
"""
REFUSED = {
    "trinity": ("astune.trainer.updates_per_step=2", "astune.trainer.updates_per_step: got 2: a step is one optimizer"),
    "verl": (
        "astune.trainer.optimizer=adamw_8bit",
        "astune.trainer.optimizer: got 'adamw_8bit': bitsandbytes takes no",
    ),
}
"""A key that the conversion to another program refuses, and what it says."""


def load(folder: Path, backbone: str, *overrides: str) -> tuple[Backbone, LoadedConfig]:
    (folder / "job.yaml").write_text(JOB)
    chosen: Backbone = load_plugin(backbone, kind="backbone", builtin=BACKBONES)()
    return chosen, load_config(folder / "job.yaml", overrides, backbone=backbone)


@pytest.mark.parametrize("name", BACKBONES)
def test_a_backbone_is_called_as_the_command_line_calls_it_and_names_sections_that_there_are(name: str) -> None:
    chosen = load_plugin(name, kind="backbone", builtin=BACKBONES)()
    known = {key[:end] for key in LEAVES for end in [*(at for at, sign in enumerate(key) if sign == "."), len(key)]}
    assert chosen.name == name
    assert chosen.honours | chosen.ignored_sections <= known | {"trinity", "verl"}


@pytest.mark.parametrize("name", BACKBONES)
def test_a_configuration_that_a_backbone_takes_has_no_problems(tmp_path: Path, name: str) -> None:
    chosen, loaded = load(tmp_path, name)
    assert list(chosen.problems(loaded)) == check_keys(chosen, loaded) == []


@pytest.mark.parametrize("name", REFUSED)
def test_problems_are_those_of_the_conversion_with_their_places(tmp_path: Path, name: str) -> None:
    override, said = REFUSED[name]
    chosen, loaded = load(tmp_path, name, override)
    (problem,) = chosen.problems(loaded)
    assert problem.startswith(f"command line: {said}")
    with pytest.raises(ConfigError, match=r"^command line: astune\.trainer"):
        refuse_problems(chosen, loaded)


@pytest.mark.parametrize("name", REFUSED)
def test_a_run_is_refused_before_its_tasks_are_read(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "agent.py").write_text("async def Agent(task, tuner): ...\n")
    (tmp_path / "none.jsonl").write_text('{"query": "1+1", "answer": "2"}\n')
    (tmp_path / "job.yaml").write_text(JOB.replace("package.module:Agent", "agent.py:Agent"))
    override, said = REFUSED[name]
    assert main(["run", "--conf", "job.yaml", f"--backbone={name}", override]) == 2
    assert said in capsys.readouterr().err


@dataclass
class Subject:
    """A learner, its weights as they are, and what makes another one over the model as it began."""

    learner: Learner
    weights: Callable[[], Mapping[str, torch.Tensor]]
    again: Callable[[], Subject]

    async def update(self, infinite: bool = False) -> bool:
        """Take an update, of which all that is learned is infinite if that is asked for. False if it was skipped."""
        samples = branching_samples()
        if infinite:
            samples = [replace(each, advantages=(math.inf, math.inf)) for each in samples]
        return not (await self.learner.update(samples, RATE)).skipped

    async def logprobs(self, *, reference: bool = False) -> list[list[float]]:
        return [list(row) for row in await self.learner.logprobs(branching_samples(), reference=reference)]


RATE = 0.003
TRAINER = TrainerConfig(micro_batch_tokens=300, max_grad_norm=0.02)
WITH_REFERENCE = AlgorithmConfig(kl_beta=0.1)


def count(skipped: bool = False) -> Subject:
    """The learner of `astune.testing`, which is told what to skip."""
    policy = ScriptedPolicy(["4"], ChatFormat.load(tiny_model_dir()))
    learner = CountingLearner(policy, skipped=[0] if skipped else [])
    return Subject(learner, lambda: {"weight": torch.tensor(learner.weight)}, count)


def make_local(model_dir: Path, lora: LoraConfig) -> Subject:
    from astune.backbone.local.learning.learner import LocalLearner
    from astune.backbone.local.model.model import load_model
    from astune.backbone.local.sampling.sampler import Sampler

    torch.manual_seed(0)  # an adapter is drawn
    loaded = load_model(ModelConfig(path=str(model_dir), device="cpu", lora=lora))
    learner = LocalLearner(loaded, Sampler(loaded.sampling_model, slots=1, context_length=400), WITH_REFERENCE, TRAINER)
    named = dict(loaded.model.named_parameters())
    return Subject(
        learner,
        lambda: {name: value.detach().clone() for name, value in named.items()},
        lambda: make_local(model_dir, lora),
    )


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("conformance") / "model"
    make_model().save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def over_verl(model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], Subject]]:
    """One worker of verl in this process, which goes back to its beginning for each learner."""
    import tests.verl.conftest  # noqa: F401  (first: it sets what verl reads when it is imported)

    pytest.importorskip("verl", reason="make test-verl installs it")
    from astune.backbone.verl.trainer.learner import VerlLearner
    from tests.verl.one_process import OneProcess

    workers = OneProcess(tmp_path_factory.mktemp("worker"), model_dir, WITH_REFERENCE)

    def make() -> Subject:
        workers.go_back()
        return Subject(VerlLearner(workers, lambda version: {}, WITH_REFERENCE, TRAINER), workers.weights, make)

    yield make
    torch.distributed.destroy_process_group()


@pytest.fixture(params=["counting", "local", "local with an adapter", "verl"])
def subject(request: pytest.FixtureRequest) -> Subject:
    if request.param == "counting":
        return count()
    if request.param == "verl":
        made: Subject = request.getfixturevalue("over_verl")()
        return made
    rank = 4 if request.param == "local with an adapter" else None
    if rank is not None:
        pytest.importorskip("peft")
    return make_local(request.getfixturevalue("model_dir"), LoraConfig(rank=rank))


def are_equal(one: Mapping[str, torch.Tensor], two: Mapping[str, torch.Tensor]) -> bool:
    return one.keys() == two.keys() and all(torch.equal(value, two[name]) for name, value in one.items())


async def test_a_version_is_new_where_weights_changed_since_the_last_and_there_alone(subject: Subject) -> None:
    learner, before = subject.learner, subject.weights()
    assert await learner.publish() == learner.policy_version == 0
    assert await subject.update() and await subject.update()
    assert (learner.updates, learner.changes, learner.policy_version) == (2, 2, 0)
    assert not are_equal(before, subject.weights())
    assert await learner.publish() == await learner.publish() == learner.policy_version == 1


@pytest.mark.fault(
    "Agents and the engine",
    "the loss or its gradient is no finite number",
    "the update is thrown away: weights, optimizer and policy version stay, its tokens count as left out "
    "(skipped_update); after `max_skipped_updates` in a row the run stops",
)
async def test_an_update_that_is_not_finite_is_as_if_it_had_not_been(subject: Subject) -> None:
    if isinstance(subject.learner, CountingLearner):
        subject = count(skipped=True)
    learner, before = subject.learner, subject.weights()
    assert not await subject.update(infinite=True)
    assert (learner.updates, learner.changes, await learner.publish()) == (1, 0, 0)
    assert are_equal(before, subject.weights())
    assert await subject.update()
    found, other = subject.weights(), subject.again()
    assert await other.update()
    assert are_equal(found, other.weights()), "the optimizer has not seen it either"


async def test_log_probabilities_are_those_of_tokens_with_weight_now_and_at_the_beginning(subject: Subject) -> None:
    first = await subject.logprobs()
    assert [len(row) for row in first] == [sample.trained_tokens for sample in branching_samples()]
    await subject.update()
    assert await subject.logprobs() != first
    assert await subject.logprobs(reference=True) == [pytest.approx(row, abs=1e-5) for row in first]


@pytest.mark.fault(
    "Runs and resuming", "a run is resumed", "weights and optimizer go on bit for bit as if never stopped"
)
async def test_a_learner_goes_on_from_what_was_saved_bit_for_bit(subject: Subject, tmp_path: Path) -> None:
    await subject.update()
    await subject.learner.publish()
    subject.learner.save(tmp_path)
    done = await subject.learner.update(branching_samples(), RATE)
    expected, other = subject.weights(), subject.again()
    other.learner.load(tmp_path)
    assert (other.learner.updates, other.learner.policy_version) == (1, 1)
    assert (await other.learner.update(branching_samples(), RATE)).metrics == done.metrics
    assert are_equal(expected, other.weights())


async def test_a_learner_that_loads_has_nothing_left_to_publish(subject: Subject, tmp_path: Path) -> None:
    subject.learner.save(tmp_path)
    await subject.update()
    subject.learner.load(tmp_path)
    assert await subject.learner.publish() == 0


async def test_what_is_broken_is_not_gone_on_from(subject: Subject, tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="cannot be gone on from"):
        subject.learner.load(tmp_path / "nothing")
    subject.learner.save(tmp_path)
    for file in (path for path in tmp_path.rglob("*") if path.is_file()):
        file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    with pytest.raises(RunFolderError, match="cannot be gone on from"):
        subject.learner.load(tmp_path)

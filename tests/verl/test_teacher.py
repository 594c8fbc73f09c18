"""On-policy distillation on verl's workers against the backbone `local`: a teacher in a folder, which the workers hold
where verl has its reference, and one behind an API."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from astune.backbone.losses.policy import LOSSES
from astune.backbone.losses.teacher import ApiTeacher
from astune.backbone.ray_cluster.node_check import NodeQuestion, find_problems
from astune.backbone.verl.engine import find_teacher
from astune.backbone.verl.trainer.learner import VerlLearner
from astune.backbone.verl.trainer.rows import rows_of, share_out
from astune.config.chat_models import TeacherConfig
from astune.config.schema import AlgorithmConfig, AstuneConfig
from astune.context_tracker.model_dir import copy_tokenizer
from astune.errors import ModelError
from astune.support.resources import tiny_model_dir
from astune.types import Sample
from tests.backbone.local.conftest import make_model
from tests.backbone.local.test_prefix_tree import branching_samples
from tests.backbone.local.test_teacher import Server
from tests.verl.one_process import OneProcess
from tests.verl.test_learner import RATE, TRAINER, apart, local_learner, random_samples, verl_learner, weights_of


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The folders of the model that is trained, and of a teacher with more layers."""
    folder = tmp_path_factory.mktemp("models")
    for name, seed, layers in (("model", 0, 2), ("teacher", 1, 3)):
        make_model(seed, layers).save_pretrained(folder / name)
        copy_tokenizer(tiny_model_dir(), folder / name)
    return folder / "model", folder / "teacher"


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory, models: tuple[Path, Path]) -> Iterator[OneProcess]:
    model, teacher = models
    yield OneProcess(tmp_path_factory.mktemp("worker"), model, distilled(teacher), teacher=teacher)
    torch.distributed.destroy_process_group()


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """A teacher behind an API: the shipped model, which has the tokens of the one that is trained."""
    running = Server(tiny_model_dir())
    yield running
    running.stop()


def distilled(teacher: Path | TeacherConfig, loss: str = "ppo_clip") -> AlgorithmConfig:
    named = str(teacher) if isinstance(teacher, Path) else teacher
    return AlgorithmConfig.model_validate({"method": "distill", "teacher": named, "loss": loss})


async def test_three_updates_towards_a_teacher_give_the_weights_of_local(
    workers: OneProcess, models: tuple[Path, Path]
) -> None:
    """`branching_samples` have answers at two temperatures, at which the teacher is asked."""
    config = distilled(models[1])
    local, loaded = local_learner(models[0], config)
    verl = verl_learner(workers, config)
    for number in range(3):
        one = await local.update(branching_samples(), RATE)
        two = await verl.update(branching_samples(), RATE)
        assert one.metrics.keys() == two.metrics.keys()
        for name in set(one.metrics) - {"tokens/packed", "tokens/flattened_per_packed"}:
            assert two.metrics[name] == pytest.approx(one.metrics[name], rel=2e-4, abs=1e-6), (number, name)
        assert apart(weights_of(loaded), workers.weights()) < 5e-4
    assert one.metrics["kl/teacher"] > 0.01 and one.metrics["grad_norm"] > TRAINER.max_grad_norm


def local_gradients(model: Path, config: AlgorithmConfig, samples: list[Sample]) -> dict[str, torch.Tensor]:
    local, loaded = local_learner(model, config)
    assert local._teacher is not None
    weighed = asyncio.run(local._teacher.weigh(samples))
    for batch in local.batches(weighed.samples):
        with loaded.training():
            local.objective(batch, weighed).loss.sum().backward()  # type: ignore[no-untyped-call]
    return {name: value.grad for name, value in loaded.model.named_parameters() if value.grad is not None}


@given(random_samples(), st.sampled_from(sorted(LOSSES)), st.integers(1, 4))
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_samples_have_the_gradient_that_they_have_on_local(
    begun: OneProcess, models: tuple[Path, Path], samples: list[Sample], loss: str, ranks: int
) -> None:
    """`ranks`: as if shared out over so many, all of them played by this one."""
    begun.go_back()
    config = distilled(models[1], loss)
    rows = share_out(rows_of(samples, whole=False), ranks)
    begun.gradient(verl_learner(begun, config).batch(rows))
    one, two = local_gradients(models[0], config, samples), begun.gradients()
    if any(bool(value.any()) for value in one.values()):
        assert apart(one, two) < 1e-3
    else:
        assert not any(bool(value.any()) for value in two.values())


def test_a_teacher_behind_an_api_weighs_and_leaves_out_what_it_does_on_local(
    workers: OneProcess, models: tuple[Path, Path], server: Server
) -> None:
    """Answers at another temperature than 1 it cannot weigh; the other episodes weigh more for it."""
    teacher = TeacherConfig(base_url=server.base_url, model="big", max_retries=0)
    config = distilled(teacher)
    local, loaded = local_learner(models[0], config)
    workers.worker.set_loss(config)
    verl = VerlLearner(workers, lambda version: {}, config, TRAINER, ApiTeacher(teacher, config, models[0]))
    samples = [replace(each, episode_id=f"e{number}") for number, each in enumerate(branching_samples())]
    one, two = (asyncio.run(learner.update(samples, RATE)) for learner in (local, verl))
    assert len(one.left_out) == 5
    assert [each.episode_id for each in two.left_out] == [each.episode_id for each in one.left_out]
    assert two.metrics["loss"] == pytest.approx(one.metrics["loss"], rel=1e-4)
    assert two.metrics["kl/teacher"] == pytest.approx(one.metrics["kl/teacher"], rel=1e-4)
    assert apart(weights_of(loaded), workers.weights()) < 5e-4


def test_a_teacher_of_other_tokens_is_refused_before_anything_starts(
    models: tuple[Path, Path], tmp_path: Path, server: Server
) -> None:
    model, teacher = models
    api = TeacherConfig(base_url=server.base_url, model="big", max_retries=0)
    assert find_teacher(AstuneConfig(algorithm=distilled(teacher)), model) is None
    assert find_teacher(AstuneConfig(algorithm=distilled(api)), model) is not None
    copy_tokenizer(teacher, tmp_path)
    tokenizer = tmp_path / "tokenizer.json"
    tokenizer.write_text(tokenizer.read_text().replace('"e"', '"Ж"'))
    with pytest.raises(ModelError, match=r"astune\.algorithm\.teacher: the tokenizer in .* has other tokens"):
        find_teacher(AstuneConfig(algorithm=distilled(tmp_path)), model)


def test_a_node_that_does_not_have_the_teacher_says_so(models: tuple[Path, Path], tmp_path: Path) -> None:
    def asked(teacher: Path) -> list[str]:
        return find_problems(NodeQuestion(AstuneConfig(algorithm=distilled(teacher)).model_dump_json(), "", "", ""))

    assert asked(models[1]) == []
    (problem,) = asked(tmp_path / "nowhere")
    assert problem.startswith("astune.algorithm.teacher: there is no folder") and "every node sees" in problem

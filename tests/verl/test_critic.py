"""PPO's critic in verl's workers against that of the backbone `local`: equal values, equal steps."""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import (
    AutoModelForTokenClassification,
    GPT2Config,
    GraniteConfig,
    Qwen3_5Config,
    Qwen3Config,
)

from astune.backbone.local.learning.critic import Critic
from astune.backbone.local.learning.learner import LocalLearner
from astune.backbone.verl.trainer.learner import ShardedCritic, VerlLearner
from astune.backbone.verl.trainer.loss import critic_loss
from astune.backbone.verl.trainer.value_model import value_architecture
from astune.config.algorithm import CriticConfig
from astune.config.schema import AlgorithmConfig
from astune.errors import ConfigError, RunFolderError
from astune.types import Sample
from tests.backbone.local.test_prefix_tree import branching_samples
from tests.verl.one_process import OneProcess
from tests.verl.test_learner import RATE, TRAINER, apart, local_learner, random_samples, weights_of

CRITIC = CriticConfig(learning_rate=0.01, updates=2, value_clip=0.5, gamma=0.9, gae_lambda=0.8)
PPO = AlgorithmConfig(advantage="gae", critic=CRITIC)


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory, model_dir: Path) -> Iterator[OneProcess]:
    """Rows one behind the other, as on GPUs, by torch's attention: the way without flash-attn."""
    more = ["verl.actor_rollout_ref.model.use_remove_padding=true", "astune.model.attention=sdpa"]
    yield OneProcess(tmp_path_factory.mktemp("worker"), model_dir, PPO, more=more)
    torch.distributed.destroy_process_group()


def verl_learner(workers: OneProcess, critic: CriticConfig = CRITIC, **more: Any) -> VerlLearner:
    return VerlLearner(workers, lambda version: {}, AlgorithmConfig(advantage="gae", critic=critic, **more), TRAINER)


def rewarded() -> list[Sample]:
    """Branches of which the second turn earns, some the first as well."""
    return [replace(each, rewards=(0.25 * (number % 3), number / 4)) for number, each in enumerate(branching_samples())]


def critic_of(local: LocalLearner) -> Critic:
    assert local._critic is not None
    return local._critic


def as_on_disk(name: str) -> str:
    """The name that transformers has for a parameter of local's critic."""
    return name.replace("trunk.", "model.", 1).replace("value.", "score.", 1)


def critic_weights(local: LocalLearner) -> dict[str, torch.Tensor]:
    return {as_on_disk(name): value.detach() for name, value in critic_of(local)._model.named_parameters()}


def compared(one: dict[str, float], two: dict[str, float]) -> None:
    """The figures of an update on `local` and on verl, which splits no micro-batch."""
    assert one.keys() - two.keys() == {"critic/split_for_memory"} and two.keys() <= one.keys()
    for name in set(two) - {"tokens/packed", "tokens/flattened_per_packed"}:
        assert two[name] == pytest.approx(one[name], rel=2e-4, abs=1e-6), name


async def test_three_updates_give_the_policy_and_the_critic_of_local(workers: OneProcess, model_dir: Path) -> None:
    local, loaded = local_learner(model_dir, PPO)
    verl = verl_learner(workers)
    for _ in range(3):
        one, two = await local.update(rewarded(), RATE), await verl.update(rewarded(), RATE)
        compared(dict(one.metrics), dict(two.metrics))
        assert apart(weights_of(loaded), workers.weights()) < 5e-4
        assert apart(critic_weights(local), workers.critic_weights()) < 5e-4
    assert one.metrics["critic/grad_norm"] > TRAINER.max_grad_norm and one.metrics["clip_fraction"] > 0.01
    assert abs(one.metrics["critic/value_mean"]) > 0.01
    assert (verl.updates, verl.changes, await verl.publish()) == (3, 3, 1)


async def test_imitated_samples_are_learned_beside_those_that_the_critic_judges(
    workers: OneProcess, model_dir: Path
) -> None:
    samples = [replace(each, imitated=number % 3 == 0) for number, each in enumerate(rewarded())]
    local, loaded = local_learner(model_dir, PPO)
    one, two = await local.update(samples, RATE), await verl_learner(workers).update(samples, RATE)
    compared(dict(one.metrics), dict(two.metrics))
    assert apart(weights_of(loaded), workers.weights()) < 5e-4
    assert apart(critic_weights(local), workers.critic_weights()) < 5e-4


async def test_while_the_critic_warms_up_the_policy_stays_as_it_is(workers: OneProcess, model_dir: Path) -> None:
    config = CRITIC.model_copy(update={"warmup_updates": 1})
    local, _ = local_learner(model_dir, AlgorithmConfig(advantage="gae", critic=config))
    verl, before = verl_learner(workers, config), workers.weights()
    for version in (0, 1):
        one, two = await local.update(rewarded(), RATE), await verl.update(rewarded(), RATE)
        compared(dict(one.metrics), dict(two.metrics))
        assert (apart(before, workers.weights()) == 0) == (version == 0) == (two.metrics["critic/warming_up"] == 1)
        assert await verl.publish() == version
        assert apart(critic_weights(local), workers.critic_weights()) < 5e-4
    assert verl.changes == 2  # of the critic too: a step that was broken off in its update is not saved


@given(random_samples(), st.sampled_from([None, 0.1]), st.integers(1, 4), st.data())
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_samples_have_the_values_and_the_critics_gradient_that_they_have_on_local(
    begun: OneProcess, model_dir: Path, samples: list[Sample], clip: float | None, ranks: int, data: st.DataObject
) -> None:
    """`ranks`: as if shared out over so many, all of them played by this one."""
    begun.go_back()
    earned = [tuple(data.draw(st.floats(-2, 2), "reward") for _ in each.timeline.spans) for each in samples]
    samples = [replace(each, rewards=rewards) for each, rewards in zip(samples, earned, strict=True)]
    config = CRITIC.model_copy(update={"value_clip": clip})
    begun.worker.critic.set_loss_fn(partial(critic_loss, config))
    ours = ShardedCritic(Shared(begun, ranks), config, TRAINER.micro_batch_tokens)
    local, _ = local_learner(model_dir, AlgorithmConfig(advantage="gae", critic=config))
    critic = critic_of(local)
    assert not any(values.any() for values in ours.judge(samples).values)  # a new critic says 0
    with torch.no_grad():
        for parameter in critic._model.value.parameters():
            parameter.copy_(torch.linspace(-0.2, 0.3, parameter.numel()).reshape(parameter.shape))
    begun.give_critic(critic_weights(local))
    judged, again = critic.judge(samples), ours.judge(samples)
    for name in ("values", "returns", "advantages"):
        for one, two in zip(vars(judged)[name], vars(again)[name], strict=True):
            torch.testing.assert_close(two, one, atol=1e-4, rtol=1e-3)
    moved = replace(judged, values=tuple(values + 0.15 for values in judged.values))  # so that clipping is active
    critic._accumulation.gather(samples, partial(critic._backward, moved))
    begun.critic_gradient(ours.batch(samples, moved))
    grads = {as_on_disk(n): p.grad for n, p in critic._model.named_parameters() if p.grad is not None}
    assert apart(grads, begun.critic_gradients()) < 1e-3


class Shared:
    """Workers as if the rows were shared out over `ranks`."""

    def __init__(self, workers: OneProcess, ranks: int) -> None:
        self.ranks, self.sharing = ranks, 1
        self.values = workers.values
        self.critic_gradient, self.critic_step = workers.critic_gradient, workers.critic_step
        self.drop_critic_gradient = workers.drop_critic_gradient


async def test_training_goes_on_from_a_checkpoint_with_its_critic(workers: OneProcess, tmp_path: Path) -> None:
    verl = verl_learner(workers)
    await verl.update(rewarded(), RATE)
    verl.save(tmp_path)
    after = await verl.update(rewarded(), RATE)
    expected = workers.weights(), workers.critic_weights()
    verl.load(tmp_path)
    again = await verl.update(rewarded(), RATE)
    assert again.metrics == after.metrics
    assert apart(expected[0], workers.weights()) == apart(expected[1], workers.critic_weights()) == 0
    (tmp_path / "critic" / "model.safetensors").rename(tmp_path / "moved")
    with pytest.raises(RunFolderError, match=r"cannot be gone on from: OSError: .*critic"):
        verl.load(tmp_path)
    shutil.rmtree(tmp_path / "critic")
    with pytest.raises(RunFolderError, match=r"cannot be gone on from: OSError: there is no folder .*critic"):
        verl.load(tmp_path)


async def test_a_critic_in_a_checkpoint_is_a_model_of_transformers(workers: OneProcess, tmp_path: Path) -> None:
    verl = verl_learner(workers)
    await verl.update(rewarded(), RATE)
    verl.save(tmp_path)
    model = AutoModelForTokenClassification.from_pretrained(tmp_path / "critic").eval()
    (first, *_) = rewarded()
    (judged, *_) = ShardedCritic(workers, CRITIC, 300).judge([first]).values
    with torch.no_grad():
        said = model(torch.tensor([first.timeline.token_ids])).logits[0, :, 0]
    before = torch.cat([said[span.start - 1 : span.stop - 1] for span in first.timeline.spans])
    torch.testing.assert_close(judged, before, atol=1e-5, rtol=1e-4)
    assert bool(judged.any())


@pytest.mark.fault(
    "Agents and the engine",
    "the critic's loss is no finite number on verl",
    "its update, or with its values the policy's as well, is thrown away and counted",
)
async def test_a_return_beyond_numbers_spoils_neither_critic_nor_policy(workers: OneProcess) -> None:
    before = workers.weights(), workers.critic_weights()
    huge = [*rewarded()[:-1], replace(rewarded()[-1], rewards=(0.0, 1e30))]
    done = await verl_learner(workers).update(huge, RATE)
    assert done.metrics["critic/updates_skipped"] == CRITIC.updates and not done.skipped
    assert apart(before[1], workers.critic_weights()) == 0
    workers.go_back()
    workers.give_critic({name: value * math.nan for name, value in before[1].items()})
    assert (await verl_learner(workers).update(rewarded(), RATE)).skipped
    assert apart(before[0], workers.weights()) == 0


def test_a_model_without_values_is_refused_by_name() -> None:
    assert value_architecture(Qwen3Config()) == "Qwen3ForTokenClassification"
    for config in (GraniteConfig(), GPT2Config(), Qwen3_5Config()):
        with pytest.raises(ConfigError, match=rf"got 'gae', but .* type '{config.model_type}'.*backbone 'local'"):
            value_architecture(config)

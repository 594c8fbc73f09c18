"""PPO's critic with a tiny random model."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from astune.backbone.local.inspect import UpdateInspector
from astune.backbone.local.learning.batch import micro_batches
from astune.backbone.local.learning.critic import CRITIC_FILE, Critic, credit
from astune.backbone.local.learning.learner import LocalLearner
from astune.backbone.local.model.model import LoadedModel, load_model
from astune.backbone.local.sampling.sampler import Sampler
from astune.backbone.losses.critic import compute_explained_variance, value_loss
from astune.config.algorithm import CriticConfig
from astune.config.schema import AlgorithmConfig, AstuneConfig, ModelConfig, TrainerConfig
from astune.errors import RunFolderError
from astune.types import RunReport, Sample, Sampling, Span, Timeline
from tests.backbone.local.conftest import make_model
from tests.backbone.local.test_backbone import run_job, timeless, weights, write_job
from tests.training.killed import Killed, raise_at

FAST = CriticConfig(learning_rate=0.01, gae_lambda=1.0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("critic") / "model"
    make_model().save_pretrained(path)
    return path


def learner_over(folder: Path, critic: CriticConfig = FAST) -> tuple[LocalLearner, Sampler, LoadedModel]:
    loaded = load_model(ModelConfig(path=str(folder), device="cpu"))
    sampler = Sampler(loaded.sampling_model, slots=4, context_length=128)
    config = AlgorithmConfig(advantage="gae", critic=critic)
    return LocalLearner(loaded, sampler, config, TrainerConfig(micro_batch_tokens=24)), sampler, loaded


def sample_of(name: str, prompt: list[int], outputs: list[list[int]], rewards: list[float]) -> Sample:
    """A row of turns, with a token of context between them."""
    tokens, spans = list(prompt), []
    for number, output in enumerate(outputs):
        tokens += [60] if number else []
        span = Span(number, len(tokens), len(tokens) + len(output), 0, 1.0, True, [-4.0] * len(output))
        spans.append(span)
        tokens += output
    line = Timeline("a", tokens, tuple(spans))
    to_go = tuple(sum(rewards[n:]) for n in range(len(rewards)))
    return Sample(line, to_go, (0.02,) * len(spans), "t", name, tuple(rewards))


def rows() -> list[Sample]:
    """What a row is worth shows in its prompt. Two share a prefix, and one has two turns."""
    made = [sample_of(f"w{n}", [1, 5, n], [[9, n, 11]], [1.0]) for n in range(3)]
    made += [sample_of(f"l{n}", [1, 6, n], [[9, n, 11, 4]], [0.0]) for n in range(3)]
    return [*made, sample_of("two", [1, 5, 7], [[9, 9], [3]], [0.5, 0.5])]


def test_values_are_those_of_a_plain_forward_pass_in_whatever_micro_batch(folder: Path) -> None:
    loaded = load_model(ModelConfig(path=str(folder), device="cpu"))
    critic = Critic(loaded, FAST, TrainerConfig(micro_batch_tokens=12))
    samples = rows()
    assert all(not row.any() for row in critic.judge(samples).values)  # a new critic says 0
    critic.learn(samples, critic.judge(samples))
    found = critic.judge(samples)
    plain = deepcopy(critic._model)
    plain.trunk.set_attn_implementation("sdpa")
    for sample, values, returns in zip(samples, found.values, found.returns, strict=True):
        row = torch.tensor([list(sample.timeline.token_ids)])
        with torch.no_grad():
            hidden = plain.trunk(input_ids=row, use_cache=False).last_hidden_state[0]
            whole = plain.value(hidden)[:, 0]
        before = torch.cat([whole[span.start - 1 : span.stop - 1] for span in sample.timeline.spans])
        assert values.tolist() == pytest.approx(before.tolist(), abs=1e-5)
        ends = np.cumsum(sample.rewards[::-1])[::-1]
        expected = np.repeat(ends, [len(span) for span in sample.timeline.spans])
        assert returns.tolist() == pytest.approx(list(expected), abs=1e-5)  # lambda 1
    whole = torch.cat(found.advantages)
    assert (float(whole.mean()), float(whole.std(correction=0))) == pytest.approx((0.0, 1.0), abs=1e-9)
    (batch,) = micro_batches(samples, 1000, loaded.device)
    assert credit(batch, found).advantage.tolist() == pytest.approx(
        [value for number in batch.samples for value in found.advantages[number].tolist()], abs=1e-6
    )


async def test_the_critic_comes_to_explain_what_is_earned_and_the_policy_learns_by_it(folder: Path) -> None:
    learner, sampler, _ = learner_over(folder)
    generation = await sampler.generate([1, 2, 3], Sampling(max_tokens=1, seed=1))
    first = [await learner.update(rows(), 1e-3)]
    for _ in range(25):
        first.append(await learner.update(rows(), 1e-3))
    losses = [update.metrics["critic/loss"] for update in first]
    explained = [update.metrics["critic/explained_variance"] for update in first]
    assert explained[0] == 0.0 and explained[-1] > 0.9 and losses[-1] < losses[0] / 10
    assert {frozenset(update.metrics) for update in first} == {frozenset(first[0].metrics)}
    assert await learner.publish() == 1 and generation.policy_version == 0


async def test_a_bandit_is_solved(folder: Path) -> None:
    """One token after one prompt, sampled by the policy: the tokens below 32 are paid for, and come to be chosen."""
    learner, sampler, loaded = learner_over(folder, CriticConfig(learning_rate=0.003))
    before = paid_for(loaded)
    for step in range(10):
        made = []
        for number in range(8):
            drawn = await sampler.generate([1, 2, 3], Sampling(max_tokens=1, seed=100 * step + number))
            sample = sample_of(str(number), [1, 2, 3], [list(drawn.output_ids)], [float(drawn.output_ids[0] < 32)])
            (span,) = sample.timeline.spans
            line = replace(sample.timeline, spans=(replace(span, logprobs=drawn.logprobs),))
            made.append(replace(sample, timeline=line, weights=(1 / 8,)))
        await learner.update(made, 0.01)
        await learner.publish()
    assert paid_for(loaded) > max(0.9, before + 0.2)


def paid_for(loaded: LoadedModel) -> float:
    """The probability of a token that is paid for."""
    (batch,) = micro_batches([sample_of("s", [1, 2, 3], [[7]], [0.0])], 100, loaded.device)
    with torch.no_grad(), loaded.training():
        logits = loaded.model(
            input_ids=batch.tokens, position_ids=batch.positions, use_cache=False, layout=batch.layout
        ).logits[0, 2]
    return float(torch.softmax(logits, -1)[:32].sum())


async def test_while_the_critic_warms_up_the_policy_stays_as_it_is(folder: Path) -> None:
    learner, sampler, loaded = learner_over(folder, FAST.model_copy(update={"warmup_updates": 2}))
    kept = deepcopy(loaded.model.state_dict())
    for expected in (1.0, 1.0, 0.0):
        update = await learner.update(rows(), 0.01)
        assert update.metrics["critic/warming_up"] == expected and not update.skipped
        same = all(torch.equal(value, kept[name]) for name, value in loaded.model.state_dict().items())
        assert same == bool(expected)
        assert await learner.publish() == sampler.policy_version == int(not expected)
    assert learner.changes == 3  # of the critic too: a step that was broken off in its update is not saved


async def test_a_saved_critic_goes_on_exactly_where_it_stopped(folder: Path, tmp_path: Path) -> None:
    learner, _, loaded = learner_over(folder)
    await learner.update(rows(), 0.01)
    learner.save(tmp_path / "saved")
    restored, _, other = learner_over(folder)
    restored.load(tmp_path / "saved")
    for _ in range(2):
        assert (await learner.update(rows(), 0.01)).metrics == (await restored.update(rows(), 0.01)).metrics
    for one, two in ((loaded.model, other.model), (learner._critic._model, restored._critic._model)):  # type: ignore[union-attr]
        assert all(torch.equal(value, two.state_dict()[name]) for name, value in one.state_dict().items())
    (tmp_path / "saved" / CRITIC_FILE).unlink()
    with pytest.raises(RunFolderError, match=r"cannot be gone on from.*critic"):
        restored.load(tmp_path / "saved")


async def test_the_critic_of_a_policy_with_an_adapter_is_a_whole_model(folder: Path, tmp_path: Path) -> None:
    torch.manual_seed(0)
    loaded = load_model(ModelConfig.model_validate({"path": str(folder), "device": "cpu", "lora": {"rank": 4}}))
    sampler = Sampler(loaded.sampling_model, slots=2, context_length=64, adapters=loaded.adapters)
    learner = LocalLearner(loaded, sampler, AlgorithmConfig(advantage="gae", critic=FAST), TrainerConfig())
    for _ in range(8):
        update = await learner.update(rows(), 0.01)
    assert update.metrics["critic/explained_variance"] > 0.8
    (tmp_path / "saved").mkdir()
    learner.save(tmp_path / "saved")
    learner.load(tmp_path / "saved")
    assert (tmp_path / "saved" / "adapter_model.safetensors").is_file()


async def test_the_debugger_shows_an_update_with_the_critics_advantages_and_takes_it_back(folder: Path) -> None:
    _, sampler, loaded = learner_over(folder)
    kept = deepcopy(loaded.model.state_dict())
    config = AstuneConfig(algorithm=AlgorithmConfig(advantage="gae", critic=FAST), trainer=TrainerConfig())
    inspection = await UpdateInspector(loaded, sampler, config).inspect(rows())
    spans = [span for row in inspection.samples for span in row if span is not None]
    assert sum(span.loss for span in spans) == pytest.approx(inspection.metrics["loss"], abs=1e-6)
    assert any(any(span.changes) for span in spans)
    assert all(torch.equal(value, kept[name]) for name, value in loaded.model.state_dict().items())


@pytest.mark.fault(
    "Agents and the engine",
    "the critic's loss is no finite number",
    "its update, or with its values the policy's as well, is thrown away and counted",
)
async def test_a_return_beyond_numbers_spoils_neither_critic_nor_policy(folder: Path) -> None:
    learner, _, loaded = learner_over(folder)
    assert learner._critic is not None
    kept = [deepcopy(model.state_dict()) for model in (loaded.model, learner._critic._model)]
    broken = [*rows()[:-1], sample_of("huge", [1, 5, 7], [[9, 9], [3]], [0.0, 1e30])]
    update = await learner.update(broken, 0.01)
    assert update.metrics["critic/updates_skipped"] == 1.0
    assert all(torch.equal(value, kept[1][name]) for name, value in learner._critic._model.state_dict().items())
    learner, _, loaded = learner_over(folder)
    assert learner._critic is not None
    learner._critic._model.value.bias.data.fill_(float("nan"))
    assert (await learner.update(rows(), 0.01)).skipped
    assert all(torch.equal(value, kept[0][name]) for name, value in loaded.model.state_dict().items())


def test_value_loss_and_explained_variance_by_hand() -> None:
    value, returns, old = (
        torch.tensor(x, dtype=torch.float64) for x in ([0.5, 2.0, -1.0], [1.0, 1.0, 1.0], [0.4, 0.0, 0.0])
    )
    assert value_loss(value, returns, old, None).tolist() == [0.125, 0.5, 2.0]
    v, r, o = value.numpy(), returns.numpy(), old.numpy()
    clipped = 0.5 * np.maximum((v - r) ** 2, (np.clip(v - o, -0.2, 0.2) + o - r) ** 2)
    assert value_loss(value, returns, old, 0.2).tolist() == pytest.approx(clipped.tolist())
    assert value_loss(torch.tensor([0.9]), torch.tensor([1.0]), torch.tensor([0.0]), 0.2).tolist() == pytest.approx(
        [0.32]
    )
    assert compute_explained_variance(torch.tensor([0.0, 1.0]), torch.tensor([0.0, 1.0])) == 1.0
    assert compute_explained_variance(torch.tensor([3.0, 3.0]), torch.tensor([0.0, 1.0])) == 0.0
    assert compute_explained_variance(torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0])) == -3.0
    assert compute_explained_variance(torch.tensor([1.0, 0.0]), torch.tensor([1.0, 1.0])) == 0.0


PPO = ("astune.algorithm.advantage=gae", "astune.rollout.num_repeat=1", "astune.algorithm.critic.learning_rate=1e-3",
       "astune.algorithm.critic.updates=2", "astune.algorithm.critic.value_clip=0.5", "astune.evaluation.every=0",
       "astune.algorithm.critic.warmup_updates=1", "astune.evaluation.before=false", "astune.evaluation.after=false",
       "astune.monitor.check_invariants=true", "astune.trainer.total_steps=3",
       "astune.trainer.save_every=1")  # fmt: skip


@pytest.mark.fault(
    "Runs and resuming",
    "a run with a critic is killed anywhere in a step, in the middle of an update too",
    "resumed, critic and policy go on bit for bit as if never stopped",
)
def test_a_run_with_a_critic_that_is_killed_and_resumed_equals_one_that_never_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    conf = write_job(tmp_path)
    straight = run_job(conf, *PPO)
    rows = timeless(straight)
    assert [row["critic/warming_up"] for row in rows] == [1.0, 0.0, 0.0]
    assert [row["policy_version"] for row in rows] == [0, 1, 2] and all("critic/loss" in row for row in rows)
    with monkeypatch.context() as patch, pytest.raises(Killed):
        raise_at(patch, 2, LocalLearner, "_step")
        run_job(conf, *PPO, "astune.experiment_name=killed")
    resumed = run_job(conf, *PPO, "astune.experiment_name=killed", resume=True)
    assert timeless(resumed) == rows
    a, b = weights(straight, 3), weights(resumed, 3)
    assert all(torch.equal(a[key], b[key]) for key in a)
    first, second = (critic_of(report) for report in (straight, resumed))
    assert all(torch.equal(value, second["model"][key]) for key, value in first["model"].items())
    for number, values in first["optimizer"]["state"].items():
        assert all(torch.equal(value, second["optimizer"]["state"][number][key]) for key, value in values.items())


def critic_of(report: RunReport) -> Any:
    return torch.load(report.run_dir / "checkpoints" / "step_000003" / CRITIC_FILE)

"""From the same recorded turns, Trinity trains the same tokens with the same advantages and weights as `local`."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytest.importorskip("trinity")

import torch
from trinity.algorithm.policy_loss_fn.cispo_policy_loss import CISPOPolicyLossFn
from trinity.algorithm.policy_loss_fn.gspo_policy_loss import GSPOLossFn
from trinity.algorithm.policy_loss_fn.opmd_policy_loss import OPMDPolicyLossFn
from trinity.algorithm.policy_loss_fn.ppo_policy_loss import PPOPolicyLossFn
from trinity.common.experience import EID, Experience

from astune.algorithm import Weighting, to_samples
from astune.algorithm.advantage import grpo
from astune.algorithm.aggregation import LossAggregation
from astune.algorithm.credit import Credit
from astune.backbone.losses.entries import Entries
from astune.backbone.losses.policy import LOSSES
from astune.backbone.trinity.conversion.convert import LOSS_ARGS
from astune.backbone.trinity.conversion.values import CONVERSIONS, TRINITY_LOSS, ConversionInput
from astune.backbone.trinity.explorer import samples as operator
from astune.backbone.trinity.explorer.experience import experiences_of, pack_episode
from astune.backbone.trinity.explorer.samples import SamplesOperator, unpack_groups
from astune.config.keys import fates, value_at
from astune.config.load import LoadedConfig
from astune.config.schema import AlgorithmConfig, AstuneConfig, Config
from astune.config.section import OnTrinity
from astune.context_tracker.merge import TurnForest
from astune.errors import TrainingError
from astune.types import Episode, Group, Sample, StopReason, Task, Turn, Verdict
from tests.backbone.golden_samples import Term, assert_trained, replayed
from tests.backbone.golden_samples import steps as golden_steps

VOCABULARY = 5
REWARDS = st.sampled_from([0.0, 0.5, 1.0])


@st.composite
def histories(draw: st.DrawFn) -> list[Turn]:
    """Turns of two agents, each of which goes on from an earlier one, from a part of it, or begins anew."""
    turns: list[Turn] = []
    token, logprob = st.integers(0, VOCABULARY - 1), st.floats(-3.0, -0.1)
    for _ in range(draw(st.integers(1, 5))):
        agent = draw(st.sampled_from("ab"))
        mine = [(*turn.prompt_ids, *turn.output_ids) for turn in turns if turn.agent == agent]
        kept = draw(st.sampled_from([(), *mine]))
        prompt = (*kept, *draw(st.lists(token, min_size=1, max_size=3)))
        output = draw(st.lists(token, min_size=1, max_size=4))
        logprobs = draw(st.lists(logprob, min_size=len(output), max_size=len(output)))
        excluded = draw(st.sampled_from([None, None, None, "frozen"]))
        turns.append(Turn(agent, prompt, output, logprobs, 3, "stop", excluded=excluded))
    return turns


@st.composite
def steps(draw: st.DrawFn) -> list[Group]:
    groups = []
    for number in range(draw(st.integers(1, 3))):
        task = Task(f"t{number}", "q")
        episodes = []
        for run in range(draw(st.integers(2, 3))):
            turns = draw(histories())
            verdict = draw(st.none() | st.builds(Verdict, REWARDS))
            rewards = draw(st.dictionaries(st.integers(0, len(turns) - 1), REWARDS, max_size=2))
            episodes.append(
                Episode(
                    f"{task.task_id}/{run}",
                    task,
                    tuple(turns),
                    TurnForest(turns).timelines(),
                    StopReason.COMPLETED,
                    verdict=verdict,
                    turn_rewards=rewards,
                )
            )
        groups.append(Group(task, tuple(episodes)))
    return groups


def through_trinity(groups: Sequence[Group], shuffle: random.Random) -> list[Experience]:
    """The envelopes of a batch as they reach the operator: serialised, in the order in which groups were finished."""
    payloads = []
    for number, group in enumerate(groups):
        envelopes = [pack_episode(episode, run) for run, episode in enumerate(group.episodes)]
        for envelope in envelopes:
            envelope.eid.batch, envelope.eid.task = 7, number
        payloads.append(Experience.serialize_many(envelopes))
    shuffle.shuffle(payloads)
    return [envelope for payload in payloads for envelope in Experience.deserialize_many(payload)]


def rows_of(groups: Sequence[Group], weighting: Weighting, multiple: int = 1) -> list[Experience]:
    found, runs = unpack_groups(through_trinity(groups, random.Random(0)))
    samples, _ = to_samples(found, grpo, weighting)
    rows = experiences_of(samples, runs, multiple=multiple, temperature=1.0)
    return Experience.deserialize_many(Experience.serialize_many(rows))


def local_terms(samples: Sequence[Sample]) -> list[tuple[tuple[int, ...], int, float, float]]:
    """Context, token, recorded log-probability, and weight times advantage of every token with loss."""
    terms = []
    for sample in samples:
        ids = tuple(sample.timeline.token_ids)
        for span, advantage, weight in zip(sample.timeline.spans, sample.advantages, sample.weights, strict=True):
            for place in range(span.start, span.stop if weight else span.start):
                terms.append((ids[:place], ids[place], span.logprobs[place - span.start], weight * advantage))
    return terms


def trinity_terms(rows: Sequence[Experience]) -> list[tuple[tuple[int, ...], int, float, float]]:
    terms = []
    for row in rows:
        ids = tuple(row.tokens.tolist())
        for place in range(len(ids) - row.prompt_length):
            if row.action_mask[place] and row.info["episode_id"]:
                at = row.prompt_length + place
                terms.append((ids[:at], ids[at], float(row.logprobs[place]), float(row.advantages[place]) / len(rows)))
    return terms


def weightings() -> st.SearchStrategy[Weighting]:
    aggregation: st.SearchStrategy[LossAggregation] = st.sampled_from(
        ["episode_mean", "token_mean", "turn_mean", "agent_mean", "task_mean", "constant"]
    )
    credit: st.SearchStrategy[Credit] = st.sampled_from(["once", "per_branch", "mean_branch"])
    return st.builds(Weighting, aggregation, credit, st.just(16))


@given(steps(), weightings(), st.sampled_from([1, 4]))
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_the_same_tokens_get_the_same_advantages_and_weights(
    groups: list[Group], weighting: Weighting, multiple: int
) -> None:
    expected = local_terms(to_samples(groups, grpo, weighting)[0])
    rows = rows_of(groups, weighting, multiple)
    found = trinity_terms(rows)
    assert [(context, token) for context, token, *_ in found] == [(context, token) for context, token, *_ in expected]
    assert [term[2:] for term in found] == [pytest.approx(term[2:], rel=1e-5, abs=1e-7) for term in expected]
    assert rows and len(rows) % multiple == 0


@pytest.mark.parametrize("step", golden_steps())
async def test_the_rows_of_the_golden_episodes_are_the_golden_samples(
    step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on every backbone: tests/backbone/golden_samples.py."""
    monkeypatch.setattr(operator, "post", lambda event: None)  # to the driver, which Ray would have to find
    config = replayed(tmp_path, monkeypatch, step, backbone="trinity").config
    made = SamplesOperator(config.model_dump(mode="json"), 4, "tinker")
    envelopes = through_trinity(golden_steps()[step], random.Random(1))
    rows, _ = await made.process(envelopes)
    rows = Experience.deserialize_many(Experience.serialize_many(rows))
    assert_trained([Term(*term) for term in trinity_terms(rows)], step)


LOSS_OF = {"ppo": PPOPolicyLossFn, "gspo": GSPOLossFn, "cispo": CISPOPolicyLossFn, "opmd": OPMDPolicyLossFn}


@given(steps(), weightings(), st.sampled_from(sorted(TRINITY_LOSS)), st.integers(0, 2**31))
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_trinitys_loss_over_the_rows_has_the_gradient_of_the_local_loss(
    groups: list[Group], weighting: Weighting, loss: str, seed: int
) -> None:
    """A table of logits by the last token stands in for the model."""
    config = AlgorithmConfig.model_validate({"loss": loss} | ({"clip_dual": 1.5} if loss == "ppo_clip" else {}))
    table = torch.randn(VOCABULARY, VOCABULARY, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    ours, theirs = table.clone().requires_grad_(), table.clone().requires_grad_()

    total = ours.sum() * 0.0
    for sample in to_samples(groups, grpo, weighting)[0]:
        if terms := local_terms([sample]):
            contexts, tokens, sampled, weighted = zip(*terms, strict=True)
            logprob = torch.log_softmax(ours[[context[-1] for context in contexts]], -1)[range(len(tokens)), tokens]
            row = torch.zeros(len(tokens), dtype=torch.long)
            recorded, advantage = (torch.tensor(part, dtype=torch.float64) for part in (sampled, weighted))
            total = total + LOSSES[loss](Entries(logprob, recorded, advantage, row, row), config).loss.sum()
    total.backward()

    rows = rows_of(groups, weighting)
    losses = [trinity_loss(row, theirs, config) for row in rows]
    (sum(losses) / len(losses)).backward()
    assert torch.allclose(ours.grad, theirs.grad, atol=1e-6)


def trinity_loss(row: Experience, table: torch.Tensor, config: AlgorithmConfig) -> torch.Tensor:
    """What Trinity's tinker trainer computes for one row, with the arguments that `convert` gives it."""
    given = ConversionInput(LoadedConfig(Config(astune=AstuneConfig(algorithm=config)), {}, None), {}, None)
    arguments = {}
    for key, rule in fates(OnTrinity).items():
        for place, name in rule.to.items():
            if place.startswith(LOSS_ARGS) and "rl" in rule.methods:
                arguments[place.removeprefix(LOSS_ARGS)] = CONVERSIONS[name](value_at(given.loaded.config, key), given)
    kept = {name: value for name, value in arguments.items() if value is not None}
    function = LOSS_OF[TRINITY_LOSS[config.loss]](backend="tinker", loss_agg_mode="seq-mean-token-sum", **kept)
    ids = row.tokens.long()
    logprob = torch.log_softmax(table, -1)[ids[row.prompt_length - 1 : -1], ids[row.prompt_length :]]
    mask = row.action_mask
    loss, _ = function(logprob=logprob, old_logprob=row.logprobs, action_mask=mask, advantages=row.advantages)
    assert isinstance(loss, torch.Tensor)
    return loss


def one_group(temperature: float = 1.0, rewards: Sequence[float] = (1.0, 0.0)) -> list[Group]:
    task = Task("t", "q")
    turn = Turn("a", (1, 2), (3, 4), (-1.0, -1.0), 0, "stop", temperature=temperature)
    episodes = [
        Episode(
            f"t/{run}", task, (turn,), TurnForest([turn]).timelines(), StopReason.COMPLETED, verdict=Verdict(reward)
        )
        for run, reward in enumerate(rewards)
    ]
    return [Group(task, tuple(episodes))]


def test_a_step_without_signal_still_gives_the_trainer_a_row_that_changes_nothing() -> None:
    (row,) = rows_of(one_group(rewards=(1.0, 1.0)), Weighting("episode_mean", "once", 16))
    assert row.advantages.tolist() == [0.0] and row.action_mask.tolist() == [True]


def test_rows_know_the_run_the_step_and_the_reward_of_their_episode() -> None:
    rows = rows_of(one_group(), Weighting("episode_mean", "once", 16))
    assert [(row.eid.batch, row.eid.task, row.eid.run, row.eid.step, row.reward) for row in rows] == [
        (7, 0, 0, 0, 1.0),
        (7, 0, 1, 0, 0.0),
    ]


def test_tokens_sampled_at_another_temperature_are_refused_and_not_trained_wrongly() -> None:
    with pytest.raises(TrainingError, match=r"agent 'a' sampled at temperature 0\.7"):
        rows_of(one_group(temperature=0.7), Weighting("episode_mean", "once", 16))


def test_an_envelope_carries_its_episode_whole() -> None:
    (group,) = one_group()
    envelope = pack_episode(group.episodes[0], 0)
    envelope.eid = EID(batch="7", task="0", run=0)
    (found,), _ = unpack_groups([Experience.deserialize(envelope.serialize())])
    assert found.episodes == (group.episodes[0],)

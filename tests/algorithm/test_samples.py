from __future__ import annotations

import math
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from astune.algorithm import Receipt, Weighting, split_samples, to_samples, without_lost
from astune.algorithm.advantage import AdvantageFunction, dr_grpo, grpo
from astune.algorithm.aggregation import LossAggregation
from astune.context_tracker.merge import TurnForest
from astune.errors import TrainingError
from astune.types import Episode, Group, Span, StopReason, Task, Timeline, Turn, Verdict
from tests.rows import each_row

TASK = Task("t", "q")


def episode(name: str, reward: float | None, sampled: int, trainable: bool = True) -> Episode:
    """One turn of `sampled` tokens behind a prompt of two."""
    ids, logprobs = tuple(range(sampled)), (-1.0,) * sampled
    turn = Turn("a", (90, 91), ids, logprobs, 0, "stop", excluded=None if trainable else "frozen")
    line = Timeline("a", (90, 91, *ids), (Span(0, 2, 2 + sampled, 0, 1.0, trainable, logprobs),))
    verdict = None if reward is None else Verdict(reward)
    return Episode(name, TASK, (turn,), (line,), StopReason.COMPLETED, verdict=verdict)


EPISODES = st.lists(
    st.tuples(st.one_of(st.none(), st.sampled_from([0.0, 0.5, 1.0])), st.integers(1, 9), st.booleans()), max_size=6
)


@given(st.lists(EPISODES, max_size=5), st.sampled_from(get_args(LossAggregation)))
def test_the_receipt_accounts_for_every_sampled_token(rows: list, aggregation: LossAggregation) -> None:
    groups = [
        Group(TASK, tuple(episode(f"{g}/{i}", *row) for i, row in enumerate(group))) for g, group in enumerate(rows)
    ]
    samples, receipt = to_samples(groups, grpo, Weighting(aggregation))
    assert receipt.sampled == sum(row[1] for group in rows for row in group)
    assert receipt.sampled == receipt.trained + sum(receipt.dropped.values())
    assert receipt.trained == sum(sample.timeline.trained_tokens for sample in samples)
    assert receipt.trained == sum(receipt.trained_by_version.values()) == receipt.loss_terms
    if aggregation == "constant":
        assert receipt.weight_sum == pytest.approx(receipt.trained / 1024 / max(1, len(samples)))
    else:
        assert receipt.weight_sum == pytest.approx(1.0 if samples else 0.0)
        for part in split_samples(samples, 2, aggregation):
            assert math.fsum(sample.weight_sum for sample in part) == pytest.approx(1.0)


def test_an_episode_without_verdict_does_not_count_as_zero() -> None:
    group = Group(TASK, (episode("a", 1.0, 3), episode("b", 0.0, 3), episode("c", None, 3)))
    samples, receipt = to_samples([group], dr_grpo)
    assert {sample.episode_id: sample.advantages for sample in samples} == {"a": (0.5,), "b": (-0.5,)}
    assert receipt.dropped == {"unjudged": 3}


def test_a_group_of_equal_rewards_is_left_out_and_counted() -> None:
    groups = [
        Group(TASK, (episode("a", 1.0, 3), episode("b", 1.0, 4))),
        Group(TASK, (episode("c", 1.0, 1), episode("d", 0.0, 1))),
    ]
    samples, receipt = to_samples(groups, grpo)
    assert [sample.episode_id for sample in samples] == ["c", "d"]
    assert (receipt.groups_used, receipt.groups_without_signal, receipt.dropped) == (1, 1, {"no_signal": 7})


@pytest.mark.fault(
    "What a run says",
    "An agent asks greedily, and its attempts are rewarded differently",
    "Its tokens are left out as greedy, not for want of a difference",
)
def test_tokens_drawn_greedily_are_left_out_as_such_whatever_their_rewards_are() -> None:
    def greedy(name: str, reward: float | None) -> Episode:
        turn = Turn("a", (1,), (2, 3), (-1.0, -1.0), 0, "stop", temperature=0.0)
        verdict = None if reward is None else Verdict(reward)
        return Episode(name, TASK, (turn,), TurnForest((turn,)).timelines(), StopReason.COMPLETED, verdict=verdict)

    for rewards in ((0.0, 1.0), (1.0, 1.0)):
        samples, receipt = to_samples([Group(TASK, tuple(greedy(f"{reward}", reward) for reward in rewards))], grpo)
        assert (samples, receipt.dropped) == ([], {"greedy": 4})
    _, receipt = to_samples([Group(TASK, (greedy("a", None), greedy("b", 1.0)))], grpo)
    assert receipt.dropped == {"unjudged": 2, "greedy": 2}


@each_row(
    ("aggregation", "long", "short"),
    [
        (None, 1 / 16, 1 / 4),
        ("episode_mean", 1 / 16, 1 / 4),
        ("turn_mean", 1 / 16, 1 / 4),
        ("token_mean", 1 / 10, 1 / 10),
        ("task_mean", 1 / 10, 1 / 10),
        ("constant", 1 / 2048, 1 / 2048),
    ],
)
def test_a_long_episode_weighs_no_more_than_a_short_one_unless_asked(
    aggregation: LossAggregation | None, long: float, short: float
) -> None:
    group = Group(TASK, (episode("long", 1.0, 8), episode("short", 0.0, 2)))
    weighting = None if aggregation is None else Weighting(aggregation)
    samples, _ = to_samples([group], grpo, weighting)
    assert {s.episode_id: s.weights for s in samples} == {"long": (long,), "short": (short,)}


def test_metrics_of_a_receipt_name_the_age_of_what_was_trained() -> None:
    receipt = Receipt(sampled=9, trained=4, trained_by_version={3: 3, 1: 1}, dropped={"greedy": 5}, forks={"branch": 2})
    found = receipt.metrics(policy_version=3)
    assert (found["policy_age/mean"], found["policy_age/max"]) == (0.5, 2.0)
    assert (found["tokens/dropped_greedy"], found["forks/branch"]) == (5.0, 2.0)


@given(st.lists(st.floats(-5, 5), min_size=1, max_size=10))
def test_advantages_are_centred(rewards: list[float]) -> None:
    for estimator in (grpo, dr_grpo):
        assert sum(estimator(rewards)) == pytest.approx(0.0, abs=1e-6)


@pytest.mark.fault(
    "Runs and resuming",
    "a plug-in that estimates advantages raises, or gives something else than a number for each reward",
    "the run stops and names the plug-in and the task; the steps done are saved",
)
@each_row(
    "estimator",
    [lambda r: 1 / 0, lambda r: None, lambda r: ["x"] * len(r), lambda r: [float("nan")] * len(r), lambda r: r[1:]],
    ids=["raises", "nothing", "texts", "nan", "too few"],
)
def test_an_estimator_that_does_not_give_numbers_is_named(estimator: AdvantageFunction) -> None:
    group = Group(Task("t", "?"), (episode("a", 1.0, 3), episode("b", 0.0, 3)))
    with pytest.raises(TrainingError, match=r"astune\.algorithm\.advantage: .*lambda.* of task 't'"):
        to_samples([group], estimator)


def test_tokens_of_skipped_updates_count_as_left_out() -> None:
    groups = [Group(TASK, (episode("a", 1.0, 3), episode("b", 0.0, 4), episode("c", 1.0, 5, trainable=False)))]
    samples, receipt = to_samples(groups, grpo)
    first, second = split_samples(samples, 2, "episode_mean")
    half = without_lost(receipt, groups, {"skipped_update": first})
    assert (half.trained, half.dropped, half.weight_sum) == (4, {"frozen": 5, "skipped_update": 3}, receipt.weight_sum)
    assert half.trained_by_version == {0: 4} and half.loss_terms == 4
    none = without_lost(receipt, groups, {"skipped_update": [*first, *second]})
    assert (none.trained, none.trained_by_version, none.loss_terms, none.weight_sum) == (0, {}, 0, 0.0)
    for each in (half, none):
        assert each.sampled == each.trained + sum(each.dropped.values())
    assert without_lost(receipt, groups, {"skipped_update": []}) is receipt


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=9))
def test_advantages_of_any_finite_rewards_are_finite(rewards: list[float]) -> None:
    assert all(map(math.isfinite, dr_grpo(rewards)))
    assert all(abs(value) <= len(rewards) for value in grpo(rewards))


def test_huge_rewards_are_compared_as_others_are() -> None:
    assert grpo([1e308, -1e308]) == pytest.approx([1.0, -1.0])
    assert grpo([1.7e308] * 8) == [0.0] * 8

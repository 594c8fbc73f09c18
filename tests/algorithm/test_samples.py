from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from astune.algorithm import split_samples, to_samples
from astune.algorithm.advantage import dr_grpo, grpo
from astune.errors import TrainingError
from astune.types import Episode, Group, Span, StopReason, Task, Timeline, Turn, Verdict

TASK = Task("t", "q")


def episode(name: str, reward: float | None, sampled: int, trainable: bool = True) -> Episode:
    """One turn of `sampled` tokens behind a prompt of two."""
    ids, logprobs = tuple(range(sampled)), (-1.0,) * sampled
    turn = Turn("a", (90, 91), ids, logprobs, 0, "stop", trainable=trainable)
    mask = (False, False) + (trainable,) * sampled
    line = Timeline("a", (90, 91, *ids), mask, (0.0, 0.0, *logprobs), (Span(0, 2, 2 + sampled, 0, 1.0, trainable),))
    verdict = None if reward is None else Verdict(reward)
    return Episode(name, TASK, (turn,), (line,), StopReason.COMPLETED, verdict=verdict)


EPISODES = st.lists(
    st.tuples(st.one_of(st.none(), st.sampled_from([0.0, 0.5, 1.0])), st.integers(1, 9), st.booleans()), max_size=6
)


@given(st.lists(EPISODES, max_size=5), st.sampled_from(["token_mean", "episode_mean"]))
def test_the_receipt_accounts_for_every_sampled_token(rows: list, aggregation: str) -> None:
    groups = [
        Group(TASK, tuple(episode(f"{g}/{i}", *row) for i, row in enumerate(group))) for g, group in enumerate(rows)
    ]
    samples, receipt = to_samples(groups, grpo, aggregation)
    assert receipt.sampled == sum(row[1] for group in rows for row in group)
    assert receipt.sampled == receipt.trained + sum(receipt.dropped.values())
    assert receipt.trained == sum(sample.timeline.trained_tokens for sample in samples)
    assert receipt.weight_sum == pytest.approx(1.0 if samples else 0.0)
    for part in split_samples(samples, 2):
        assert math.fsum(s.weight * s.timeline.trained_tokens for s in part) == pytest.approx(1.0)


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


def test_weights_of_a_long_and_a_short_episode() -> None:
    group = Group(TASK, (episode("long", 1.0, 8), episode("short", 0.0, 2)))
    by_token = {s.episode_id: s.weight for s in to_samples([group], grpo, "token_mean")[0]}
    by_episode = {s.episode_id: s.weight for s in to_samples([group], grpo, "episode_mean")[0]}
    assert by_token == {"long": 0.1, "short": 0.1}
    assert by_episode == {"long": 1 / 16, "short": 1 / 4}


@given(st.lists(st.floats(-5, 5), min_size=1, max_size=10))
def test_advantages_are_centred(rewards: list[float]) -> None:
    for estimator in (grpo, dr_grpo):
        assert sum(estimator(rewards)) == pytest.approx(0.0, abs=1e-6)


def test_an_estimator_that_gives_the_wrong_number_of_values_is_named() -> None:
    def broken(rewards: object) -> list[float]:
        return [1.0]

    group = Group(TASK, (episode("a", 1.0, 3), episode("b", 0.0, 3)))
    with pytest.raises(TrainingError, match=r"broken.*2 rewards of task 't'"):
        to_samples([group], broken)

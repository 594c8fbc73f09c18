from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from astune.algorithm import BatchRules, check_step, to_samples
from astune.algorithm.advantage import dr_grpo
from astune.algorithm.batch_rules import choose_balanced, efficiency, is_right, overlong
from astune.context_tracker.merge import TurnForest
from astune.types import Episode, Group, StopReason, Task, Turn, Verdict

TASK = Task("t", "q")
ATTEMPTS = st.lists(
    st.tuples(st.sampled_from([None, 0.0, 0.4, 1.0]), st.integers(1, 4), st.integers(1, 12)), min_size=1, max_size=8
)


def attempt(number: int, reward: float | None, turns: int, tokens: int, **given: object) -> Episode:
    made = [Turn("a", (9, n), range(tokens), [-1.0] * tokens, 0, "stop") for n in range(turns)]
    verdict = None if reward is None else Verdict(reward)
    lines = TurnForest(made).timelines()
    return Episode(f"e{number}", TASK, tuple(made), lines, StopReason.COMPLETED, verdict=verdict, **given)


def group_of(attempts: list[tuple[float | None, int, int]]) -> Group:
    return Group(TASK, tuple(attempt(number, *each) for number, each in enumerate(attempts)))


def rewards(group: Group) -> list[float | None]:
    return [episode.reward for episode in group.episodes]


def test_rules_that_are_off_change_nothing() -> None:
    group = group_of([(1.0, 1, 3), (0.0, 2, 12), (None, 1, 1)])
    ruled = BatchRules()([group])
    assert ruled.groups[0] is group and (ruled.left_out, ruled.metrics) == ([], {})


@given(st.integers(0, 40), st.integers(0, 60), st.integers(1, 20))
def test_the_penalty_is_dapos_line_between_two_limits(prompt: int, length: int, buffer: int) -> None:
    """Equation 13 of the paper for either limit; the nearer counts."""
    most, context = 40, 70

    def soft(length: int, most: int) -> float:
        return float(np.clip((length - (most - buffer)) / buffer, 0.0, 1.0))

    turn = Turn("a", (1,) * prompt, (2,) * length, (0.0,) * length, 0, "stop")
    expected = max(soft(length, most), soft(prompt + length, context))
    assert overlong(turn, buffer, most, context) == pytest.approx(expected)
    assert overlong(turn, buffer, most, None) == pytest.approx(soft(length, most))


def test_an_answer_that_was_cut_off_costs_all_of_it_and_agents_with_own_rewards_pay_too() -> None:
    cut = Turn("a", (1,), (2,), (0.0,), 0, "length")
    episode = Episode("e", TASK, (cut,), (), StopReason.COMPLETED, verdict=Verdict(1.0), agent_rewards={"b": 0.5})
    group = Group(TASK, (episode, attempt(1, 1.0, 2, 7), attempt(2, None, 1, 10)))
    ruled = BatchRules(max_tokens=10, overlong_buffer=4, overlong_penalty=2.0)([group])
    assert rewards(ruled.groups[0]) == [-1.0, 0.5, None]
    assert ruled.groups[0].episodes[0].agent_rewards == {"b": -1.5}
    assert ruled.metrics == {"overlong/episodes": 2.0, "overlong/penalty_mean": pytest.approx(1.25)}
    assert rewards(group) == [1.0, 1.0, None]  # what the judge said stays


@given(ATTEMPTS, st.integers(0, 99))
def test_balance_keeps_about_as_many_right_as_wrong(attempts: list[tuple[float | None, int, int]], seed: int) -> None:
    group = group_of(attempts)
    kept = choose_balanced(group, str(seed))
    assert kept == choose_balanced(group, str(seed))
    kinds = [is_right(episode) for episode in group.episodes]
    fewer = min(kinds.count(True), kinds.count(False))
    found = [kinds[place] for place in kept]
    assert found.count(None) == kinds.count(None)
    assert found.count(False) == min(kinds.count(False), fewer + 1)
    assert found.count(True) == min(kinds.count(True), fewer + 2)


def test_which_attempts_are_kept_is_drawn_and_not_always_the_first() -> None:
    group = group_of([(1.0, 1, 1)] + [(0.0, 1, 1)] * 7)
    assert len({tuple(sorted(choose_balanced(group, str(seed)))) for seed in range(20)}) > 5


@given(st.lists(ATTEMPTS, max_size=3), st.booleans(), st.integers(0, 3), st.sampled_from([0.0, 0.1]))
def test_the_receipt_accounts_for_what_the_rules_leave_out(step, balance: bool, buffer: int, bonus: float) -> None:
    groups = [group_of(attempts) for attempts in step]
    named = [
        Group(group.task, tuple(Episode(**{**vars(e), "episode_id": f"{n}/{e.episode_id}"}) for e in group.episodes))
        for n, group in enumerate(groups)
    ]
    rules = BatchRules(12, None, buffer, 1.0, bonus, balance)
    ruled = rules(named)
    samples, receipt = to_samples(ruled.groups, dr_grpo, None, ruled.left_out)
    check_step(named, samples, receipt)
    out = [episode for _, episode in ruled.left_out]
    assert receipt.dropped.get("balanced", 0) == sum(len(t.output_ids) for episode in out for t in episode.turns)
    assert bool(out) <= balance and ruled.metrics.get("balance/left_out", 0.0) == len(out)


@given(ATTEMPTS)
def test_right_attempts_are_ranked_by_their_turns_and_the_shifts_sum_to_0(attempts) -> None:
    group = group_of(attempts)
    shifts = efficiency(group, 0.1)
    right = [place for place, episode in enumerate(group.episodes) if is_right(episode)]
    assert all(not shifts[place] for place in range(len(shifts)) if place not in right)
    assert math.fsum(shifts) == pytest.approx(0.0, abs=1e-12)
    assert all(-0.1 - 1e-12 <= shift <= 0.1 + 1e-12 for shift in shifts)
    turns = [len(group.episodes[place].turns) for place in right]
    if len(right) > 1:
        order = np.argsort(turns, kind="stable")
        ranks = np.empty(len(right))
        ranks[order] = np.arange(len(right))
        mean = [np.mean(ranks[np.array(turns) == own]) for own in turns]  # tie-averaged
        expected = 0.2 / (len(right) - 1) * (np.mean(ranks) - np.array(mean))
        assert [shifts[place] for place in right] == pytest.approx(list(expected))


def test_the_rules_work_together_on_those_that_are_kept() -> None:
    group = group_of([(1.0, 1, 2), (1.0, 3, 2), (0.0, 1, 9)])
    ruled = BatchRules(max_tokens=10, overlong_buffer=4, efficiency_bonus=0.1, balance=True)([group])
    assert rewards(ruled.groups[0]) == pytest.approx([1.1, 0.9, -0.75])
    assert ruled.metrics.keys() == {
        "balance/left_out",
        "overlong/episodes",
        "overlong/penalty_mean",
        "efficiency/ranked",
    }


def test_a_verdict_says_what_is_right_and_where_it_does_not_the_reward() -> None:
    low = Episode("e", TASK, (), (), StopReason.COMPLETED, verdict=Verdict(0.1, passed=True))
    assert is_right(low) is True and is_right(attempt(0, 0.6, 1, 1)) is True
    assert is_right(attempt(0, 0.5, 1, 1)) is False and is_right(attempt(0, None, 1, 1)) is None

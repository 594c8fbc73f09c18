"""What each agent of an episode is paid, and that each counts the same: what holds of any step, and when it matters."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from typing import get_args

import pytest
from agent_rewards import measure
from hypothesis import given
from hypothesis import strategies as st

from astune.algorithm import ADVANTAGES, BatchRules, Weighting, check_step, load_estimator, to_samples
from astune.algorithm.advantage import dr_grpo
from astune.algorithm.batch_rules import AgentReward, Ruled, share_out
from astune.config.schema import AlgorithmConfig
from astune.context_tracker.merge import TurnForest
from astune.types import Episode, Group, StopReason, Task, Turn, Verdict
from tests.algorithm.test_credit import CREDITS, groups

TASK = Task("t", "?")
WAYS: tuple[AgentReward, ...] = get_args(AgentReward)[:-1]
"""All but leave_one_out, which needs attempts that are played again."""


def episode(reward: float | None, own: dict[str, float], *frozen: str, tokens: int = 1) -> Episode:
    """One turn of each agent of `own` and of `frozen`."""
    turns = [
        Turn(agent, (1,), (2,) * tokens, (-1.0,) * tokens, 0, "stop", excluded="frozen" if agent in frozen else None)
        for agent in [*own, *frozen]
    ]
    verdict = None if reward is None else Verdict(reward)
    lines = TurnForest(turns).timelines()
    return Episode("e", TASK, tuple(turns), lines, StopReason.COMPLETED, verdict=verdict, agent_rewards=own)


def paid(how: AgentReward, *given: Episode) -> list[dict[str, float]]:
    return [dict(each.agent_rewards) for each in share_out(Group(TASK, given), how).episodes]


@given(st.lists(groups(), max_size=3))
def test_what_is_shared_out_changes_no_verdict_and_differences_sum_to_0(step: list[Group]) -> None:
    for how in WAYS:
        for before, after in zip(step, (share_out(group, how) for group in step), strict=True):
            for one, other in zip(before.episodes, after.episodes, strict=True):
                assert replace(other, agent_rewards=one.agent_rewards) == one
                team = {turn.agent for turn in one.turns if turn.trainable}
                if one.verdict is None or how == "own" or (how == "difference" and len(team) < 2):
                    assert other == one
                elif how == "same":
                    assert other.agent_rewards == {}
                else:
                    assert math.fsum(other.agent_rewards[agent] for agent in team) == pytest.approx(0.0, abs=1e-8)


def test_a_difference_that_is_rounding_is_none_and_who_is_not_trained_is_not_of_the_team() -> None:
    told, silent = episode(0.0, {"a": 0.1, "b": 0.2, "c": 0.3}), episode(0.1, {})
    same = replace(silent, turns=told.turns, timelines=told.timelines)
    (first, second) = paid("difference", told, same)
    assert first["b"] == 0.0 and first["a"] == pytest.approx(-0.1)
    assert second == {"a": 0.0, "b": 0.0, "c": 0.0}
    assert paid("difference", episode(1.0, {"a": 0.5}, "rival")) == [{"a": 0.5}]
    assert paid("difference", episode(None, {"a": 1.0, "b": 2.0})) == [{"a": 1.0, "b": 2.0}]


def test_an_agent_gains_what_its_answers_are_worth_beside_others_of_its_own() -> None:
    known = replace(episode(1.0, {"a": 5.0, "b": 0.0}), metrics={"redrawn/a": 0.25, "redrawn/b": 1.0 + 1e-17})
    (group,) = (
        ruled := BatchRules(agent_reward="leave_one_out")([Group(TASK, (known, episode(1.0, {"a": 0.0})))])
    ).groups
    assert [dict(each.agent_rewards) for each in group.episodes] == [{"a": 0.75, "b": 0.0}]
    assert [reason for reason, _ in ruled.left_out] == ["not_replayed"]
    others = Group(TASK, (episode(None, {"a": 0.0}), episode(1.0, {}, "rival")))
    assert BatchRules(agent_reward="leave_one_out")([others]) == Ruled(
        [Group(TASK, tuple(replace(each, agent_rewards={}) if each.verdict else each for each in others.episodes))]
    )


def test_what_an_episode_costs_besides_all_its_agents_pay() -> None:
    rules = BatchRules(max_tokens=4, overlong_buffer=2, overlong_penalty=1.0, agent_reward="difference")
    (group,) = rules([Group(TASK, (episode(0.0, {"a": 1.0, "b": 0.0}, tokens=4),))]).groups
    assert group.episodes[0].agent_rewards == {"a": -0.5, "b": -1.5}


@given(st.lists(groups(), max_size=3), st.sampled_from(CREDITS))
def test_every_agent_of_every_episode_weighs_the_same(step: list[Group], credit: str) -> None:
    samples, receipt = to_samples(step, dr_grpo, Weighting("agent_mean", credit))  # type: ignore[arg-type]
    check_step(step, samples, receipt)
    sums: Counter[tuple[str, str]] = Counter()
    for sample in samples:
        sums[sample.episode_id, sample.timeline.agent] += sample.weight_sum  # type: ignore[assignment]
    assert all(each == pytest.approx(1.0 / len(sums)) for each in sums.values())
    assert math.fsum(sums.values()) == pytest.approx(1.0 if sums else 0.0)


@given(st.lists(groups(), max_size=3), st.sampled_from(sorted(ADVANTAGES)), st.sampled_from(CREDITS))
def test_one_agent_alone_is_unchanged_to_the_last_digit(step: list[Group], advantage: str, credit: str) -> None:
    alone = [replace(group, episodes=tuple(map(one_agent, group.episodes)), task=group.task) for group in step]
    estimator = load_estimator(AlgorithmConfig(advantage=advantage))
    expected = to_samples(alone, estimator, Weighting("episode_mean", credit))  # type: ignore[arg-type]
    for how in WAYS:
        shared = BatchRules(agent_reward=how)(alone).groups
        assert to_samples(shared, estimator, Weighting("agent_mean", credit)) == expected  # type: ignore[arg-type]


def one_agent(each: Episode) -> Episode:
    turns = tuple(replace(turn, agent="a") for turn in each.turns)
    return replace(each, turns=turns, timelines=TurnForest(turns).timelines(), agent_rewards={})


def test_when_it_matters_what_agents_are_paid() -> None:
    """The chance of the better deed after 40 steps, a half before: `benchmarks/agent_rewards.py`."""
    found = {
        (world, how): measure(world, 40, 2, reward=how)
        for world, ways in {"dilemma": ("own", "same"), "jobs": WAYS[:2], "luck": ("own", "difference")}.items()
        for how in ways
    }
    blind = {how: measure("silent", 40, 2, reward=how, attempts=n) for how, n in (("same", 32), ("leave_one_out", 8))}
    assert blind["leave_one_out"] > blind["same"] + 0.2
    assert found["dilemma", "same"] > 0.8 and found["dilemma", "own"] < 0.4
    assert found["jobs", "own"] > found["jobs", "same"] + 0.08
    assert found["luck", "difference"] > found["luck", "own"] + 0.2


def test_when_it_matters_what_counts_the_same() -> None:
    found = {each: measure("plan", 40, 2, "planner", aggregation=each) for each in ("token_mean", "agent_mean")}
    assert found["agent_mean"] > found["token_mean"] + 0.2

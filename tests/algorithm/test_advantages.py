"""Estimators against references in double precision, and what must hold of each."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from astune.algorithm import ADVANTAGES, Advantage, StepEstimator, check_step, load_estimator, to_samples
from astune.algorithm.advantage import dr_grpo, rloo, rloo_clamped
from astune.algorithm.credit import credit_groups, observe
from astune.algorithm.step_advantage import OUTCOMES, Rewards, RunningMean, as_estimator
from astune.config.schema import AlgorithmConfig
from astune.context_tracker.merge import TurnForest
from astune.errors import RunFolderError, TrainingError
from astune.support.statistics import NOISE
from astune.types import Episode, Group, StopReason, Task, Turn, Verdict
from tests.rows import each_row

TASK = Task("t", "q")
REWARDS = st.lists(st.floats(-3, 3), min_size=2, max_size=6)
STEPS = st.lists(st.lists(st.tuples(st.floats(-3, 3), st.integers(1, 9)), min_size=1, max_size=5), max_size=4)
STEP_WIDE = ("reinforce_pp", "reinforce_pp_baseline")


def rewards_of(step: Sequence[Sequence[tuple[float, int]]]) -> list[Rewards]:
    return [Rewards(TASK, tuple(r for r, _ in group), tuple(n for _, n in group)) for group in step]


def estimator(name: str, **keys: object) -> StepEstimator:
    return load_estimator(AlgorithmConfig(advantage=name, **keys))


def episode(task: Task, name: str, reward: float | None, *turns: int, **given: object) -> Episode:
    """Turns of so many tokens, each of which goes on from the one before."""
    made: list[Turn] = []
    context: tuple[int, ...] = (1, 2)
    for number, tokens in enumerate(turns):
        output = tuple(range(10 * number, 10 * number + tokens))
        made.append(Turn("a", context, output, [-1.0] * tokens, 0, "stop"))
        context = (*context, *output, 99)
    verdict = None if reward is None else Verdict(reward)
    lines = TurnForest(made).timelines()
    return Episode(f"{task.task_id}/{name}", task, tuple(made), lines, StopReason.COMPLETED, verdict=verdict, **given)


@given(REWARDS)
def test_rloo_is_the_reward_less_the_mean_of_the_others(rewards: list[float]) -> None:
    others = [np.mean(np.delete(rewards, i)) for i in range(len(rewards))]
    rounding = 2 * NOISE * max(1.0, 5.0 + max(map(abs, rewards)))  # what differs by less is equal
    assert rloo(rewards) == pytest.approx(list(np.array(rewards) - others), abs=rounding)
    assert math.fsum(rloo(rewards)) == pytest.approx(0.0, abs=1e-9)
    assert rloo([r + 5.0 for r in rewards]) == pytest.approx(rloo(rewards), abs=rounding)


def test_a_difference_of_rounding_is_none_and_a_small_one_is_one() -> None:
    assert rloo([0.1 + 0.2, 0.3]) == rloo([5.0, 5.0 + 1e-9]) == [0.0, 0.0]
    assert rloo([0.0, 1e-9]) == pytest.approx([-1e-9, 1e-9])


def test_a_lone_attempt_has_nothing_to_be_compared_with() -> None:
    assert rloo([3.0]) == rloo_clamped([3.0]) == [0.0]
    assert estimator("step_wise_grpo")(OUTCOMES, [Rewards(TASK, (3.0,))]) == [[0.0]]


@given(st.lists(st.floats(0, 1), min_size=2, max_size=6))
def test_the_clamp_encourages_nothing_wrong_and_discourages_nothing_right(rewards: list[float]) -> None:
    for reward, plain, clamped in zip(rewards, rloo(rewards), rloo_clamped(rewards), strict=True):
        assert clamped == (min(plain, 0.0) if reward <= 0.5 else max(plain, 0.0))


@given(STEPS, st.sampled_from(STEP_WIDE))
def test_reinforce_pp_has_mean_0_and_spread_1_over_the_tokens_of_the_step(
    step: list[list[tuple[float, int]]], name: str
) -> None:
    base = [[r - np.mean([x for x, _ in group]) * (name != "reinforce_pp") for r, _ in group] for group in step]
    tokens = np.concatenate([np.repeat(r, [n for _, n in g]) for r, g in zip(base, step, strict=True)] or [[]])
    found = estimator(name)(OUTCOMES, rewards_of(step))
    flat = [value for group in found for value in group]
    if not len(tokens) or np.std(tokens) < 1e-5:
        assert flat == pytest.approx([0.0] * len(flat), abs=1e-2) or np.std(tokens) > 1e-7
        return
    expected = (np.concatenate(base) - np.mean(tokens)) / np.std(tokens)
    assert flat == pytest.approx(list(expected), abs=1e-6)
    spread = np.concatenate([np.repeat(a, [n for _, n in g]) for a, g in zip(found, step, strict=True)])
    assert (np.mean(spread), np.std(spread)) == pytest.approx((0.0, 1.0), abs=1e-6)


@given(STEPS, st.sampled_from(sorted(ADVANTAGES)), st.randoms(use_true_random=False))
def test_the_order_of_groups_and_of_attempts_does_not_matter(step, name, random) -> None:
    groups = [list(enumerate(group)) for group in step]
    plain = estimator(name)(OUTCOMES, rewards_of(step))
    order = random.sample(range(len(groups)), len(groups))
    for group in groups:
        random.shuffle(group)
    found = estimator(name)(OUTCOMES, rewards_of([[each for _, each in groups[number]] for number in order]))
    for number, values in zip(order, found, strict=True):
        wanted = [plain[number][place] for place, _ in groups[number]]
        assert values == pytest.approx(wanted, abs=1e-6)


@given(REWARDS, st.integers(1, 5))
def test_step_wise_grpo_is_trinitys_formula(rewards: list[float], turns: int) -> None:
    group = [Rewards(TASK, tuple(rewards), (7,) * len(rewards), (turns,) * len(rewards))]
    std = np.std(rewards, ddof=1)
    expected = (np.array(rewards) - np.mean(rewards)) / (std + 1e-6)
    (plain,) = estimator("step_wise_grpo")(OUTCOMES, group)
    (normed,) = estimator("step_wise_grpo", step_norm=True)(OUTCOMES, group)
    if std > 2e-6:
        assert plain == pytest.approx(list(expected), abs=1e-6)
        assert normed == pytest.approx(list(expected / turns), abs=1e-6)
    elif std < 5e-7:
        assert not any(plain)


def test_the_tokens_and_turns_of_an_episode_are_those_that_could_be_trained() -> None:
    short, long = episode(TASK, "0", 1.0, 3), episode(TASK, "1", 0.0, 4, 5)
    frozen = Turn("b", (5,), (6, 7), (-1.0, -1.0), 0, "stop", excluded="frozen")
    turns = (*long.turns, frozen)
    mixed = Episode("t/2", TASK, turns, TurnForest(turns).timelines(), StopReason.COMPLETED, verdict=Verdict(0.0))
    seen: list[Rewards] = []

    class Looks(StepEstimator):
        def __call__(self, population: str, groups: Sequence[Rewards]) -> list[list[float]]:
            seen.extend(groups)
            return [list(group.values) for group in groups]

    credit_groups([Group(TASK, (short, mixed))], Looks(AlgorithmConfig()))
    assert seen == [Rewards(TASK, (1.0, 0.0), (3, 9), (1, 2))]


def test_agents_and_turns_with_rewards_of_their_own_are_normalised_among_themselves() -> None:
    others = [Task(name, "q") for name in "uv"]
    groups = [
        Group(task, (episode(task, "0", 0.0, 3, 3, turn_rewards={1: float(n)}, agent_rewards={"a": 5.0 * n}),))
        for n, task in enumerate(others)
    ]
    ((first,), (second,)) = credit_groups(groups, estimator("reinforce_pp"))
    assert (first.outcome, second.outcome) == (0.0, 0.0)
    assert (first.of_agent, second.of_agent) == ({"a": -1.0}, {"a": 1.0})
    mean, std = 0.25, math.sqrt(3) / 4
    assert list(first.of_turn.values()) == pytest.approx([-mean / std] * 2)
    assert list(second.of_turn.values()) == pytest.approx([-mean / std, (1 - mean) / std])
    samples, receipt = to_samples(groups, estimator("reinforce_pp"))
    check_step(groups, samples, receipt)
    assert len(samples) == 2


@each_row("name", sorted(ADVANTAGES))
def test_a_plain_function_and_every_builtin_name_give_finite_advantages_of_huge_rewards(name: str) -> None:
    found = estimator(name)(OUTCOMES, [Rewards(TASK, (1e30, -1e30, 0.0))])
    assert all(map(math.isfinite, found[0])) and len(found[0]) == 3


def test_the_running_mean_is_that_of_earlier_steps_of_the_kind() -> None:
    maths, code = Task("m", "q", metadata={"topic": "maths"}), Task("c", "q", metadata={"topic": "code"})
    running = estimator("running_mean", baseline_by="topic", baseline_decay=0.5)

    def step(*attempts: tuple[Task, float]) -> list[float]:
        groups = [Group(task, (episode(task, str(n), reward, 2),)) for n, (task, reward) in enumerate(attempts)]
        advantages = [credit.outcome for credited in credit_groups(groups, running) for credit in credited]
        assert advantages == [c.outcome for credited in credit_groups(groups, running) for c in credited]
        observe(running, groups)
        return advantages

    assert step((maths, 1.0), (maths, 0.0), (code, 0.2)) == [1.0, -1.0, 0.0]  # the first step compares within itself
    assert step((maths, 1.0), (code, 0.2)) == pytest.approx([1.0 - 0.5, 0.2 - 0.2])
    mean = (0.25 * 0.5 + 0.5 * 1.0) / 0.75
    assert step((maths, 0.3)) == pytest.approx([0.3 - mean])


def test_the_running_mean_goes_on_from_what_it_saved_bit_for_bit(tmp_path: Path) -> None:
    running = estimator("running_mean")
    tasks = [Task("g", "q", env_type="game"), Task("n", "q")]
    for reward in (0.1, 0.7, 1 / 3):
        running.observe({OUTCOMES: [Rewards(task, (reward, reward / 7)) for task in tasks], "agent ü": []})
    running.save(tmp_path)
    other = estimator("running_mean")
    other.load(tmp_path)
    asked = [Rewards(task, (0.2, 0.9)) for task in tasks]
    assert other(OUTCOMES, asked) == running(OUTCOMES, asked) != estimator("running_mean")(OUTCOMES, asked)
    with pytest.raises(RunFolderError, match="running_mean"):
        other.load(tmp_path / "none")


def test_a_task_without_the_column_of_its_kind_is_named() -> None:
    running = RunningMean(AlgorithmConfig(baseline_by="topic"))
    with pytest.raises(TrainingError, match=r"baseline_by: task 't' has no column 'topic'.*it has none"):
        running(OUTCOMES, [Rewards(TASK, (1.0,))])


def test_an_estimator_of_steps_that_gives_too_few_numbers_is_named() -> None:
    class Broken(StepEstimator):
        def __call__(self, population: str, groups: Sequence[Rewards]) -> list[list[float]]:
            return [[0.0] for _ in groups]

    group = Group(TASK, (episode(TASK, "0", 1.0, 2), episode(TASK, "1", 0.0, 2)))
    with pytest.raises(TrainingError, match=r"Broken.* for the rewards 'outcome' of 1 groups"):
        to_samples([group], Broken(AlgorithmConfig()))


@given(STEPS)
def test_a_function_of_one_group_is_asked_group_by_group(step: list[list[tuple[float, int]]]) -> None:
    lifted: Advantage = as_estimator(dr_grpo)
    groups = rewards_of(step)
    assert lifted(OUTCOMES, groups) == [dr_grpo(group.values) for group in groups]


NOISY = st.tuples(st.floats(1e-3, 1e9), st.lists(st.integers(-4, 4), min_size=2, max_size=9), st.booleans())


@pytest.mark.fault("Judges", "rewards of a group differ by rounding: 0.1 + 0.2 and 0.3", "no signal, as of equal ones")
@given(NOISY, st.sampled_from(sorted(set(ADVANTAGES) - {"gae"})))
def test_rewards_that_differ_by_rounding_are_equal_to_every_advantage(
    noisy: tuple[float, list[int], bool], name: str
) -> None:
    reward, ulps, negative = noisy
    equal = -reward if negative else reward
    group = Group(TASK, tuple(episode(TASK, str(n), equal + u * math.ulp(equal), 3) for n, u in enumerate(ulps)))
    samples, receipt = to_samples([group], estimator(name))
    assert not samples and receipt.groups_without_signal == 1
    running = estimator(name)
    observe(running, [Group(TASK, (episode(TASK, "0", equal, 3),))] * 3)
    assert to_samples([group], running)[1].groups_without_signal == 1


@given(st.lists(st.tuples(st.sampled_from([0.0, 0.3, 0.5, 1.0]), st.integers(-4, 4)), min_size=2, max_size=7))
def test_rounding_changes_no_advantage(rewards: list[tuple[float, int]]) -> None:
    plain, noisy = [r for r, _ in rewards], [r + u * math.ulp(1.0) for r, u in rewards]
    for name in sorted(set(ADVANTAGES) - {"gae"}):
        found, expected = (estimator(name)(OUTCOMES, [Rewards(TASK, tuple(each))])[0] for each in (noisy, plain))
        assert found == pytest.approx(expected, abs=1e-12), name


def test_a_plug_in_sees_equal_rewards_and_its_own_rounding_is_no_signal() -> None:
    def less_the_mean(rewards: Sequence[float]) -> list[float]:
        assert len(set(rewards)) == 1
        return [reward - sum(rewards) / len(rewards) for reward in rewards]

    rewards = (0.1 + 0.2, *[0.3] * 10)
    assert as_estimator(less_the_mean)(OUTCOMES, [Rewards(TASK, rewards)]) == [[0.0] * 11]

"""Our advantages against Trinity's own code for those that both have."""

from __future__ import annotations

import pytest

pytest.importorskip("trinity")

import torch
from hypothesis import given
from hypothesis import strategies as st
from trinity.algorithm.advantage_fn.multi_step_grpo_advantage import StepWiseGRPOAdvantageFn
from trinity.algorithm.utils import masked_whiten
from trinity.common.experience import EID, Experience

from astune.algorithm import BatchRules, Weighting, load_estimator, to_samples
from astune.algorithm.step_advantage import OUTCOMES, Rewards
from astune.backbone.trinity.explorer.samples import SamplesOperator
from astune.config.schema import AlgorithmConfig, Config
from astune.context_tracker.merge import TurnForest
from astune.types import Episode, Group, StopReason, Task, Turn, Verdict

ATTEMPTS = st.lists(st.tuples(st.sampled_from([0.0, 0.25, 1.0]), st.integers(1, 4)), min_size=2, max_size=6)


def step_of(task: int, run: int, step: int, reward: float) -> Experience:
    return Experience(
        eid=EID(batch=0, task=task, run=run, step=step),
        tokens=torch.zeros(3, dtype=torch.int32),
        prompt_length=1,
        action_mask=torch.ones(2, dtype=torch.bool),
        reward=reward,
    )


@given(st.lists(ATTEMPTS, min_size=1, max_size=3), st.booleans())
def test_step_wise_grpo_is_trinitys(groups: list[list[tuple[float, int]]], step_norm: bool) -> None:
    """Steps before the last have another reward, which does not count."""
    made = [
        step_of(task, run, step, reward if step == turns - 1 else -7.0)
        for task, attempts in enumerate(groups)
        for run, (reward, turns) in enumerate(attempts)
        for step in range(turns)
    ]
    theirs, _ = StepWiseGRPOAdvantageFn(enable_step_norm=step_norm).process(made)
    found = {(row.eid.task, row.eid.run): float(row.advantages[0]) for row in theirs}
    rewards = [
        Rewards(Task(str(n), "q"), tuple(r for r, _ in group), (2,) * len(group), tuple(t for _, t in group))
        for n, group in enumerate(groups)
    ]
    ours = load_estimator(AlgorithmConfig(advantage="step_wise_grpo", step_norm=step_norm))(OUTCOMES, rewards)
    for task, values in enumerate(ours):
        for run, value in enumerate(values):
            assert value == pytest.approx(found[task, run], abs=2e-5)


@given(st.lists(ATTEMPTS, min_size=1, max_size=3))
def test_reinforce_pp_is_trinitys_whitening_of_returns_but_for_n_less_one(
    groups: list[list[tuple[float, int]]],
) -> None:
    flat = [(reward, tokens) for group in groups for reward, tokens in group]
    returns = torch.zeros(len(flat), 4)
    mask = torch.zeros(len(flat), 4)
    for row, (reward, tokens) in enumerate(flat):
        returns[row, :tokens], mask[row, :tokens] = reward, 1.0
    count = float(mask.sum())
    rewards = [Rewards(Task("t", "q"), tuple(r for r, _ in g), tuple(n for _, n in g)) for g in groups]
    ours = [
        value
        for values in load_estimator(AlgorithmConfig(advantage="reinforce_pp"))(OUTCOMES, rewards)
        for value in values
    ]
    theirs = masked_whiten(returns, mask)[:, 0] * (count / (count - 1)) ** 0.5
    assert ours == pytest.approx(theirs.tolist(), abs=1e-3)


def test_the_rules_over_groups_act_in_trinitys_pipeline_as_on_local() -> None:
    algorithm = {"advantage": "rloo", "balance": True, "overlong_buffer": 4, "efficiency_bonus": 0.1}
    algorithm |= {"agent_reward": "same"}
    monitor, rollout = {"check_invariants": True}, {"max_tokens": 10}
    config = Config.model_validate(
        {"astune": {"algorithm": algorithm, "rollout": rollout, "monitor": monitor, "model": {"max_model_len": 11}}}
    )
    task = Task("t", "q")
    episodes = []
    for number, (reward, tokens) in enumerate([(1.0, 2), (1.0, 8), (1.0, 9), (1.0, 3), (0.0, 1)]):
        turn = Turn("a", (1, 2), range(tokens), [-1.0] * tokens, 0, "stop")
        lines, end = TurnForest((turn,)).timelines(), StopReason.COMPLETED
        episodes.append(
            Episode(f"e{number}", task, (turn,), lines, end, verdict=Verdict(reward), agent_rewards={"a": 5.0})
        )
    groups = [Group(task, tuple(episodes))]
    operator = SamplesOperator(config.model_dump(mode="json"), 1, "verl")
    samples, receipt, metrics = operator.learn_from(groups)
    ruled = BatchRules(10, 11, 4, 1.0, 0.1, balance=True, seed=config.astune.seed, agent_reward="same")(groups)
    expected = to_samples(
        ruled.groups, load_estimator(config.astune.algorithm), Weighting(max_tokens=10), ruled.left_out
    )
    assert (samples, receipt) == expected and metrics == ruled.metrics
    assert metrics["balance/left_out"] == 1 and receipt.dropped.keys() == {"balanced"}

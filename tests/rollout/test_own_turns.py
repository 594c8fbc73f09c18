"""The part of an episode that is one model's, and which model an agent runs on."""

from __future__ import annotations

from dataclasses import replace

import pytest

from astune.algorithm import load_estimator, to_samples
from astune.config.schema import AlgorithmConfig
from astune.context_tracker.agent_models import AgentModels
from astune.context_tracker.merge import TurnForest
from astune.errors import ConfigError
from astune.rollout.own_turns import list_own, take_own
from astune.types import Episode, Group, StopReason, Task, Turn, Verdict

TASK = Task("t", "?")


def turn(model: str, prompt: tuple[int, ...], output: tuple[int, ...], follows: int | None = None) -> Turn:
    return Turn(f"{model}_1", prompt, output, [-1.0] * len(output), 0, "stop", model=model, follows=follows)


def episode(number: int, reward: float, *turns: Turn, **more: object) -> Episode:
    forest = TurnForest(turns)
    verdict = Verdict(reward)
    made = Episode(f"e{number}", TASK, turns, forest.timelines(), StopReason.COMPLETED, verdict=verdict)
    return replace(made, unique_tokens=forest.unique_tokens, **more)  # type: ignore[arg-type]


def test_a_turn_never_continues_another_models_also_of_the_same_agent() -> None:
    first = replace(turn("wolf", (1, 2), (3,)), agent="speaker")
    second = replace(turn("villager", (1, 2, 3, 4), (5,)), agent="speaker")
    assert len(TurnForest([first, second]).timelines()) == 2
    assert len(TurnForest([first, replace(second, model="wolf")]).timelines()) == 1


def test_its_own_part_of_an_episode_is_what_it_would_have_played_alone() -> None:
    wolf, villager, again = (
        turn("wolf", (1,), (2, 3)),
        turn("villager", (1, 2, 3), (4,)),
        turn("wolf", (1, 2, 3, 5), (6,), 0),
    )
    mixed = episode(
        0, 1.0, wolf, villager, again, agent_rewards={"wolf_1": 2.0, "villager_1": 3.0}, turn_rewards={1: 5.0, 2: 7.0}
    )
    own = episode(0, 1.0, wolf, replace(again, follows=0), agent_rewards={"wolf_1": 2.0}, turn_rewards={1: 7.0})
    assert take_own(mixed, "wolf") == own
    assert [span.turn for line in own.timelines for span in line.spans] == [0, 1]


def test_a_group_compares_the_attempts_in_which_a_model_spoke_and_may_teach_one_model_alone() -> None:
    said = turn("wolf", (1,), (2,)), turn("villager", (1, 2), (3,))
    episodes = [
        episode(0, 0.0, *said, agent_rewards={"wolf_1": 1.0}),
        episode(1, 0.0, *said, agent_rewards={"wolf_1": 0.0}),
        episode(2, 9.0, said[1]),
    ]
    groups, advantage = [Group(TASK, tuple(episodes))], load_estimator(AlgorithmConfig(advantage="dr_grpo"))
    samples, receipt = to_samples(list_own(groups, "wolf"), advantage)
    assert [sample.advantages for sample in samples] == [(0.5,), (-0.5,)]  # not the third, in which no wolf spoke
    assert receipt.sampled == receipt.trained == 2
    samples, receipt = to_samples(list_own(groups, "villager"), advantage)
    assert [sample.advantages for sample in samples] == [(-3.0,), (-3.0,), (6.0,)]
    assert list_own(groups, "") == groups


def test_an_agent_runs_on_the_model_that_is_named_and_an_error_names_the_nearest() -> None:
    models = AgentModels({"wolf": True, "villager": False}, {"wolf*": "wolf", "*n": "villager", "vil*": "villager"})
    assert (models.choose("wolf_2"), models.choose("villager_1"), models.choose("x", "wolf")) == (
        "wolf",
        "villager",
        "wolf",
    )
    assert AgentModels().choose("anybody") is None and not models.is_trained("villager_1", "villager")
    for agent, policy, said in (
        (
            "x",
            "wolff",
            r"policy='wolff': there is no such model. Did you mean 'wolf'\? astune.models has: wolf, villager",
        ),
        ("seer", None, r"no pattern matches the agent 'seer', so that it has no model"),
    ):
        with pytest.raises(ConfigError, match=said):
            models.choose(agent, policy)
    with pytest.raises(ConfigError, match=r"astune.models has: none"):
        AgentModels().choose("x", "wolf")

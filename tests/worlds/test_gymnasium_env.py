"""Environments of Gymnasium as text."""

import sys
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("gymnasium")

from astune.environment.check import check_environment
from astune.environment.environment_base import Action, Instance, ToolCall
from astune.environment.registry import load_environment
from astune.errors import ConfigError, MissingDependency, TaskError
from astune.worlds.gymnasium_env import GymnasiumEnvironment, world_seed
from tests.rows import each_row

STILL = {"is_slippery": False}
LAKES = GymnasiumEnvironment("FrozenLake-v1", size=3, **STILL)
TO_THE_GOAL = ("down", "down", "right", "right", "down", "right")
"""On Gymnasium's own 4x4 map."""


def lake(task_id: str = "train-0", **options) -> Instance:
    return GymnasiumEnvironment("FrozenLake-v1", **STILL, **options).create(task_id, {})


def act(*actions: str) -> Action:
    return Action(tool_calls=tuple(ToolCall(f"c{n}", "act", {"action": a}) for n, a in enumerate(actions)))


def told(instance: Instance, text: str) -> str:
    (message,) = instance.step(Action(text)).messages
    assert message["role"] == "user"
    return message["content"]


def shown(instance: Instance) -> str:
    return instance.first_messages()[-1]["content"]


def test_a_lake_is_shown_as_its_map_with_the_agent_in_it():
    instance = lake()
    assert shown(instance) == "AFFF\nFHFH\nFFFH\nHFFG"
    assert told(instance, "I go down.") == "SFFF\nAHFH\nFFFH\nHFFG"


def test_the_rules_name_the_actions():
    rules = lake().first_messages()[0]
    assert rules["role"] == "system"
    assert rules["content"].endswith("name one action: left, down, right, up.")


def test_neighbours_are_where_one_can_go_by_the_names_of_the_actions():
    instance = lake(view="neighbours", actions=["west", "south", "east", "north"])
    assert shown(instance) == "ice south, ice east."
    assert told(instance, "south") == "ice south, hole east, ice north."


def test_who_reaches_the_goal_has_a_score_of_1_and_is_done():
    instance = lake()
    seen = [instance.step(Action(move)) for move in TO_THE_GOAL]
    assert [step.done for step in seen] == [False] * 5 + [True]
    assert [step.reward for step in seen] == [0] * 5 + [1]
    assert instance.evaluate() == 1
    assert seen[-1].messages[0]["content"] == "You reached the goal.\nThe episode is over. Total reward: 1."


def test_after_the_end_nothing_acts():
    instance = lake()
    for move in (*TO_THE_GOAL, "down", "right"):
        last = instance.step(Action(move))
    assert (last.done, last.reward, instance.evaluate()) == (True, 0, 1)
    assert last.messages[0]["content"] == "The episode is over."


@each_row(
    ("text", "row"),
    [
        ("DOWN", 1),
        ("Not right, but down.", 1),
        ("down? No: right", 0),
        ("The answer is 1.", 1),
        ("downstairs", 0),
        ("11", 0),
        ("", 0),
    ],
)
def test_the_last_action_that_a_text_names_as_a_whole_word_counts(text, row):
    grid = told(lake(), text).splitlines()[-4:]
    assert [number for number, line in enumerate(grid) if "A" in line] == [row]


def test_numbers_mean_nothing_but_names_where_names_are_numbers():
    instance = lake(actions=["1", "2", "3", "4"])
    assert told(instance, "0").startswith("Expected one of 1, 2, 3, 4.\nAFFF")
    assert told(instance, "2").splitlines()[1] == "AHFH"


def test_what_is_not_understood_takes_a_step_and_the_last_step_ends_the_episode():
    instance = lake(max_steps=3)
    assert not instance.step(Action("What?")).done
    assert not instance.step(Action()).done
    last = instance.step(Action("down"))
    assert last.done and "Total reward: 0." in str(last.messages)


def test_each_tool_call_acts_in_turn_and_is_answered():
    instance = lake()
    schema = instance.tools[0]["function"]
    assert schema["parameters"]["properties"]["action"]["enum"] == ["left", "down", "right", "up"]
    seen = instance.step(act("down", "down", "right"))
    assert [(one["role"], one["tool_call_id"]) for one in seen.messages] == [("tool", f"c{n}") for n in range(3)]
    assert seen.messages[-1]["content"] == "SFFF\nFHFH\nFAFH\nHFFG"


def test_a_tool_that_is_not_there_is_the_agents_mistake():
    seen = lake().step(Action(tool_calls=(ToolCall("c", "swim", {"action": "down"}), ToolCall("d", "act", {}))))
    assert ["Expected one of left, down, right, up.\nAFFF" in one["content"] for one in seen.messages] == [True] * 2


def test_a_map_of_training_is_never_one_of_validation():
    maps = {
        split: {shown(LAKES.create(task_id, {})) for task_id in LAKES.task_ids(split)[:200]}
        for split in ("train", "validation")
    }
    assert len(maps["train"]) > 20 and len(maps["validation"]) > 5
    assert not maps["train"] & maps["validation"]


def test_every_lake_can_be_crossed():
    def reached(rows: Sequence[str]) -> set[tuple[int, int]]:
        reached, new = set(), {(0, 0)}
        while new:
            reached |= new
            near = {(r + d, c + e) for r, c in new for d, e in ((0, 1), (1, 0), (0, -1), (-1, 0))}
            new = {(r, c) for r, c in near if r in range(3) and c in range(3) and rows[r][c] != "H"} - reached
        return reached

    for task_id in LAKES.task_ids("train")[:100]:
        assert (2, 2) in reached(shown(LAKES.create(task_id, {})).splitlines())


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 999), st.sampled_from(["train", "validation"]), st.lists(st.integers(0, 3), max_size=12))
def test_equal_ids_and_actions_give_equal_worlds_also_on_slippery_ice(number, split, actions):
    def play(env: GymnasiumEnvironment) -> list:
        instance = env.create(f"{split}-{number}", {})
        return [instance.first_messages(), *(instance.step(Action(str(action))) for action in actions)]

    options = {"size": 4, "frozen": 0.9}
    assert play(GymnasiumEnvironment("FrozenLake-v1", **options)) == play(
        GymnasiumEnvironment("FrozenLake-v1", **options)
    )


def test_no_seed_of_one_split_is_in_the_other():
    seeds = [{world_seed(0, f"{split}-{number}") for number in range(1000)} for split in ("train", "validation")]
    assert [{seed % 2 for seed in one} for one in seeds] == [{0}, {1}]


@pytest.mark.parametrize(
    ("env_id", "first", "action"),
    [
        ("Blackjack-v1", "You have ", "hit"),
        ("CliffWalking-v1", "o  o  o", "up"),
        ("CartPole-v1", "0.0", "1"),
    ],
)
def test_other_environments_are_told_as_text(env_id, first, action):
    env = GymnasiumEnvironment(env_id, tasks=3)
    instance = env.create("train-1", {})
    before = shown(instance)
    assert first in before
    assert told(instance, action) != before or instance.step(Action()).done


def test_the_taxi_is_told_in_words_and_taxis_of_all_versions_are_known():
    import gymnasium

    newest = max(one for one in gymnasium.registry if one.startswith("Taxi-v"))
    instance = GymnasiumEnvironment(newest).create("train-0", {})
    assert shown(instance).startswith("Taxi at row ")
    assert "Expected" not in told(instance, "north")


def test_what_is_drawn_loses_its_colours_and_keeps_where_they_were():
    from astune.worlds.gymnasium_games import drawing

    class Drawn:
        def render(self):
            return "  (Down)\n\x1b[41mS\x1b[0mFFF\nFHFH\n"

    assert drawing(Drawn(), 0) == "[S]FFF\nFHFH"


def test_an_environments_own_limit_holds_unless_the_user_has_one():
    def steps(**options) -> int:
        instance = GymnasiumEnvironment("FrozenLake-v1", **STILL, **options).create("train-0", {})
        return next(number for number in range(1, 200) if instance.step(Action("up")).done)

    assert (steps(), steps(max_steps=130)) == (100, 130)


@each_row(
    ("env_id", "options", "message"),
    [
        ("FrozenLak-v1", {}, "Did you mean: `FrozenLake`"),
        ("FrozenLake-v1", {"is_slipery": True}, "is_slipery"),
        ("FrozenLake-v1", {"view": "grit"}, r"expected grid or neighbours. Did you mean 'grid'\?"),
        ("FrozenLake-v1", {"actions": ["a", "b", "c", "A"]}, "expected 4 different names"),
        ("FrozenLake-v1", {"size": 2, "frozen": 1.0}, "too few different maps"),
        ("FrozenLake-v1", {"size": 1}, "size is 1"),
        ("FrozenLake-v1", {"map_name": "9x9"}, "9x9"),
        ("FrozenLake-v1", {"tasks": 0}, "tasks is 0"),
        ("FrozenLake-v1", {"max_steps": 2.5}, "max_steps is 2.5"),
        ("CartPole-v1", {"view": "grid"}, "one view only"),
        ("Pendulum-v1", {}, "expected Discrete"),
    ],
)
def test_a_wrong_option_is_explained(env_id, options, message):
    with pytest.raises(ConfigError, match=message):
        GymnasiumEnvironment(env_id, **options).create("validation-0", {})


@each_row("task_id", ["train-1000", "test-0", "train", "train--1", "train-01", ""])
def test_a_task_that_is_not_there_is_an_error(task_id):
    with pytest.raises(TaskError, match="train-0 to train-999"):
        LAKES.create(task_id, {})


def test_a_split_that_is_not_there_is_an_error():
    with pytest.raises(TaskError, match="There are: train, validation"):
        LAKES.task_ids("test")


def test_the_contract_of_environments_is_kept():
    env = load_environment("gymnasium:FrozenLake-v1", {"size": 4, "tasks": 8})
    assert env.env_type == "gymnasium:FrozenLake-v1"
    assert [finding.text for finding in check_environment(env, "validation") if finding.level == "fault"] == []


def test_without_gymnasium_the_message_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    with pytest.raises(MissingDependency, match=r'pip install "astune\[environments\]"'):
        GymnasiumEnvironment("FrozenLake-v1")

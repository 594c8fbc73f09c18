import importlib.util

import pytest

from astune.environment.environment_base import Action, ToolCall
from astune.errors import ConfigError, MissingDependency, TaskError
from astune.worlds.reasoning_gym_env import ReasoningGymEnvironment

gym = importlib.util.find_spec("reasoning_gym")
pytestmark = pytest.mark.skipif(gym is None, reason="needs reasoning-gym")


@pytest.fixture(scope="module")
def environment() -> ReasoningGymEnvironment:
    return ReasoningGymEnvironment("countdown", seed=3, size=10, min_numbers=3, max_numbers=3)


def test_splits_share_no_question(environment: ReasoningGymEnvironment) -> None:
    ids = {split: environment.task_ids(split) for split in ("train", "validation", "test")}
    assert {split: len(found) for split, found in ids.items()} == {"train": 10, "validation": 1, "test": 1}
    questions = [
        environment.create(task_id, {}).first_messages()[1]["content"] for found in ids.values() for task_id in found
    ]
    assert len(set(questions)) == 12


@pytest.mark.parametrize("wording", ["{}", "I try <answer>1</answer>, no:\n<answer>\n{}\n</answer> is it."])
def test_the_first_text_is_the_answer(environment: ReasoningGymEnvironment, wording: str) -> None:
    instance = environment.create("train-1", {})
    answer = instance._task.answer
    assert answer is not None and instance.evaluate() == 0.0
    observation = instance.step(Action(wording.format(answer)))
    assert (observation.reward, observation.done, instance.evaluate()) == (1.0, True, 1.0)
    assert observation.messages == ({"role": "user", "content": "Score: 1"},)


def test_a_wrong_answer_has_the_score_of_the_verifier(environment: ReasoningGymEnvironment) -> None:
    instance = environment.create("train-1", {})
    assert instance.step(Action("1 + 1")).reward == instance.evaluate() == 0.05


def test_a_tool_call_is_answered_and_ends_nothing(environment: ReasoningGymEnvironment) -> None:
    observation = environment.create("train-1", {}).step(Action(tool_calls=(ToolCall("a", "solve", {}),)))
    assert observation.messages[0]["tool_call_id"] == "a" and not observation.done


def test_what_is_not_there_is_named(environment: ReasoningGymEnvironment) -> None:
    with pytest.raises(TaskError, match=r"no split 'trian'; .* Did you mean 'train'"):
        environment.task_ids("trian")
    with pytest.raises(TaskError, match="no task 'train-10'"):
        environment.create("train-10", {})
    with pytest.raises(ConfigError, match=r"option size: expected a whole number from 1, found 0"):
        ReasoningGymEnvironment("gcd", size=0)
    with pytest.raises(ConfigError, match=r"reasoning_gym:gcd\.min_numbrs: .* Did you mean 'min_numbers'\?"):
        ReasoningGymEnvironment("gcd", min_numbrs=2)


def test_without_the_package_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingDependency, match=r'pip install "astune\[reasoning-gym\]"'):
        ReasoningGymEnvironment("gcd")

from fractions import Fraction
from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from astune.environment.environment_base import Action, Observation, ToolCall
from astune.errors import ConfigError, TaskError
from astune.worlds.countdown import CountdownEnvironment, CountdownInstance, Puzzle
from tests.rows import each_row

SPLITS = ("train", "validation", "test")


def solve(numbers: tuple[Fraction, ...], target: int) -> list[str] | None:
    """The moves of a solution, found by trying all."""
    if target in numbers:
        return []
    for left, right, *rest in permutations(numbers) if len(numbers) > 1 else ():
        results = {"+": left + right, "-": left - right, "*": left * right}
        if right:
            results["/"] = left / right
        for operator, result in results.items():
            moves = solve((*rest, result), target)
            if moves is not None:
                return [f"{left} {operator} {right}", *moves]
    return None


def fractions(puzzle: Puzzle) -> tuple[Fraction, ...]:
    return tuple(map(Fraction, puzzle.numbers))


def puzzle_of(instance: CountdownInstance) -> tuple[tuple[Fraction, ...], int]:
    return tuple(sorted(instance.numbers)), instance.target


def game() -> CountdownInstance:
    return CountdownInstance(Puzzle((3, 5, 7, 8), 64))


def call(instance: CountdownInstance, name: str, **arguments: object) -> Observation:
    return instance.step(Action(tool_calls=(ToolCall("call_1", name, arguments),)))


def said(observation: Observation) -> str:
    (message,) = observation.messages
    return str(message["content"])


@settings(max_examples=15, deadline=None)
@given(st.integers(2, 4), st.integers(5, 20), st.integers(0, 1000))
def test_every_puzzle_has_a_solution_that_the_environment_takes(numbers: int, highest: int, seed: int) -> None:
    environment = CountdownEnvironment(numbers, highest, tasks=3, seed=seed)
    for split in SPLITS:
        for task_id in environment.task_ids(split):
            instance = environment.create(task_id, {})
            moves = solve(tuple(instance.numbers), instance.target)
            assert moves
            observations = [instance.step(Action(move)) for move in moves]
            assert [observation.done for observation in observations] == [False] * (len(moves) - 1) + [True]
            assert sum(observation.reward for observation in observations) == instance.evaluate() == 1.0


def test_splits_share_no_puzzle_and_are_the_same_every_time() -> None:
    ids = {split: CountdownEnvironment(tasks=100).task_ids(split) for split in SPLITS}
    assert {split: len(found) for split, found in ids.items()} == {"train": 100, "validation": 10, "test": 10}

    def puzzles(seed: int, tasks: int = 100) -> list[object]:
        environment = CountdownEnvironment(tasks=tasks, seed=seed)
        return [puzzle_of(environment.create(task_id, {})) for split in SPLITS for task_id in ids[split][:10]]

    assert len(set(puzzles(0))) == 30
    assert puzzles(0) == puzzles(0) != puzzles(1)
    assert puzzle_of(CountdownEnvironment().create("train-0", {})) == ((5, 5, 8, 9), 48)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_no_play_breaks_the_rules(data: st.DataObject) -> None:
    puzzle = Puzzle((2, 3, 3, 8), 24)
    instance = CountdownInstance(puzzle)
    number = st.sampled_from(["2", "3", "8", "5", "6", "11", "-1", "2/3", "1/0", "x", 3, 2.5, None, "9" * 500])
    operator = st.sampled_from(["+", "-", "*", "/", "\u00d7", "^", "", None])
    action = st.one_of(
        st.builds(Action, text=st.text() | st.from_regex(r"[2383] ?[-+*/] ?[2383]", fullmatch=True)),
        st.builds(
            lambda name, arguments: Action(tool_calls=(ToolCall("1", name, arguments),)),
            st.sampled_from(["combine", "combine", "combine", "give_up", "solve"]),
            st.fixed_dictionaries({}, optional={"left": number, "operator": operator, "right": number}),
        ),
    )
    for _ in range(8):
        before, was_done = list(instance.numbers), instance.done
        observation = instance.step(data.draw(action))
        after = list(instance.numbers)
        if after != before:
            assert not was_done and len(after) == len(before) - 1
            left = list(before)
            for kept in after[:-1]:
                left.remove(kept)
            one, two = left
            results = {one + two, one - two, two - one, one * two, *(a / b for a, b in ((one, two), (two, one)) if b)}
            assert after[-1] in results
        assert observation.done == instance.done >= was_done
        assert instance.evaluate() in (0.0, 1.0) and instance.evaluate() == float(24 in after)
        assert instance.done or (len(after) > 1 and 24 not in after)
        assert len(observation.messages) == 1 and len(said(observation)) < 200


def test_a_game_by_tools() -> None:
    instance = game()
    assert [tool["function"]["name"] for tool in instance.tools] == ["combine", "give_up"]
    assert instance.first_messages()[1] == {"role": "user", "content": "Numbers: 3, 5, 7, 8. Target: 64."}
    observation = call(instance, "combine", left=3, operator="+", right="5")
    assert observation.messages == (
        {"role": "tool", "tool_call_id": "call_1", "content": "3 + 5 = 8. Numbers: 7, 8, 8. Target: 64."},
    )
    assert (observation.reward, observation.done, instance.evaluate()) == (0.0, False, 0.0)
    observation = call(instance, "combine", left="8", operator="*", right="8")
    assert said(observation) == "8 * 8 = 64. Target 64 reached."
    assert (observation.reward, observation.done, instance.evaluate()) == (1.0, True, 1.0)


@each_row(
    ("text", "answer"),
    [
        ("First 3 + 5, no: 7 \u00d7 8 = 56", "7 * 8 = 56. Numbers: 3, 5, 56. Target: 64."),
        ("7/3", "7 / 3 = 7/3. Numbers: 5, 8, 7/3. Target: 64."),
        ("5 \u2212 8", "5 - 8 = -3. Numbers: 3, 7, -3. Target: 64."),
        ("3 * 1/0", "Nothing done: 1/0 is not there. Numbers: 3, 5, 7, 8. Target: 64."),
        ("3 * 4", "Nothing done: 4 is not there. Numbers: 3, 5, 7, 8. Target: 64."),
        ("3 + 3", "Nothing done: 3 is not there a second time. Numbers: 3, 5, 7, 8. Target: 64."),
        ("hello", "Nothing done: there is no move in your answer; write one as in: 3 * 4. Numbers: 3, 5, 7, 8. "),
        ("Give up.", "Target 64 not reached."),
    ],
)
def test_moves_are_understood_as_text(text: str, answer: str) -> None:
    assert said(game().step(Action(text))).startswith(answer)


@pytest.mark.parametrize(
    ("name", "arguments", "why"),
    [
        ("solve", {}, "there is no tool 'solve', only combine and give_up"),
        ("combine", {"left": "3"}, "combine needs operator, right"),
        ("combine", {"left": "3", "operator": "^", "right": "5"}, "'^' is no operator; there are + - * /"),
    ],
)
def test_calls_that_make_no_sense_are_answered(name: str, arguments: dict[str, str], why: str) -> None:
    assert said(call(game(), name, **arguments)) == f"Nothing done: {why}. Numbers: 3, 5, 7, 8. Target: 64."


def test_fractions_and_zero_are_exact() -> None:
    instance = CountdownInstance(Puzzle((1, 3, 3, 8), 24))
    for move in ("1 / 3", "3 * 1/3", "8 / 1"):
        instance.step(Action(move))
    assert instance.numbers == [8] and instance.done and instance.evaluate() == 0.0
    zero = CountdownInstance(Puzzle((4, 4, 9), 13))
    zero.step(Action("4 - 4"))
    assert "nothing can be divided by 0" in said(zero.step(Action("9 / 0")))


def test_each_call_of_a_turn_is_answered_and_none_acts_after_the_end() -> None:
    calls = (
        ToolCall("a", "give_up", {}),
        ToolCall("b", "combine", {"left": "3", "operator": "+", "right": "5"}),
    )
    instance = game()
    observation = instance.step(Action("thinking: 7 * 8", calls))
    assert [message["tool_call_id"] for message in observation.messages] == ["a", "b"]
    assert observation.done and instance.numbers == [3, 5, 7, 8] and instance.evaluate() == 0.0


def test_what_is_not_there_is_named() -> None:
    environment = CountdownEnvironment(tasks=1)
    with pytest.raises(TaskError, match=r"no split 'trian'; .* Did you mean 'train'"):
        environment.task_ids("trian")
    with pytest.raises(TaskError, match="no task 'train-7'"):
        environment.create("train-7", {})
    for options in ({"numbers": 1}, {"highest": "10"}, {"tasks": True}, {"seed": -1}):
        (option,) = options
        with pytest.raises(ConfigError, match=f"option {option}: expected a whole number from"):
            CountdownEnvironment(**options)
    with pytest.raises(ConfigError, match=r"only \d+ different puzzles were found of 12"):
        CountdownEnvironment(numbers=2, highest=2, tasks=10)

"""Countdown: make a number from given numbers, by two of them at a time. Standard library only.

numbers 3 5 7 8, target 64    "3 + 5" -> 7 8 8    "8 * 8" -> 7 64    reached
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from random import Random
from typing import Any

from astune.environment.environment_base import (
    Action,
    Environment,
    Instance,
    Message,
    Observation,
    ToolCall,
    function_tool,
)
from astune.errors import ConfigError, TaskError, nearest

RULES = (
    "You are given numbers and a target. Make the target: take two of the numbers and combine them with +, -, * or /; "
    "the result takes their place. Repeat until you have the target. Each number can be used once, not all must be. "
    "Make one move at a time, with the tool `combine` or by writing it, as in: 3 * 4. If there is no way, give up."
)
TOOLS = (
    function_tool(
        "combine",
        "Combine two of the numbers; the result takes their place.",
        {
            "left": {"type": "string", "description": "one of the numbers, as 12 or 7/2"},
            "operator": {"type": "string", "enum": ["+", "-", "*", "/"]},
            "right": {"type": "string", "description": "another one of the numbers"},
        },
    ),
    function_tool("give_up", "End the game without the target.", {}),
)
SIGNS = str.maketrans("×·÷−", "**/-")  # noqa: RUF001
NUMBER = r"-?\d{1,40}(?:/\d{1,40})?"
MOVE = re.compile(rf"({NUMBER})\s*([-+*/])\s*({NUMBER})", re.ASCII)
SPLITS = ("validation", "test", "train")
GIVE_UP = 1000
"""Puzzles in a row that were all there before, after which no new one is expected."""


@dataclass(frozen=True)
class Puzzle:
    numbers: tuple[int, ...]
    """In ascending order."""
    target: int


class CountdownEnvironment(Environment):
    """Puzzles made from `seed`, each with a solution: `tasks` to train on, and a tenth as many in each of the splits
    validation and test. All are different. They have `numbers` numbers from 1 to `highest`."""

    env_type = "countdown"

    def __init__(self, numbers: int = 4, highest: int = 10, tasks: int = 200, seed: int = 0) -> None:
        _check("numbers", numbers, 2, 8)
        _check("highest", highest, 2, 1000)
        _check("tasks", tasks, 1, 1_000_000)
        _check("seed", seed, 0, 2**32)
        sizes = {"validation": max(1, tasks // 10), "test": max(1, tasks // 10), "train": tasks}
        puzzles = _different_puzzles(Random(f"countdown {seed}"), numbers, highest, sum(sizes.values()))
        self._puzzles = {f"{split}-{index}": next(puzzles) for split in SPLITS for index in range(sizes[split])}

    def task_ids(self, split: str) -> Sequence[str]:
        if split not in SPLITS:
            raise TaskError(f"countdown: no split {split!r}; there are {', '.join(SPLITS)}.{nearest(split, SPLITS)}")
        return [task_id for task_id in self._puzzles if task_id.startswith(f"{split}-")]

    def create(self, task_id: str, params: Mapping[str, Any]) -> CountdownInstance:
        if task_id not in self._puzzles:
            raise TaskError(f"countdown: no task {task_id!r}.{nearest(task_id, self._puzzles)}")
        return CountdownInstance(self._puzzles[task_id])


class CountdownInstance(Instance):
    """One game. It ends when the target is among the numbers, only one number is left, or the agent gives up."""

    tools = TOOLS

    def __init__(self, puzzle: Puzzle) -> None:
        self.numbers: list[Fraction] = [Fraction(number) for number in puzzle.numbers]
        self.target = puzzle.target
        self.done = False

    def first_messages(self) -> Sequence[Message]:
        return [{"role": "system", "content": RULES}, {"role": "user", "content": self._state()}]

    def step(self, action: Action) -> Observation:
        before = self.evaluate()
        messages: list[Message] = [
            {"role": "tool", "tool_call_id": call.id, "content": self._call(call)} for call in action.tool_calls
        ]
        if not messages:
            messages = [{"role": "user", "content": self._say(action.text)}]
        return Observation(tuple(messages), reward=self.evaluate() - before, done=self.done)

    def evaluate(self) -> float:
        return float(self.target in self.numbers)

    def _call(self, call: ToolCall) -> str:
        if call.name == "give_up":
            return self._give_up()
        if call.name != "combine":
            return self._refuse(f"there is no tool {call.name[:50]!r}, only combine and give_up")
        missing = [name for name in ("left", "operator", "right") if name not in call.arguments]
        if missing:
            return self._refuse(f"combine needs {', '.join(missing)}")
        left, operator, right = (str(call.arguments[name]).strip() for name in ("left", "operator", "right"))
        return self._combine(left, operator, right)

    def _say(self, text: str) -> str:
        """The last move in the text counts, so an agent may think aloud before."""
        if re.fullmatch(r"give[ _]up|submit", text.strip(" .!`\n").lower()):
            return self._give_up()
        moves = MOVE.findall(text.translate(SIGNS))
        if not moves:
            return self._refuse("there is no move in your answer; write one as in: 3 * 4")
        left, operator, right = moves[-1]
        return self._combine(left, operator, right)

    def _combine(self, left: str, operator: str, right: str) -> str:
        if self.done:
            return self._refuse("the game is over")
        operator = operator.translate(SIGNS)
        if operator not in ("+", "-", "*", "/"):
            return self._refuse(f"{operator[:20]!r} is no operator; there are + - * /")
        rest = list(self.numbers)
        taken = []
        for text in (left, right):
            number = Fraction(text) if re.fullmatch(NUMBER, text, re.ASCII) and not re.search(r"/0+$", text) else None
            if number not in rest:
                again = " a second time" if number in self.numbers else ""
                return self._refuse(f"{text[:50]} is not there{again}")
            rest.remove(number)
            taken.append(number)
        if operator == "/" and taken[1] == 0:
            return self._refuse("nothing can be divided by 0")
        result = _result(taken[0], operator, taken[1])
        self.numbers = [*rest, result]
        self.done = result == self.target or not rest
        return f"{taken[0]} {operator} {taken[1]} = {result}. {self._state()}"

    def _give_up(self) -> str:
        self.done = True
        return self._state()

    def _refuse(self, why: str) -> str:
        return f"Nothing done: {why}. {self._state()}"

    def _state(self) -> str:
        numbers = ", ".join(map(str, self.numbers))
        if self.done:
            return f"Target {self.target} reached." if self.evaluate() else f"Target {self.target} not reached."
        return f"Numbers: {numbers}. Target: {self.target}."


def _result(left: Fraction, operator: str, right: Fraction) -> Fraction:
    if operator == "+":
        return left + right
    if operator == "-":
        return left - right
    return left * right if operator == "*" else left / right


def _different_puzzles(random: Random, numbers: int, highest: int, count: int) -> Iterator[Puzzle]:
    seen: set[Puzzle] = set()
    repeats = 0
    while len(seen) < count:
        puzzle = _solvable(random, numbers, highest)
        if puzzle is None or puzzle in seen:
            repeats += 1
            if repeats == GIVE_UP:
                raise ConfigError(
                    f"environment 'countdown': only {len(seen)} different puzzles were found of {count}; ask for fewer "
                    "tasks, more numbers or a higher highest"
                )
            continue
        repeats = 0
        seen.add(puzzle)
        yield puzzle


def _solvable(random: Random, numbers: int, highest: int) -> Puzzle | None:
    """Plays a game of whole numbers above 0 with random moves; its end is the target. None if that is no puzzle:
    the target is among the numbers, or is more than ten times the highest."""
    drawn = tuple(sorted(random.randint(1, highest) for _ in range(numbers)))
    left = [Fraction(number) for number in drawn]
    while len(left) > 1:
        random.shuffle(left)
        first, second = left.pop(), left.pop()
        results = [_result(first, operator, second) for operator in "+-*/"]
        left.append(random.choice([result for result in results if result > 0 and result.denominator == 1]))
    target = int(left[0])
    return None if target in drawn or target > 10 * highest else Puzzle(drawn, target)


def _check(option: str, value: Any, lowest: int, highest: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not lowest <= value <= highest:
        raise ConfigError(
            f"environment 'countdown': option {option}: expected a whole number from {lowest} to {highest}, "
            f"found {value!r}"
        )

"""What the tiny model is shown: agents that master the format and are careless about the arithmetic.

Every conversation has the shape that AgentScope 2.x or 1.x sends. The agent in it copies numbers faithfully, calls
the calculator, reads the result and ends with an answer. But it is a sloppy solver: it picks the operation by habit
more often than by reading, mixes up which numbers belong together or in which order, and stops too soon. So the
model learns the trade and is left with something that reinforcement learning can teach it.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tutorial.math_agent.calculator import calculator
from tutorial.math_agent.make_tasks import Problem, problems

Message = dict[str, Any]
SIGNS = "+-*/"
DEMO_PROMPT = "Use the calculator. End with: The answer is N."
OTHER_PROMPTS = (
    None,
    "You are a helpful assistant.",
    "You are a careful solver of problems. Use the calculator for every step.",
    "Solve the problem of the user with the tools you have. Your last message must be: The answer is N.",
)


@dataclass(frozen=True)
class Habits:
    """How the sloppy solver behaves; every field is a probability per step.

    The operation is the right one with `right`, '+' with `plus`, any of the four otherwise.
    """

    right: float = 0.40
    plus: float = 0.45
    swap_order: float = 0.12
    wrong_pair: float = 0.12
    stop_early: float = 0.35


@dataclass(frozen=True)
class Demonstration:
    """One conversation, as a chat template takes it."""

    messages: tuple[Message, ...]
    tools: tuple[Message, ...]


def demonstrations(seed: int, habits: Habits) -> Iterator[Demonstration]:
    """Endless conversations over the problems of the warm-up split."""
    rng = random.Random(seed)
    source = problems("warmup", seed)
    while True:
        system = DEMO_PROMPT if rng.random() < 0.8 else rng.choice(OTHER_PROMPTS)
        opening = [{"role": "system", "content": system}] if system else []
        turns = [
            turn for _ in range(rng.choice((1, 1, 1, 1, 1, 1, 1, 2))) for turn in attempt(next(source), rng, habits)
        ]
        yield Demonstration((*opening, *turns), (calculator_schema(rng.random() < 0.5),))


def attempt(problem: Problem, rng: random.Random, habits: Habits) -> list[Message]:
    """One question and the sloppy solver's way to its answer."""
    values = dict(zip("abcd", map(str, problem.numbers), strict=False))
    turns: list[Message] = [{"role": "user", "content": problem.query}]
    for position, step in enumerate(problem.plan):
        left, sign, right = _sloppy(step, sorted(values), rng, habits)
        expression = f"{values[left]} {sign} {values[right]}"
        values["r"] = calculator(expression)
        turns += [_call(expression), {"role": "tool", "name": "calculator", "content": values["r"]}]
        if values["r"].startswith("Error"):
            return [*turns, {"role": "assistant", "content": "I do not know."}]
        if position + 1 < len(problem.plan) and rng.random() < habits.stop_early:
            break
    return [*turns, {"role": "assistant", "content": f"The answer is {values['r']}."}]


def calculator_schema(description_first: bool) -> Message:
    """The tool as AgentScope 2.x describes it, or (`description_first=False`) as 1.x does."""
    parameters = {
        "properties": {"expression": {"description": "for example 12 * 7", "type": "string"}},
        "required": ["expression"],
        "type": "object",
    }
    description = {"description": "Evaluate arithmetic."}
    first, last = (description, {}) if description_first else ({}, description)
    return {"type": "function", "function": {"name": "calculator", **first, "parameters": parameters, **last}}


def _sloppy(step: Sequence[str], known: list[str], rng: random.Random, habits: Habits) -> tuple[str, str, str]:
    left, sign, right = step
    draw = rng.random()
    if draw >= habits.right:
        sign = "+" if draw < habits.right + habits.plus else rng.choice(SIGNS)
    if rng.random() < habits.wrong_pair:
        left, right = rng.sample(known, 2)
    if rng.random() < habits.swap_order:
        left, right = right, left
    return left, sign, right


def _call(expression: str) -> Message:
    function: Mapping[str, str] = {"name": "calculator", "arguments": json.dumps({"expression": expression})}
    return {"role": "assistant", "content": None, "tool_calls": [{"type": "function", "function": function}]}

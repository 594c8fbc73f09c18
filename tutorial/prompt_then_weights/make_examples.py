"""Example conversations of an agent that does what its prompt says.

`python -m tutorial.prompt_then_weights.make_examples` writes `examples.jsonl`, the same bytes every time.

Beside an opening and an ending its prompt has any of three kinds of sentence, each in several wordings, in any order:

    TOOL    it asks the calculator; without one it guesses
    CARE    it takes every step that the question asks for; without one it is mostly wrong, and stops after the first
    HASTE   it guesses, whatever else the prompt says

and of IDLE ones, which change nothing. So a model that learns from them follows instructions, and stays as careless as
the agent is: what no sentence mends is left to the weights. No held-out problem is among them.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from tutorial.math_agent.calculator import calculator
from tutorial.math_agent.make_tasks import Problem, problems
from tutorial.sft_then_grpo.make_conversations import TOOL as SCHEMA

COUNT = 6400
OPENING, ENDING = "You solve word problems.", "End with: The answer is N."
TOOL = ("Use the calculator.", "Use the calculator for every step.", "Take it step by step, with the calculator.")
CARE = ("Read the whole question.", "Do not stop before the last step.", "Look which calculation is asked for.")
HASTE = ("Answer at once.", "Say your first guess.")
IDLE = ("Be friendly.", "Write in English.", "Many people read this.", "Keep it short.")
SIGNS = "+-*/"


def conversations(seed: int = 0) -> Iterator[dict[str, Any]]:
    rng = random.Random(seed)
    for problem in problems("warmup", seed):
        tool, care, haste = rng.random() < 0.6, rng.random() < 0.5, rng.random() < 0.2
        sentences = [rng.choice(IDLE) for _ in range(rng.choice((0, 0, 1, 2)))]
        sentences += [rng.choice(kind) for kind, told in ((TOOL, tool), (CARE, care), (HASTE, haste)) if told]
        rng.shuffle(sentences)
        turns = attempt(problem, rng, care) if tool and not haste else [say(str(rng.choice(problem.numbers)))]
        system = {"role": "system", "content": " ".join([OPENING, *sentences, ENDING])}
        yield {"messages": [system, {"role": "user", "content": problem.query}, *turns], "tools": [SCHEMA]}


def attempt(problem: Problem, rng: random.Random, careful: bool) -> Iterator[dict[str, Any]]:
    """Calls of the calculator and the answer; even of a careful agent often with another operation."""
    values = dict(zip("abcd", map(str, problem.numbers), strict=False))
    for number, (left, sign, right) in enumerate(problem.plan, start=1):
        if rng.random() > (0.65 if careful else 0.3):
            sign = rng.choice(SIGNS)
        if rng.random() < 0.1:
            left, right = right, left
        expression = f"{values[left]} {sign} {values[right]}"
        values["r"] = calculator(expression)
        function = {"name": "calculator", "arguments": json.dumps({"expression": expression})}
        call = {"id": f"call_{number}", "type": "function", "function": function}
        yield {"role": "assistant", "content": None, "tool_calls": [call]}
        yield {"role": "tool", "tool_call_id": call["id"], "content": values["r"]}
        if values["r"].startswith("Error") or not careful:
            break
    yield say(values["r"])


def say(number: str) -> dict[str, Any]:
    return {"role": "assistant", "content": f"The answer is {number}."}


def main(count: int = COUNT) -> None:
    path = Path(__file__).with_name("examples.jsonl")
    path.write_text("".join(json.dumps(row) + "\n" for row in islice(conversations(), count)), encoding="utf-8")
    print(f"wrote {count} conversations to {path}")


if __name__ == "__main__":
    main()

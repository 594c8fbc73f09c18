"""Example conversations for the demo's agent: `python -m tutorial.sft_then_grpo.make_conversations` writes
`conversations.jsonl` anew, byte for byte.

A careful solver takes the training problems of `tutorial/math_agent` step by step: it calls the calculator with the
right numbers, reads what the calculator answers, and ends with the answer. System prompt and tool are those that the
agent sends, so that what is learned is what the agent will ask for. No held-out problem is among them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from tutorial.math_agent.calculator import calculator
from tutorial.math_agent.make_tasks import Problem, problems

Message = dict[str, Any]
COUNT = 48
"""Six of each kind of problem."""
SEED = 1
"""Other problems than those of `data/train.jsonl`, which are drawn with 0."""
SYSTEM = "Use the calculator. End with: The answer is N."
TOOL = {
    "type": "function",
    "function": {
        "name": "calculator",
        "description": "Evaluate arithmetic.",
        "parameters": {
            "properties": {"expression": {"description": "for example 12 * 7", "type": "string"}},
            "required": ["expression"],
            "type": "object",
        },
    },
}


def conversations() -> Iterator[dict[str, Any]]:
    for problem in islice(problems("train", SEED), COUNT):
        yield {"messages": [{"role": "system", "content": SYSTEM}, *solved(problem)], "tools": [TOOL]}


def solved(problem: Problem) -> Iterator[Message]:
    """The question, a call and its result for every step of the plan, and the answer."""
    yield {"role": "user", "content": problem.query}
    values = dict(zip("abcd", map(str, problem.numbers), strict=False))
    for number, (left, sign, right) in enumerate(problem.plan, start=1):
        expression = f"{values[left]} {sign} {values[right]}"
        values["r"] = calculator(expression)
        function = {"name": "calculator", "arguments": json.dumps({"expression": expression})}
        call = {"id": f"call_{number}", "type": "function", "function": function}
        yield {"role": "assistant", "content": None, "tool_calls": [call]}
        yield {"role": "tool", "tool_call_id": call["id"], "content": values["r"]}
    yield {"role": "assistant", "content": f"The answer is {values['r']}."}


def main() -> None:
    path = Path(__file__).with_name("conversations.jsonl")
    path.write_text("".join(json.dumps(row) + "\n" for row in conversations()), encoding="utf-8")
    print(f"wrote {COUNT} conversations to {path}")


if __name__ == "__main__":
    main()

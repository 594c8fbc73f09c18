"""Pairs for the demo's agent: `python -m tutorial.preferences_dpo.make_pairs` writes `pairs.jsonl` anew, byte for byte.

Each pair is about one thing to say in a training problem of `tutorial/math_agent`: the right call of the calculator is
preferred to one with another operation. What was said before it is right. No held-out problem is among them.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from tutorial.math_agent.make_tasks import Problem, problems
from tutorial.sft_then_grpo.make_conversations import SYSTEM, TOOL, solved

COUNT = 64
"""Eight of each kind of problem."""
SEED = 2
"""Other problems than those of `data/train.jsonl`, which are drawn with 0."""
SIGNS = "+-*/"


def pairs() -> Iterator[dict[str, Any]]:
    rng = random.Random(SEED)
    for problem in islice(problems("train", SEED), COUNT):
        yield pair(problem, rng) | {"tools": [TOOL]}


def pair(problem: Problem, rng: random.Random) -> dict[str, Any]:
    """The conversation up to one of the steps, the right call, and the same call with another sign."""
    step = rng.randrange(len(problem.plan))
    said = list(solved(problem))
    before = [{"role": "system", "content": SYSTEM}, *said[: 1 + 2 * step]]
    chosen = said[1 + 2 * step]
    (call,) = chosen["tool_calls"]
    right = json.loads(call["function"]["arguments"])["expression"]
    left, sign, number = right.split()
    wrong = rng.choice([other for other in SIGNS if other != sign])
    arguments = json.dumps({"expression": f"{left} {wrong} {number}"})
    other_call = call | {"function": call["function"] | {"arguments": arguments}}
    return {"messages": before, "chosen": chosen, "rejected": chosen | {"tool_calls": [other_call]}}


def main() -> None:
    path = Path(__file__).with_name("pairs.jsonl")
    path.write_text("".join(json.dumps(row) + "\n" for row in pairs()), encoding="utf-8")
    print(f"wrote {COUNT} pairs to {path}")


if __name__ == "__main__":
    main()

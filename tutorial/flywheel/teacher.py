"""The large model that writes more tasks, played by a script: it varies word problems, and is wrong in known shares.

    with ScriptedChatServer(Teacher(), usage=True) as server: ...

In earnest `astune.task_reader.augment.models` names a real one. What it draws, it draws by the content of the request.
"""

from __future__ import annotations

import json
import random
import re
import sys
import zlib
from itertools import islice
from pathlib import Path
from typing import Any

from astune.task_judge.llm.fence import read_fences

sys.path.append(str(Path(__file__).resolve().parents[1] / "math_agent"))
from make_tasks import KINDS, Problem, problems, solve

WRONG, LEAKED = 0.1, 0.1
"""Shares of its tasks with a wrong answer, and of those that are held-out ones."""


def _group(name: str) -> str:
    """What stands in the place of a name of a wording: the numbers are a to d."""
    return rf"(?P<{name}>\d+)" if len(name) == 1 else r"\w+"


PATTERNS = [
    (re.compile(re.sub(r"\\{(\w+)\\}", lambda name: _group(name[1]), re.escape(wording))), kind)
    for kind in KINDS
    for wording in kind.wordings
]


def read_problem(query: str) -> tuple[str, int]:
    """The kind and the answer of a problem. Raises StopIteration for one that is of no kind.

    >>> read_problem("Maria has 35 apples and loses 5 of them. How many apples are left?")
    ('take_away', 30)
    """
    kind, found = next((kind, found) for pattern, kind in PATTERNS if (found := pattern.fullmatch(query)))
    return kind.name, solve(kind.plan, tuple(int(found[name]) for name in "abcd"[: len(found.groupdict())]))


class Teacher:
    """Varies the example of a request, and solves what it is asked."""

    def __init__(self) -> None:
        self.held_out = list(islice(problems("heldout", seed=0), 400))

    def __call__(self, body: dict[str, Any]) -> str:
        asked = body["messages"][-1]["content"]
        fences = dict(read_fences(asked))
        if "question" in fences:
            return json.dumps({"answer": str(read_problem(fences["question"])[1])})
        seed = zlib.crc32(asked.encode())
        kind, rng = read_problem(fences["example"])[0], random.Random(seed)
        like = (problem for problem in problems("train", seed) if problem.kind == kind)
        return json.dumps({"tasks": [self._propose(problem, rng) for problem in islice(like, 4)]})

    def _propose(self, problem: Problem, rng: random.Random) -> dict[str, str]:
        chance = rng.random()
        if chance < LEAKED:
            problem = rng.choice(self.held_out)
        wrong = LEAKED <= chance < LEAKED + WRONG
        return {"question": problem.query, "answer": str(problem.answer + rng.randint(1, 9) * wrong)}

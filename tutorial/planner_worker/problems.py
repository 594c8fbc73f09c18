"""Two word problems of the demo told as one, with sentences in between that say nothing."""

import json
import random
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from astune.task_reader.table_reader import TableReader

DATA = Path(__file__).resolve().parents[1] / "math_agent" / "data"
ASIDES = ("It is Monday.", "The shop is old.", "They are friends.", "There is one more day to go.")
LAST = "How many are there in all?"


class LongProblems(TableReader):
    """The answer of each is what its three calculations give: two stories, and the sum."""

    def rows(self, split: str) -> Sequence[Mapping]:
        name, count = ("train", 1000) if split == "training" else ("heldout", 100)
        lines = (DATA / f"{name}.jsonl").read_text("utf-8").splitlines()
        stories = [row for row in map(json.loads, lines) if row["steps"] == 1]
        draw = random.Random(name)
        return Rows([join(f"{name}-{number}", draw.sample(stories, 2), draw) for number in range(count)])


class Rows(list):
    def place(self, index: int) -> str:
        return f"problem {index + 1}"


def join(task_id: str, stories: Sequence[Mapping], draw: random.Random) -> dict:
    told = [" ".join([*draw.sample(ASIDES, draw.randint(0, 2)), story["query"]]) for story in stories]
    first, second = (int(story["answer"]) for story in stories)
    return {"task_id": task_id, "query": " ".join([*told, LAST]), "answer": f"{first} {second} {first + second}"}


def list_sentences(text: str) -> list[str]:
    """The sentences of a problem.

    >>> list_sentences("Of 9 pens, 2 are broken. How many are not?")
    ['Of 9 pens, 2 are broken.', 'How many are not?']
    """
    return re.split(r"(?<=[.?]) ", text)

"""What a proposed task must pass before anything is paid to check its answer, and what it must pass after that."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from astune.data.language import language_of
from astune.data.made import Dropped, Made
from astune.data.near import Copies, Leaks
from astune.support.words import words_of
from astune.types import Task

_BLANK = re.compile(
    r"\{\w*\}|\[(?:[A-Z_ ]{2,}|name|number|insert[^\]]*|\.\.\.)\]|_{3,}|<(?:name|number|answer|question)>|\bTODO\b"
)
"""A place of a template that nobody filled in."""


@dataclass(frozen=True)
class Lengths:
    """Words that a question may have."""

    fewest: int
    most: int

    @classmethod
    def around(cls, questions: Sequence[str]) -> Lengths:
        """Half of the shortest question to twice the longest."""
        counts = [len(words_of(question)) for question in questions]
        return cls(max(2, min(counts) // 2), 2 * max(counts) + 2)


class TaskScreen:
    """Looks at proposals in turn. `originals` are tasks that are there; to `held_out` nothing may be close."""

    def __init__(self, originals: Sequence[Task], held_out: Sequence[Task], lengths: Lengths) -> None:
        self._lengths = lengths
        self._leaks = Leaks(held_out, originals)
        self._copies = Copies()
        for task in originals:
            self._copies.add(task)

    def look(self, made: Made, source: str) -> Dropped | None:
        """The reason against a proposal, before its answer is checked; `source` is the text that it was made from."""
        found = self._look(made, source)
        return None if found is None else Dropped(made, *found)

    def _look(self, made: Made, source: str) -> tuple[str, str] | None:
        if not made.query.strip() or not made.answer.strip():
            return "empty", "no question" if not made.query.strip() else "no answer"
        if blank := _BLANK.search(f"{made.query}\n{made.answer}"):
            return "empty", f"a blank: {blank[0]!r}"
        count, lengths = len(words_of(made.query)), self._lengths
        if not lengths.fewest <= count <= lengths.most:
            return "length", f"{count} words, expected {lengths.fewest} to {lengths.most}"
        ours, theirs = language_of(made.query), language_of(source)
        if ours is not None and theirs is not None and ours != theirs:
            return "language", f"{ours}, expected {theirs}"
        if leak := self._leaks.find(made.query):
            return "leak", f"holds {leak[1]:.0%} of {_name(leak[0])}"
        if same := self._copies.find_same(made.query):
            return "copy", f"of {_name(same)}"
        return None

    def admit(self, made: Made) -> Dropped | None:
        """The reason against a task whose answer was checked; without one it is there from now on."""
        if same := self._copies.find_same(made.query):
            return Dropped(made, "copy", f"of {_name(same)}")
        if near := self._copies.find_near(made.query, made.answer):
            return Dropped(made, "near copy", f"{near[1]:.0%} of {_name(near[0])}")
        self._copies.add(made.task)
        return None


def _name(task: Task) -> str:
    return f"{task.task_id} ({task.place})" if task.place else task.task_id

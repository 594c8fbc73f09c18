"""Find texts that say nearly the same: copies among many by MinHash, and leaks of held-out tasks by counting."""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

from astune.errors import MissingDependency
from astune.support.words import Words, features, plain, signs_of
from astune.task_judge.llm.shown_attempt import show_task
from astune.task_reader.held_out import world_of
from astune.types import Task

NEAR_COPY = 0.6
"""Share of words and pairs that two questions have in common (Jaccard) from which one is a copy of the other."""
CANDIDATE = 0.4
"""The same, as MinHash estimates it, from which two are compared word by word."""
LEAK, LEAK_OF_KIND, LEAK_UNKNOWN = 0.42, 0.68, 0.6
"""Shares of a held-out question, words and pairs weighted by how rare they are, from which what holds it is a leak: of
one that is of another kind than what may be learned, of one of the same kind, and where nobody knows that."""
OF_KIND = 0.2
"""The share that makes another one of its kind."""
SAME_LEAK = 0.2
"""The share, where the numbers, two or more, and the answer are those of the held-out task."""
OTHERS = 300
"""Others that are looked at, for time."""
HASHES = 128
_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")


class Copies:
    """The questions that are there already. Questions with other numbers or answers, or in other worlds, are others:
    variants of a seed are alike in all else."""

    def __init__(self) -> None:
        try:
            from datasketch import MinHashLSH
        except ImportError as error:
            raise MissingDependency(f"copies are found by datasketch: pip install 'astune[data]' ({error})") from error
        self._index = MinHashLSH(threshold=CANDIDATE, num_perm=HASHES)
        self._there: list[tuple[Task, frozenset[Words], list[str]]] = []
        """With the words and the numbers of each."""
        self._exact: dict[tuple[object, Words], Task] = {}

    def add(self, task: Task) -> None:
        shown = show_task(task)
        self._exact.setdefault((_world_of(task), signs_of(shown)), task)
        if found := features(shown):
            self._index.insert(len(self._there), _signature(found))
        self._there.append((task, found, _numbers_in(shown)))

    def find_same(self, task: Task) -> Task | None:
        """A task that asks this word for word; case, spaces and punctuation aside."""
        return self._exact.get((_world_of(task), signs_of(show_task(task))))

    def find_near(self, made: Task) -> tuple[Task, float] | None:
        """The task that asks nearly this and has the same answer, and how much they share."""
        shown = show_task(made)
        own, mine = features(shown), _numbers_in(shown)
        best: tuple[Task, float] | None = None
        for place in sorted(self._index.query(_signature(own))) if own else ():
            task, other, numbers = self._there[place]
            share = len(own & other) / len(own | other)
            same = mine == numbers and _agree(made.answer, task.answer) and _world_of(made) == _world_of(task)
            if share >= NEAR_COPY and same and (best is None or share > best[1]):
                best = task, share
        return best


def _signature(found: frozenset[Words]) -> Any:
    from datasketch import MinHash

    signature = MinHash(num_perm=HASHES, seed=1)
    signature.update_batch([" ".join(one).encode() for one in sorted(found)])
    return signature


def _world_of(task: Task) -> object:
    """The world of an environment in which a task is, None for one without."""
    return None if task.env_type is None else (task.env_type, world_of(task))


def _agree(one: str | None, other: str | None) -> bool:
    """True if one answer has all words of the other, or nobody knows."""
    mine, theirs = set(signs_of(one or "")), set(signs_of(other or ""))
    return mine <= theirs or theirs <= mine


class Leaks:
    """Finds held-out questions in others: whole, with other numbers, changed in some words, in another order, or within
    a longer text.

    Counted exactly, as MinHash would let some pass. What many tasks share, as the words of a template, says little: a
    word or pair that `df` of `n` tasks have, held out or not, weighs log((1 + n) / df). `others` may be learned, and
    where a held-out question is of the kind of one of them, only what holds more of it is a leak; `of_kind` says that
    all are. A question in wholly other words is not found.
    """

    def __init__(self, held_out: Sequence[Task], others: Sequence[Task], *, of_kind: bool = False) -> None:
        self._held_out, self._worlds = [*held_out], [_world_of(task) for task in held_out]
        texts = [features(show_task(task)) for task in self._held_out]
        beside = [features(show_task(task)) for task in others]
        shared = Counter(feature for text in [*texts, *beside] for feature in text)
        n = len(texts) + len(beside)
        self._numbers = [sorted(_numbers_in(show_task(task))) for task in self._held_out]
        self._weights = {feature: math.log((1 + n) / df) for feature, df in shared.items()}
        self._whole = [math.fsum(self._weights[feature] for feature in text) for text in texts]
        self._owners: dict[Words, list[int]] = defaultdict(list)
        for place, text in enumerate(texts):
            for feature in text:
                self._owners[feature].append(place)
        self._limits = [LEAK_OF_KIND if of_kind else LEAK if beside else LEAK_UNKNOWN] * len(texts)
        for text in beside[:OTHERS]:
            for place, share in self._shares(text).items():
                if share >= OF_KIND:
                    self._limits[place] = LEAK_OF_KIND

    def _shares(self, text: frozenset[Words]) -> dict[int, float]:
        """The share of each held-out question that a text holds."""
        shares: dict[int, float] = defaultdict(float)
        for feature in sorted(text):  # sums of floats depend on the order
            for place in self._owners.get(feature, ()):
                shares[place] += self._weights[feature] / self._whole[place]
        return shares

    def find(self, made: Task) -> tuple[Task, float] | None:
        """The held-out task, of no other world, of which `made` holds too much, and how much."""
        world, shown = _world_of(made), show_task(made)
        numbers, shares = sorted(_numbers_in(shown)), self._shares(features(shown))
        for place in sorted(shares, key=lambda place: -shares[place]):
            task = self._held_out[place]
            same = len(numbers) > 1 and numbers == self._numbers[place] and _agree(made.answer, task.answer)
            here = world is None or self._worlds[place] in (None, world)
            if here and shares[place] >= (SAME_LEAK if same else self._limits[place]):
                return task, shares[place]
        return None


def _numbers_in(text: str) -> list[str]:
    return _NUMBER.findall(plain(text))


def name_task(task: Task) -> str:
    """Its place, or else its id."""
    return task.place or f"task {task.task_id!r}"

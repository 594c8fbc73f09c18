"""The candidates of a search and what they earned: `candidates.jsonl`, which the package describes."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from astune.clients.usage import Usage
from astune.monitor.disk import write_whole, writing
from astune.prompts.attempts import TaskResult
from astune.support.statistics import NOISE

Fate = Literal["first", "kept", "tried", "dropped", "unplayed"]
Texts = Mapping[str, str]


@dataclass
class PromptCandidate:
    """A text for each name, and what it earned at the tasks that it played."""

    name: str
    texts: Texts
    parents: tuple[str, ...]
    round: int
    changed: tuple[str, ...] = ()
    why: str = ""
    results: dict[str, TaskResult] = field(default_factory=dict)

    @property
    def mean(self) -> float | None:
        """The mean score over the tasks that were played."""
        scores = [result.score for result in self.results.values()]
        return math.fsum(scores) / len(scores) if scores else None

    @property
    def success(self) -> float | None:
        """The share of attempts that passed; None where no judge says that."""
        passed = [attempt.passed for result in self.results.values() for attempt in result.attempts]
        judged = [one for one in passed if one is not None]
        return sum(judged) / len(judged) if judged else None


class Candidates:
    """All candidates, named c0, c1, ... in the order in which they came up, which depends on the seed alone."""

    def __init__(self, path: Path, tasks: Sequence[str]) -> None:
        """`tasks` are the ids of those that are searched on."""
        self._path, self._tasks = path, tasks
        self._by_texts: dict[str, PromptCandidate] = {}

    @property
    def all(self) -> list[PromptCandidate]:
        return list(self._by_texts.values())

    @property
    def first(self) -> PromptCandidate:
        return self.all[0]

    def find(self, texts: Texts) -> PromptCandidate | None:
        return self._by_texts.get(_key(texts))

    def add(self, texts: Texts, parents: Sequence[str], round: int, why: str = "") -> PromptCandidate:
        """The candidate with these texts, a new one if there is none."""
        known = self.find(texts)
        if known is not None:
            return known
        before = [one for one in self.all if one.name in parents]
        changed = tuple(name for name in texts if before and all(one.texts[name] != texts[name] for one in before))
        made = PromptCandidate(f"c{len(self._by_texts)}", dict(texts), tuple(parents), round, changed, why)
        self._by_texts[_key(texts)] = made
        return made

    def rename_first(self, texts: Texts) -> None:
        """Give the first candidate its texts, which are known when it has been played."""
        first = self.first
        first.texts = dict(texts)
        self._by_texts = {_key(texts): first}

    def set_parents(self, texts: Texts, parents: Iterable[Texts]) -> None:
        """Name the parents of a candidate that was played before anybody could say."""
        known = [one for one in map(self.find, parents) if one is not None]
        if (made := self.find(texts)) is not None and not made.parents:
            made.parents = tuple(one.name for one in known)
            made.changed = tuple(name for name in texts if any(one.texts[name] != texts[name] for one in known))

    def fate(self, one: PromptCandidate) -> Fate:
        if one is self.first:
            return "first"
        if not one.results:
            return "dropped" if one.why else "unplayed"
        return "kept" if len(one.results) == len(self._tasks) else "tried"

    @property
    def top(self) -> PromptCandidate:
        """The one with the greatest mean over all tasks of the search; of equals the oldest."""
        return max(self._whole(), key=lambda one: (one.mean or 0.0, -self.all.index(one)), default=self.first)

    @property
    def best(self) -> PromptCandidate:
        """The shortest of those whose mean is within a standard error of the greatest, over the tasks: what only chance
        tells from less is left out (the rule of Breiman et al. 1984)."""
        near = [one for one in self._whole() if _is_near(one, self.top)]
        return min(near, key=lambda one: sum(map(len, one.texts.values())), default=self.first)

    def _whole(self) -> list[PromptCandidate]:
        return [one for one in self.all if len(one.results) == len(self._tasks)]

    def save(self) -> None:
        """Write all rows anew."""
        text = "".join(json.dumps(self._row(one), ensure_ascii=False) + "\n" for one in self.all)
        with writing(self._path):
            write_whole(self._path, text)

    def _row(self, one: PromptCandidate) -> dict[str, Any]:
        return {
            "candidate": one.name,
            "parents": list(one.parents),
            "step": one.round,
            "fate": self.fate(one),
            "why": one.why,
            "texts": dict(one.texts),
            "changed": list(one.changed),
            "scores": {task: result.score for task, result in one.results.items()},
            "mean": one.mean,
            "success": one.success,
            **show_usage(sum((result.spent for result in one.results.values()), Usage())),
        }


def _is_near(one: PromptCandidate, top: PromptCandidate) -> bool:
    behind = [top.results[task].score - result.score for task, result in one.results.items()]
    mean = math.fsum(behind) / len(behind)
    spread = math.sqrt(math.fsum((each - mean) ** 2 for each in behind) / max(len(behind) - 1, 1))
    return mean <= spread / math.sqrt(len(behind)) + NOISE


def show_usage(usage: Usage) -> dict[str, Any]:
    """Give what stands of a usage in the files of a search."""
    return {name: getattr(usage, name) for name in ("calls", "prompt_tokens", "completion_tokens", "cost")}


def _key(texts: Texts) -> str:
    return json.dumps(dict(texts), sort_keys=True)

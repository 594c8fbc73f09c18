"""A report of several judges on the same labelled answers."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from itertools import combinations
from typing import Any

from astune.judging.agreement import mcnemar
from astune.judging.figures import JudgeFigures, Label, Outcome, accepts
from astune.types import Verdict


@dataclass(frozen=True)
class Mistake:
    """An answer that the judge takes for right where its label does not, or the other way round; or of which it could
    not tell: `reward` and `passed` are None then, and `reason` is the error."""

    number: int
    """Of the answer in the file, from 1."""
    task_id: str
    label: float
    right: bool
    reward: float | None
    passed: bool | None
    reason: str


@dataclass(frozen=True)
class Comparison:
    """Two judges on the `n` answers of which both could tell."""

    first: str
    second: str
    n: int
    only_first: int
    """Answers on which only the first agrees with the label."""
    only_second: int
    p: float
    """By McNemar's exact test."""


@dataclass(frozen=True)
class JudgeReport:
    """`outcomes[j][i]` is what the judge of `figures[j]` says of the answer of `labels[i]`."""

    source: str
    labels: tuple[Label, ...]
    graded: bool
    pass_label: float
    pass_reward: float
    figures: tuple[JudgeFigures, ...]
    outcomes: tuple[tuple[Outcome, ...], ...]

    def disagreements(self, judge: int) -> list[Mistake]:
        """In the order of the file."""
        return [
            Mistake(number, label.task_id, label.value, label.right, float(said.reward), passed, said.reason)
            for number, (label, said) in enumerate(self._pairs(judge), start=1)
            if isinstance(said, Verdict) and (passed := accepts(said, self.pass_reward)) != label.right
        ]

    def failures(self, judge: int) -> list[Mistake]:
        """Answers of which the judge could not tell, in the order of the file."""
        return [
            Mistake(number, label.task_id, label.value, label.right, None, None, f"{type(said).__name__}: {said}")
            for number, (label, said) in enumerate(self._pairs(judge), start=1)
            if isinstance(said, Exception)
        ]

    def comparisons(self) -> list[Comparison]:
        """One for each two judges."""
        return [self._compare(first, second) for first, second in combinations(range(len(self.figures)), 2)]

    def _pairs(self, judge: int) -> list[tuple[Label, Outcome]]:
        return [*zip(self.labels, self.outcomes[judge], strict=True)]

    def _compare(self, first: int, second: int) -> Comparison:
        ways = [
            (accepts(one, self.pass_reward) == label.right, accepts(two, self.pass_reward) == label.right)
            for label, one, two in zip(self.labels, self.outcomes[first], self.outcomes[second], strict=True)
            if isinstance(one, Verdict) and isinstance(two, Verdict)
        ]
        p = mcnemar([one for one, _ in ways], [two for _, two in ways])
        names = self.figures[first].judge, self.figures[second].judge
        return Comparison(*names, len(ways), ways.count((True, False)), ways.count((False, True)), p)

    def to_json(self) -> dict[str, Any]:
        """All of it, as plain data."""
        return {
            "examples": {
                "file": self.source,
                "n": len(self.labels),
                "tasks": len({label.task_id for label in self.labels}),
                "right": sum(label.right for label in self.labels),
                "graded": self.graded,
                "pass_label": self.pass_label,
                "pass_reward": self.pass_reward,
            },
            "judges": [self._judge_json(judge) for judge in range(len(self.figures))],
            "comparisons": [asdict(comparison) for comparison in self.comparisons()],
        }

    def _judge_json(self, judge: int) -> dict[str, Any]:
        figures = self.figures[judge]
        counts = figures.confusion.counts
        return {
            **{name: value for name, value in asdict(figures).items() if name != "confusion"},
            "judged": figures.judged,
            "true_positives": counts[True, True],
            "false_positives": counts[False, True],
            "false_negatives": counts[True, False],
            "true_negatives": counts[False, False],
            "precision": figures.confusion.precision(True),
            "recall": figures.confusion.recall(True),
            "disagreements": [asdict(mistake) for mistake in self.disagreements(judge)],
            "failures": [asdict(mistake) for mistake in self.failures(judge)],
        }

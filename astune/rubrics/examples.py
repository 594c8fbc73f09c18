"""Examples that a rubric is learned from: answers that people scored, paired or ranked.

    {"query": "Where is my order?", "answer": "It ...", "score": 4}       true and false are scores too
    {"query": "Where is my order?", "chosen": "It ...", "rejected": "Well ..."}
    {"query": "Where is my order?", "answers": ["best", "...", "worst"]}

All lines of a file are of one kind. `id` and `reference` may be added. OpenJudge's names are known too.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from astune.errors import TaskError, nearest
from astune.judging.figures import check_one_scale
from astune.support.file_kinds import Kind as FileKind
from astune.support.file_kinds import instead, kind_of
from astune.task_reader.jsonl import read_jsonl

Kind = Literal["scored", "paired", "ranked"]

FEWEST = 5
OTHER_NAMES = {
    "response": "answer",
    "responses": "answers",
    "label": "score",
    "label_score": "score",
    "label_rank": "ranks",
}
"""Names of OpenJudge and of `astune judge-report`, and ours."""
COLUMNS: Mapping[Kind, tuple[str, ...]] = {
    "scored": ("answer", "score"),
    "paired": ("chosen", "rejected"),
    "ranked": ("answers",),
}
KNOWN = ("id", "query", "reference", "ranks", *(name for names in COLUMNS.values() for name in names))
EXPECTED = "{query, answer, score}, {query, chosen, rejected} or {query, answers}"


@dataclass(frozen=True)
class RubricExample:
    """Answers to one question, the best first, and how good each is: `values` are higher for better answers, equal for
    equally good ones. A scored example has one answer, of value 0 to 1 on the scale of its file; a pair has 1 and 0."""

    id: str
    query: str
    answers: tuple[str, ...]
    values: tuple[float, ...]
    reference: str | None = None

    @property
    def good(self) -> bool:
        """True if the score of a scored example is in the upper half of the scores of its file."""
        return self.values[0] >= 0.5

    @property
    def orders(self) -> tuple[tuple[int, int], ...]:
        """Numbers of two answers of which people find the first better, for all such pairs."""
        numbers = range(len(self.values))
        return tuple((i, j) for i in numbers for j in numbers if self.values[i] > self.values[j])


@dataclass(frozen=True)
class Examples:
    """A file of examples. `sha256` is of its bytes."""

    path: Path
    sha256: str
    kind: Kind
    all: tuple[RubricExample, ...]


def read_examples(path: Path) -> Examples:
    """Raises TaskError with file, line and column for what is no example, for lines of different kinds, for fewer than
    five, and for scores that are all equal."""
    return examples_of_rows(read_jsonl(path), path)


def examples_of_rows(given: Iterable[tuple[str, dict[str, Any]]], path: Path) -> Examples:
    """The examples of rows, each with its place. `path` is what errors and reports call them: their file, whose digest
    they then have, or a name."""
    rows: list[tuple[str, dict[str, Any]]] = []
    for place, row in given:
        if not rows:
            _check_kind(row, place)
        rows.append((place, _with_our_names(row, place)))
    if len(rows) < FEWEST:
        raise TaskError(
            f"{path}: {len(rows)} examples, expected {FEWEST} to 100: fewer leave none to check a rubric on"
        )
    kind = _kind(*rows[0])
    for place, row in rows[1:]:
        if _kind(place, row) != kind:
            raise TaskError(f"{place}: a {_kind(place, row)} example, expected a {kind} one as in {rows[0][0]}")
    if kind == "scored":
        check_one_scale([(place, row.get("score")) for place, row in rows])
    examples = [_example(place, row, kind) for place, row in rows]
    twice = [name for name, count in Counter(example.id for example in examples).items() if count > 1]
    if twice:
        raise TaskError(f"{path}: id {twice[0]!r} stands in several lines; ids must be unique")
    if kind == "scored":
        examples = _on_one_scale(path, examples)
    content = path.read_bytes() if path.is_file() else repr([row for _, row in rows]).encode()
    return Examples(path, hashlib.sha256(content).hexdigest(), kind, tuple(examples))


def _check_kind(row: Mapping[str, Any], place: str) -> None:
    """Raises TaskError for a file of something else, unless a name in it is a misspelt one."""
    kind = kind_of(row)
    columns = [name for names in COLUMNS.values() for name in names]
    misspelt = any(name not in (*KNOWN, *OTHER_NAMES) and nearest(name, columns) for name in row)
    if kind not in (None, FileKind.SCORED) and not misspelt:
        raise TaskError(f"{place}: {instead(kind, EXPECTED)}")


def _with_our_names(row: Mapping[str, Any], place: str) -> dict[str, Any]:
    named: dict[str, Any] = {}
    for name, value in row.items():
        ours = OTHER_NAMES.get(name, name)
        if ours not in KNOWN:
            raise TaskError(f"{place}: unknown key {name!r}.{nearest(name, KNOWN)} Expected {EXPECTED}")
        if ours in named:
            raise TaskError(f"{place}: {name!r} and {ours!r} mean the same; expected one of them")
        named[ours] = value
    return named


def _kind(place: str, row: Mapping[str, Any]) -> Kind:
    kinds = [kind for kind, names in COLUMNS.items() if any(row.get(name) is not None for name in names)]
    if len(kinds) != 1:
        found = ", ".join(row) or "nothing"
        raise TaskError(f"{place}: expected {EXPECTED}, found {found}")
    return kinds[0]


def _example(place: str, row: Mapping[str, Any], kind: Kind) -> RubricExample:
    query = _read_text(place, row, "query")
    given_id, reference = row.get("id"), row.get("reference")
    if given_id is not None and (isinstance(given_id, bool) or not isinstance(given_id, str | int)):
        raise TaskError(f"{place}: id: expected a text or a whole number, got {given_id!r:.80}")
    answers: tuple[str, ...]
    values: tuple[float, ...]
    if kind == "scored":
        answers, values = (_read_text(place, row, "answer"),), (_read_number(place, "score", row.get("score")),)
    elif kind == "paired":
        answers, values = (_read_text(place, row, "chosen"), _read_text(place, row, "rejected")), (1.0, 0.0)
    else:
        answers, values = _read_ranked(place, row)
    if len(set(answers)) < len(answers):
        raise TaskError(f"{place}: two of the answers are the same text, so neither can be better")
    name = str(given_id) if given_id is not None else hashlib.sha256(repr((query, answers)).encode()).hexdigest()[:10]
    return RubricExample(
        name, query, answers, values, None if reference is None else _read_text(place, row, "reference")
    )


def _read_ranked(place: str, row: Mapping[str, Any]) -> tuple[tuple[str, ...], tuple[float, ...]]:
    """Read answers and values of a ranked example; `ranks` has 1 for the best, equal numbers for equally good ones."""
    answers = row["answers"]
    if not isinstance(answers, list) or len(answers) < 2:
        raise TaskError(f"{place}: answers: expected a list of at least two, the best first, got {answers!r:.80}")
    texts = [_read_text(place, {f"answers[{n}]": text}, f"answers[{n}]") for n, text in enumerate(answers)]
    ranks = row.get("ranks")
    if ranks is None:
        ranks = list(range(1, len(texts) + 1))
    if not isinstance(ranks, list) or len(ranks) != len(texts):
        raise TaskError(f"{place}: ranks: expected a number for each of the {len(texts)} answers, got {ranks!r:.80}")
    if any(isinstance(rank, bool) for rank in ranks):
        raise TaskError(f"{place}: ranks: expected numbers, 1 for the best, got {ranks!r:.80}")
    numbers = [_read_number(place, f"ranks[{n}]", rank) for n, rank in enumerate(ranks)]
    if len(set(numbers)) == 1:
        raise TaskError(f"{place}: ranks: all are equal; expected one answer that is better than another")
    order = sorted(range(len(texts)), key=lambda n: numbers[n])
    return tuple(texts[n] for n in order), tuple(-numbers[n] for n in order)


def _on_one_scale(path: Path, examples: list[RubricExample]) -> list[RubricExample]:
    """The lowest score of the file becomes 0, the highest 1."""
    scores = [example.values[0] for example in examples]
    low, high = min(scores), max(scores)
    if low == high:
        raise TaskError(f"{path}: every score is {low:g}; expected good and bad answers")
    return [
        RubricExample(one.id, one.query, one.answers, ((one.values[0] - low) / (high - low),), one.reference)
        for one in examples
    ]


def _read_text(place: str, row: Mapping[str, Any], name: str) -> str:
    value = row.get(name)
    if not isinstance(value, str) or not value.strip():
        raise TaskError(f"{place}: {name}: expected a text, got {value!r:.80}")
    return value


def _read_number(place: str, name: str, value: Any) -> float:
    if not isinstance(value, int | float) or not math.isfinite(value):
        raise TaskError(f"{place}: {name}: expected a number, got {value!r:.80}")
    return float(value)

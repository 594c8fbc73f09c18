"""Answers with the labels that people gave them, from a JSON Lines file.

{"question": "6 * 12?", "answer": "72", "response": "That is \\\\boxed{72}.", "label": true}
{"question": "6 * 12?", "answer": "72", "response": "Probably 62", "label": false}
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from astune.config.tasks import FieldsConfig
from astune.errors import TaskError, nearest
from astune.judging.figures import Label, check_one_scale
from astune.support.file_kinds import instead, kind_of
from astune.support.user_values import text_of
from astune.task_reader.jsonl import read_jsonl
from astune.task_reader.rows import RowMapping
from astune.types import Episode, StopReason, WorkflowOutput

LABEL_FIELDS = ("label", "is_correct")


@dataclass(frozen=True)
class LabelledAnswers:
    """`labels[i]` is of `episodes[i]`. Labels are graded if one of them is a number other than 0 and 1."""

    episodes: tuple[Episode, ...]
    labels: tuple[Label, ...]
    graded: bool
    pass_label: float
    """An answer counts as right from this label on."""


def read_labelled_answers(
    path: Path, fields: FieldsConfig, *, response_field: str, label_field: str | None, pass_label: float | None
) -> LabelledAnswers:
    """Each line is a task, as `fields` names its columns, with the answer in `response_field` and the label, a truth
    value or a number, in `label_field` (None: the first of `LABEL_FIELDS` that is there). Lines with the same task id,
    or without id the same task, are answers to one task. `pass_label=None` is the middle between the lowest and the
    highest label. Raises `TaskError` that names file, line and key.
    """
    episodes: list[Episode] = []
    given: list[tuple[str, bool | int | float]] = []
    mapping = RowMapping(fields)
    for place, row in read_jsonl(path):
        label_key = label_field or _label_field(row, place)
        kind = kind_of(row)
        if kind is not None and not {label_key, response_field} <= row.keys():
            raise TaskError(f"{place}: {instead(kind, f'answers with {response_field!r} and {label_key!r}')}")
        given.append((place, _label(row, label_key, place)))
        response = _read_value(row, response_field, place, "the answer to judge", "--response-field")
        rest = {name: value for name, value in row.items() if name not in (response_field, label_key)}
        task = mapping.record(rest, place).task
        output = WorkflowOutput(answer=response)
        episodes.append(Episode(f"{path.name}-{len(episodes) + 1}", task, (), (), StopReason.COMPLETED, output=output))
    if not episodes:
        raise TaskError(f"{path}: no examples, the file is empty")
    check_one_scale(given)
    values = [float(value) for _, value in given]
    graded = any(value not in (0, 1) for value in values)
    middle = (min(values) + max(values)) / 2 if graded else 0.5
    threshold = middle if pass_label is None else pass_label
    return LabelledAnswers(
        tuple(episodes),
        _labels(episodes, values, threshold),
        graded=graded,
        pass_label=threshold,
    )


def _labels(episodes: Sequence[Episode], values: Sequence[float], threshold: float) -> tuple[Label, ...]:
    return tuple(
        Label(episode.task.task_id, value, value >= threshold, len(response_text(episode)))
        for episode, value in zip(episodes, values, strict=True)
    )


def response_text(episode: Episode) -> str:
    return "" if episode.output is None else text_of(episode.output.answer)


def _label_field(row: Mapping[str, Any], place: str) -> str:
    """The first of `LABEL_FIELDS` that the line has. Raises TaskError if it has more than one, and they differ."""
    found = [name for name in LABEL_FIELDS if name in row]
    if any(row[name] != row[found[0]] for name in found):
        said = ", ".join(f"{name!r} is {row[name]!r:.60}" for name in found)
        raise TaskError(f"{place}: {said}: labels that contradict each other; --label-field names the one that counts")
    return (found or LABEL_FIELDS)[0]


def _label(row: Mapping[str, Any], key: str, place: str) -> bool | int | float:
    value = _read_value(row, key, place, "the label", "--label-field")
    if not isinstance(value, bool | int | float) or not math.isfinite(value):
        raise TaskError(f"{place}: {key!r} must be true, false or a number, found {value!r:.60}")
    return value


def _read_value(row: Mapping[str, Any], key: str, place: str, what: str, option: str) -> Any:
    if row.get(key) is None:
        found = "is null" if key in row else f"is missing; the line has {', '.join(map(repr, row)) or 'no keys'}"
        raise TaskError(f"{place}: {key!r}, {what}, {found}.{nearest(key, row)} {option} names another key")
    return row[key]

"""Recognise the files and folders that ASTune writes or reads, so that one in the wrong place is told as what it is.

>>> kind_of({"query": "6 * 7?", "answer": "42"}).what
'tasks'
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Any

HEAD, MOST_BYTES = 1 << 20, 1 << 26
"""Bytes that are read of a file whose first line is no object, and of one that may be an object as a whole."""


class Kind(Enum):
    """The content of a file, and where it belongs."""

    EPISODES = "recorded episodes", "for astune.trainer.examples, `astune replay`, `rescore` and `diff`"
    RECORDING = (
        "the older recording of an episode",
        "for `astune replay`, `rescore` and `diff`, and for --model replay:FILE",
    )
    CONVERSATIONS = (
        "conversations that end with an answer",
        "for astune.trainer.examples, with astune.algorithm.method sft",
    )
    COMPARED = "answers that were compared", "for astune.trainer.examples, with astune.algorithm.method dpo"
    JUDGED = "answers that are good or bad", "for astune.trainer.examples, with astune.algorithm.method kto"
    SCORED = "answers that somebody scored, paired or ranked", "for astune.rubrics.examples"
    LABELLED = "answers that somebody labelled", "for `astune judge-report --examples`"
    TASKS = "tasks", "for astune.task_reader"
    CONFIG = "a configuration", "for --conf"
    TRINITY = "a configuration of Trinity's own", "whose keys stand in the section trinity of a configuration of ASTune"
    VERL = "a configuration of verl's own", "whose keys stand in the section verl of a configuration of ASTune"
    RUBRIC = "a rubric", "for astune.task_judge.rubrics.file and `astune rubrics show`"
    METRICS = "the metrics of a run", "shown by `astune view` and `astune report` of the run's folder"
    LOG = "the log of a run", "for people"
    EVALUATION = "the notes of an evaluation", "whose folder is for `astune eval --compare`"
    EVAL = "what `astune eval --json` printed", "for people and scripts"
    CHECK = "what `astune check-tasks --json` printed", "for people and scripts"
    DOCTOR = "what `astune doctor --json` printed", "for people and scripts"
    PREVIEW = "what `astune tasks preview --json` printed", "for people and scripts"
    REPORT = "what `astune judge-report --json` printed", "for people and scripts"
    PAGE = "a page", "for a browser"
    TABLE = "a Parquet table", "for astune.task_reader; `astune online export` writes JSON Lines too"
    DATABASE = "a database", "for astune.monitor.store, astune.online.store or astune.task_judge.llm.cache"
    RUN = (
        "the folder of a run",
        "for `astune view`, `report`, `replay`, `rescore` and `export --run`; its episodes are in episodes/",
    )
    PLAYED = "the folder of an evaluation", "for `astune eval --compare`; its episodes are in episodes/"
    CHECKPOINT = "a checkpoint", "for `astune export --checkpoint`, `astune eval --checkpoint` and astune.model.path"

    def __init__(self, what: str, belongs: str) -> None:
        self.what, self.belongs = what, belongs

    def __str__(self) -> str:
        return f"{self.what}, {self.belongs}"


LINES = (
    Kind.EPISODES,
    Kind.CONVERSATIONS,
    Kind.COMPARED,
    Kind.JUDGED,
    Kind.SCORED,
    Kind.LABELLED,
    Kind.TASKS,
)
"""Kinds of JSON Lines files that are made to be read; which of them is right the reader of a line knows."""

_KEYS: dict[Kind, frozenset[str]] = {
    Kind.EPISODES: frozenset({"timelines", "turns"}),
    Kind.RECORDING: frozenset({"astune_recording"}),
    Kind.EVALUATION: frozenset({"candidate", "tasks", "attempts"}),
    Kind.CHECK: frozenset({"conf", "failing", "left_out"}),
    Kind.DOCTOR: frozenset({"conf", "findings"}),
    Kind.PREVIEW: frozenset({"conf", "a_run_would_stop"}),
    Kind.REPORT: frozenset({"examples", "judges", "comparisons"}),
    Kind.LOG: frozenset({"time", "level", "process", "message"}),
    Kind.TRINITY: frozenset({"mode", "buffer", "explorer"}),
    Kind.VERL: frozenset({"actor_rollout_ref", "trainer"}),
}
"""Kinds by keys that nothing else has together."""
_QUESTION = {"query", "question"}
_TASK = {"messages", "task_id", "id", "query", "question", "answer", "env_type"}
_SCORES = {"score", "label", "label_score", "is_correct"}


def kind_of(row: Mapping[str, Any]) -> Kind | None:
    """The kind of a file that has this object, in a line or as a whole; None for what is the user's own."""
    found = next((kind for kind, keys in _KEYS.items() if keys <= row.keys()), None)
    if found is not None:
        return found
    if isinstance(row.get("astune"), Mapping):
        return Kind.CONFIG
    if isinstance(row.get("evaluated"), list):
        return Kind.EVAL
    if str(row.get("schema")).startswith("astune.rubric/"):
        return Kind.RUBRIC
    if isinstance(row.get("step"), int) and "time" in row and not _QUESTION & row.keys():
        return Kind.METRICS
    return _of_conversation(row) if "messages" in row else _of_question(row)


def _of_conversation(row: Mapping[str, Any]) -> Kind | None:
    messages, names = row["messages"], row.keys() - {"tools", "lineage"}
    if names == {"messages", "chosen", "rejected"}:
        return Kind.COMPARED
    if names == {"messages", "answer", "good"}:
        return Kind.JUDGED
    roles = [each.get("role") for each in messages if isinstance(each, Mapping)] if isinstance(messages, list) else []
    if names == {"messages"} and roles and roles[-1] == "assistant":
        return Kind.CONVERSATIONS
    return Kind.TASKS if roles and "assistant" not in roles and names <= _TASK else None


def _of_question(row: Mapping[str, Any]) -> Kind | None:
    if not any(isinstance(row.get(name), str) for name in _QUESTION):
        return None
    names, scores = row.keys() - {"id", "reference", "ranks", "label_rank"}, row.keys() & _SCORES
    pair, ranked = {"query", "chosen", "rejected"}, ({"query", "answers"}, {"query", "responses"})
    scored = len(scores) == 1 and names - scores in ({"query", "answer"}, {"query", "response"})
    if scored or names == pair or names in ranked:
        return Kind.SCORED
    if scores and "response" in names:
        return Kind.LABELLED
    return None if scores or {"chosen", "answers", "responses"} & names else Kind.TASKS


def kind_of_path(path: Path) -> Kind | None:
    """The kind of a file or a folder, by the first of it that says so; None too for what is not there."""
    if path.is_dir():
        return _of_folder(path)
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            first = file.readline(MOST_BYTES).removeprefix(b"\xef\xbb\xbf")
            kind = _of_beginning(first)
            if kind is not None or isinstance(value := _value(first), Mapping):
                return kind or kind_of(value)
            is_object = first.lstrip().startswith(b"{")
            text = first + file.read(MOST_BYTES if is_object else HEAD)
    except (OSError, EOFError):
        return None
    value = _value(text) if is_object else _sections(text)
    return kind_of(value) if isinstance(value, Mapping) else None


def other_kind(path: Path, expected: str, *wanted: Kind) -> str:
    """The words for a file or folder that is known as something else than `wanted`, which `expected` describes; "" for
    any other."""
    kind = kind_of_path(path)
    return "" if kind is None or kind in wanted else f"{path}: {instead(kind, expected)}"


def instead(kind: Kind, expected: str) -> str:
    """The words for a file of another kind.

    >>> instead(Kind.TASKS, "a rubric")
    'expected a rubric, and this is tasks, for astune.task_reader'
    """
    return f"expected {expected}, and this is {kind}"


def _of_folder(path: Path) -> Kind | None:
    if (path / "config.yaml").is_file():
        if (path / "evaluation.json").is_file():
            return Kind.PLAYED
        return Kind.RUN if (path / "episodes").is_dir() or (path / "metrics.jsonl").is_file() else None
    return Kind.CHECKPOINT if (path / "COMPLETE").is_file() else None


def _of_beginning(first: bytes) -> Kind | None:
    """By the first line of a file that is no JSON."""
    if first.startswith(b"SQLite format 3\0"):
        return Kind.DATABASE
    if first.startswith(b"PAR1"):
        return Kind.TABLE
    if first.lower().startswith(b"<!doctype html"):
        return Kind.PAGE
    return Kind.LOG if re.match(rb"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+ \| [A-Z]+ +\| ", first) else None


def _value(text: bytes) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _sections(text: bytes) -> dict[str, Any]:
    """The keys at the margin of a YAML file, a section as an empty one."""
    found = re.findall(rb"^([A-Za-z_]\w*):[ \t]*(.*?)[ \t]*(?:#.*)?$", text, re.MULTILINE)
    return {name.decode(): value.decode(errors="replace") or {} for name, value in found}

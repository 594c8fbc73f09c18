"""Tasks that were made, those that were dropped, and the files that hold both.

out.jsonl               a task a line, with its lineage: what it came from, and what proved its answer
out.dropped.jsonl       what was proposed and not kept, and why
out.report.json         counts, the cost, and whether it is complete
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from astune.clients.reply_cache import cache_key
from astune.clients.usage import Usage
from astune.errors import ConfigError
from astune.monitor.disk import write_whole, writing
from astune.types import Task

REASONS = {
    "unread": "cannot be read: broken, of another schema, or no text",
    "nobody asked": "a schedule or another agent did",
    "evaluation": "a judge's, or of an answer that is not there",
    "no consent": "its user did not agree, or is not said to have",
    "contradiction": "feedback for and against it",
    "no sign": "nothing tells whether the answer was good",
    "remark": "what a user said of the answer before, not a question",
    "empty": "no question, no answer, or a blank that was not filled in",
    "length": "far shorter or longer than what it was made from",
    "format": "the answer, or a choice of answers, is of another form than those of the tasks that are there",
    "language": "in another language than what it was made from",
    "balance": "of its kind there are twice as many as of others already",
    "copy": "word for word one that is there",
    "near copy": "one that is there, with a few words changed",
    "leak": "close to a held-out or evaluation task",
    "evidence": "the evidence is not in the document, or does not hold the answer",
    "wrong answer": "the check came to another answer",
    "no agreement": "independent solutions differ",
    "unchecked": "nothing could check the answer",
    "quality": "the rubric does not pass it",
    "known": "answered rightly without the document",
    "found": "the documents answer it, though it was to be one that they do not",
    "too hard": "the policy never solved it",
    "too easy": "the policy solved it each time",
}
"""Why a proposed task is dropped."""


@dataclass(frozen=True)
class Made:
    """A task that a model proposed. `lineage` says what it came from; the checks that it passes are added."""

    query: str
    answer: str
    """Empty where the judge of an environment needs none, and where a user was not content with the one there was."""
    lineage: Mapping[str, Any]
    columns: Mapping[str, Any] = field(default_factory=dict)
    """Further columns of its row: `messages` that end with the question, `env_type`, and what its judge reads."""

    @property
    def task(self) -> Task:
        """An id that depends on question and answer alone, so that equal sets have equal ids."""
        messages = tuple(self.columns.get("messages", ()))
        name = f"made-{cache_key([self.query, self.answer, *messages])[:16]}"
        world = self.columns.get("env_type")
        return Task(name, self.query, messages, self.answer or None, env_type=world, metadata=self.columns)

    def row(self) -> dict[str, Any]:
        name = self.task.task_id
        answer = {"answer": self.answer} if self.answer else {}
        return {"task_id": name, "query": self.query, **answer, **self.columns, "lineage": self.lineage}


@dataclass(frozen=True)
class Dropped:
    """A task that was proposed and is not kept. `reason` is one of `REASONS`."""

    made: Made
    reason: str
    detail: str

    def row(self) -> dict[str, Any]:
        """A row that no reader takes for a task."""
        return {"reason": self.reason, "detail": self.detail, "task": self.made.row()}


@dataclass
class Harvest:
    """All that came of a run, in an order that does not depend on which reply came first."""

    out: Path
    target: int
    kept: list[Made] = field(default_factory=list)
    dropped: list[Dropped] = field(default_factory=list)
    proposed: int = 0
    ended: str = ""
    """Why it ended before the target; empty if it did not, or was cut off."""
    paid: Usage = field(default_factory=Usage)  # of all replies used, also where an earlier run paid them
    now: Usage = field(default_factory=Usage)  # of all calls of this run, also of those without a usable reply
    quality: str = ""  # how far the rubric agrees with people
    most_of_a_kind: int | None = None

    def is_full(self, kind: object) -> bool:
        """True if there are as many tasks of this kind as there may be."""
        return [made.lineage.get("kind") for made in self.kept].count(kind) == self.most_of_a_kind

    def look(self, made: Made) -> Dropped | None:
        kind = made.lineage.get("kind")
        return Dropped(made, "balance", f"of kind {kind!r}") if self.is_full(kind) else None

    @property
    def complete(self) -> bool:
        return len(self.kept) >= self.target

    @property
    def reasons(self) -> dict[str, int]:
        """The number of those dropped for each reason, in the order of `REASONS`."""
        counts = Counter(one.reason for one in self.dropped)
        return {reason: counts[reason] for reason in REASONS if counts[reason]}

    def report(self) -> dict[str, Any]:
        return {
            "complete": self.complete,
            "ended": self.ended or ("" if self.complete else "cut off"),
            "target": self.target,
            "kept": len(self.kept),
            "dropped": self.reasons,
            "unfinished": self.proposed - len(self.kept) - len(self.dropped),
            "quality": self.quality or None,
            **asdict(self.paid),
            "this_run": asdict(self.now),
        }

    def make_folder(self) -> None:
        """Raises RunFolderError where there is no place for the files."""
        with writing(self.out):
            self.out.parent.mkdir(parents=True, exist_ok=True)

    def save(self) -> None:
        """Write the three files, each as a whole."""
        self.make_folder()
        with writing(self.out):
            write_whole(self.out.with_suffix(".dropped.jsonl"), lines_of([one.row() for one in self.dropped]))
            write_whole(self.out.with_suffix(".report.json"), json.dumps(self.report(), indent=2) + "\n")
            write_whole(self.out, lines_of([one.row() for one in self.kept]))


def check_own(file: Path) -> None:
    """Raises ConfigError for a file that somebody else wrote."""
    if file.exists() and not file.with_suffix(".report.json").exists():
        raise ConfigError(f"{file}: is there, and `astune data` did not write it: choose another file")


def lines_of(rows: list[dict[str, Any]]) -> str:
    """Rows as lines of JSON; half of a surrogate pair as its escape."""
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    return text.encode("utf-8", errors="backslashreplace").decode()

"""Does a text quote the tasks that it was searched on? Such a prompt gains on those and says nothing of others.

A text leaks what the first one did not say and only few tasks do: eight words in a row of a task's question or row, its
answer where that is long, or a short answer beside four words in a row of its question. What many tasks share is how
they are put, or a label: no secret of one of them.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from astune.support.words import Words, holds, words_of
from astune.task_judge.llm.shown_attempt import show_task
from astune.types import Task

RUN, RUN_BESIDE_ANSWER = 8, 4
"""Words in a row of a task that are a quotation: by themselves, and of a question whose answer is there too."""
LONG_ANSWER = 12
"""Signs of an answer that is a quotation by itself, if it has three words or five digits in a row."""
MOST_TASKS = 2
"""Tasks that may share what is a quotation."""


class LeakCheck:
    """Finds quotations of `tasks` that are not in the first texts."""

    def __init__(self, tasks: Sequence[Task], first: Mapping[str, str]) -> None:
        self._first = [words_of(text) for text in first.values()]
        self._runs = {size: _owners(tasks, size) for size in (RUN, RUN_BESIDE_ANSWER)}
        self._answers: dict[Words, list[str]] = defaultdict(list)
        for task in tasks:
            if words := words_of(task.answer or ""):
                self._answers[words].append(task.task_id)
        self._long = {words for words in self._answers if _is_long(words)}

    def find(self, text: str) -> str | None:
        """Say what `text` quotes; None if nothing."""
        words = words_of(text)
        for run, task in self._find_quoted(words, RUN):
            return f"it quotes task {task!r}: {' '.join(run)!r}"
        told = {task: run for run, task in self._find_quoted(words, RUN_BESIDE_ANSWER)}
        for answer, tasks in self._answers.items():
            if (len(tasks) > MOST_TASKS and answer in self._long) or not self._is_new(answer, words):
                continue
            if answer in self._long:
                return f"it quotes the answer to task {tasks[0]!r}: {' '.join(answer)!r}"
            if beside := next((task for task in tasks if task in told), None):
                return (
                    f"it gives the answer to task {beside!r}, {' '.join(answer)!r}, beside {' '.join(told[beside])!r}"
                )
        return None

    def _find_quoted(self, words: Words, size: int) -> Iterator[tuple[Words, str]]:
        owners = self._runs[size]
        for run in _runs_of(words, size):
            if run in owners and len(owners[run]) <= MOST_TASKS and not any(holds(text, run) for text in self._first):
                yield run, min(owners[run])

    def _is_new(self, answer: Words, words: Words) -> bool:
        return holds(words, answer) and not any(holds(text, answer) for text in self._first)


def _owners(tasks: Sequence[Task], size: int) -> Mapping[Words, set[str]]:
    """The ids of the tasks in which each run of words stands; those of its question alone where an answer is beside."""
    owners: dict[Words, set[str]] = defaultdict(set)
    for task in tasks:
        for text in [show_task(task)] if size == RUN_BESIDE_ANSWER else [show_task(task), *_texts(task.metadata)]:
            for run in _runs_of(words_of(text), size):
                owners[run].add(task.task_id)
    return owners


def _texts(value: Any) -> Iterator[str]:
    """All texts of a row."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for entry in value.values():
            yield from _texts(entry)
    elif isinstance(value, list | tuple):
        for entry in value:
            yield from _texts(entry)


def _runs_of(words: Words, size: int) -> Iterator[Words]:
    """The runs of `size` words; of signs of scripts without spaces, which say less, it takes half as many more."""
    for at in range(len(words) - size + 1):
        run = words[at : at + size]
        if not all(len(word) == 1 for word in run):
            yield run
        elif at + size + size // 2 <= len(words):
            yield words[at : at + size + size // 2]


def _is_long(answer: Words) -> bool:
    whole = " ".join(answer)
    return len(whole) >= LONG_ANSWER and (len(answer) >= 3 or re.search(r"\d{5}", whole) is not None)

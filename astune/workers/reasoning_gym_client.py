"""reasoning-gym (https://github.com/open-thought/reasoning-gym, arXiv:2505.24760): its tasks, and its verifiers.

    first, second = TaskMaker().draw("gcd", {}, seed=0, count=2, key="datasets.gcd")
    Verifier(timeout=10.0).score("gcd", first.entry, "8").result()  # {"score": 1.0}

The package is never imported here: all is done by `reasoning_gym_worker`.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from astune.errors import ConfigError, JudgeError, MissingDependency, TaskError, nearest
from astune.workers.pool import WorkerPool

WORKER_FILE = Path(__file__).with_name("reasoning_gym_worker.py")
MAKING_SECONDS = 300.0
DRAWS = 20
"""Most tasks that are asked for at a time, and made in `MAKING_SECONDS`."""
GIVE_UP = 1000
"""Draws in a row that were all seen before, after which a data set counts as exhausted."""
SEED_STEP = 10_000_000
"""reasoning-gym seeds its task number n with seed + n: seeds so far apart share no task."""


@dataclass(frozen=True)
class GymTask:
    """A task as it was drawn: number `index` of its data set."""

    dataset: str
    index: int
    question: str
    answer: str | None
    """None where the data set has no reference answer, only a verifier."""
    entry: Mapping[str, Any]
    """All that the verifier needs, in types that JSON keeps."""


class TaskMaker:
    """Makes tasks. Raises `MissingDependency` at birth.

    Equal data sets, options and seeds give equal tasks in every process, whatever else was drawn before.
    """

    def __init__(self) -> None:
        self._pool = _pool(1, MAKING_SECONDS)

    def draw(self, dataset: str, options: Mapping[str, Any], seed: int, count: int, key: str) -> Iterator[GymTask]:
        """The first `count` tasks with different questions, made as they are asked for.

        Raises `ConfigError` that begins with `key` for a data set or an option that there is not, and `TaskError` if
        there are not so many."""
        seen: set[str] = set()
        index = repeats = 0
        while len(seen) < count:
            if repeats >= GIVE_UP:
                raise TaskError(
                    f"{key}: only {len(seen)} different questions among the first {index:,}, but {count} are asked "
                    "for: ask for fewer tasks, or change the options of the data set"
                )
            made = self._make(dataset, options, seed, index, min(DRAWS, count - len(seen)), key)
            index += len(made)
            repeats += len(made)
            for task in made:
                if task.question not in seen:
                    seen.add(task.question)
                    repeats = 0
                    yield task

    def _make(
        self, dataset: str, options: Mapping[str, Any], seed: int, start: int, count: int, key: str
    ) -> list[GymTask]:
        request = ["draw", dataset, options, seed * SEED_STEP, start, count]
        try:
            reply = self._pool.submit(request, f"{key}: making tasks").result()
        except JudgeError as error:
            raise TaskError(str(error)) from error
        if "wrong" in reply:
            name, known, message = reply["wrong"]
            place = key if name in ("", dataset) else f"{key}.{name}"
            raise ConfigError(f"{place}: {message}.{nearest(name, known)}")
        return [
            GymTask(dataset, index, question, answer, {"options": options, "answer": answer, "metadata": metadata})
            for index, (question, answer, metadata) in enumerate(reply["drawn"], start)
        ]


class Verifier:
    """Scores answers, in `timeout` seconds at most. Raises `MissingDependency` at birth."""

    def __init__(self, timeout: float = 10.0, workers: int = 1) -> None:
        self._pool = _pool(workers, timeout)

    def score(self, dataset: str, entry: Mapping[str, Any], answer: str) -> Future[dict[str, Any]]:
        """Ask the verifier: `{"score": 0.05}`, and under "raised" why it could not read the answer, whose score
        is 0 then. The exception is a `JudgeError`: it took too long, or it cannot score the reference either."""
        return self._pool.submit(["score", dataset, entry, answer], f"scoring {answer[:80]!r} by {dataset}")


def _pool(workers: int, timeout: float) -> WorkerPool:
    if importlib.util.find_spec("reasoning_gym") is None:
        raise MissingDependency(
            'tasks of reasoning-gym need the package reasoning_gym: pip install "astune[reasoning-gym]"'
        )
    return WorkerPool([str(WORKER_FILE)], workers, timeout)

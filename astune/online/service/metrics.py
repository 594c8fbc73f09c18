"""Figures of the service for Prometheus."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from astune.context_tracker.tracker import ChatAnswer
from astune.online.feedback import feedback_metrics
from astune.store.database import Database

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)


class ServiceMetrics:
    """Counts of this process, and of feedback in the store."""

    def __init__(self, database: Database, clock: Callable[[], float]) -> None:
        self._database, self._clock = database, clock
        self.registry = CollectorRegistry()
        self._requests = Histogram(
            "astune_request_seconds", "Requests by path.", ["path"], buckets=SECONDS, registry=self.registry
        )
        self.errors = self._counter("astune_errors", "Requests that ended with an error, by its code.", "code")
        self._tokens = self._counter("astune_tokens", "Tokens of prompts and answers.", "kind")
        self._answers = self._counter("astune_answers", "Answers, by the version that gave them.", "version")

    def _counter(self, name: str, meaning: str, label: str) -> Counter:
        return Counter(name, meaning, [label], registry=self.registry)

    def gauge(self, name: str, meaning: str, value: Callable[[], float]) -> None:
        """A figure that is asked for when somebody looks."""
        Gauge(name, meaning, registry=self.registry).set_function(value)

    @contextmanager
    def request(self, path: str) -> Iterator[None]:
        began = self._clock()
        try:
            yield
        finally:
            self._requests.labels(path).observe(max(0.0, self._clock() - began))

    def answered(self, answers: Sequence[ChatAnswer]) -> None:
        self._tokens.labels("prompt").inc(answers[0].prompt_tokens)
        for answer in answers:
            self._tokens.labels("answer").inc(answer.completion_tokens)
            self._answers.labels(str(answer.turn.policy_version)).inc()

    def text(self) -> str:
        with self._database.reading() as connection:
            return generate_latest(self.registry).decode() + feedback_metrics(connection)

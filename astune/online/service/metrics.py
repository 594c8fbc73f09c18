"""Figures of the service for Prometheus."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TypeVar

import sqlalchemy as sa
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from astune.config.online import FeedbackConfig
from astune.context_tracker.tracker import ChatAnswer
from astune.online.store import aliases, commits, leases, releases, versions
from astune.online.store.feedback.figures import feedback_figures
from astune.online.store.feedback.following import follow_figures
from astune.online.store.servers import Traffic
from astune.store.database import Database
from astune.support.http.metrics import write_metrics

Family = TypeVar("Family", CounterMetricFamily, GaugeMetricFamily)
VERSION_FIGURES = {
    "requests": "Requests, by the version that was to answer.",
    "errors": "Those that failed by no fault of the caller.",
    "empty": "Answers without text or tool call.",
    "slow": "Requests that took longer than astune.online.serve.slow_seconds.",
    "tool_calls": "Tool calls in answers.",
    "tool_failures": "Those that went wrong, as the next request says.",
}
ROLES = ("train", "release")
"""Roles of which one process works at a time, by the names of their leases."""
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
        """Add a figure that is computed when the metrics are read."""
        Gauge(name, meaning, registry=self.registry).set_function(value)

    @contextmanager
    def request(self, path: str) -> Iterator[None]:
        began = self._clock()
        try:
            yield
        finally:
            self._requests.labels(path).observe(max(0.0, self._clock() - began))

    def count_answers(self, answers: Sequence[ChatAnswer]) -> None:
        self._tokens.labels("prompt").inc(answers[0].prompt_tokens)
        for answer in answers:
            self._tokens.labels("answer").inc(answer.completion_tokens)
            self._answers.labels(str(answer.turn.policy_version)).inc()

    def text(self, served: Collection[int], totals: Mapping[int, Traffic]) -> bytes:
        """`served` are the versions in memory, `totals` the counts of this process by version."""
        with self._database.reading() as connection:
            found = [*version_metrics(served, totals), *feedback_metrics(connection)]
            found += state_metrics(connection, time.time())
        return generate_latest(self.registry) + write_metrics(found)


def version_metrics(served: Collection[int], totals: Mapping[int, Traffic]) -> list[Metric]:
    """The versions in memory, and what became of the requests that each answered."""
    in_memory = [(str(version), 1) for version in served]
    held = _family(GaugeMetricFamily, "astune_version_held", "1 for each version in memory.", "version", in_memory)
    counted = []
    for name, meaning in VERSION_FIGURES.items():
        values = [(str(version), getattr(traffic, name)) for version, traffic in sorted(totals.items())]
        counted.append(_family(CounterMetricFamily, f"astune_version_{name}", meaning, "version", values))
    return [held, *counted]


def feedback_metrics(connection: sa.Connection) -> list[Metric]:
    """Count the feedback of each kind in each state, and how often the same came again.

    They are read from the store, so they are the same whichever process is asked, and after a restart.
    """
    figures = feedback_figures(connection)
    meaning = "Things said of answers, by what was said and what became of it."
    feedback = GaugeMetricFamily("astune_feedback", meaning, labels=["kind", "state"])
    for kind_and_state, count in figures.by_kind.items():
        feedback.add_metric(kind_and_state, count)
    again = "Feedback that was there already when it came."
    failures = "Times a judge could not tell what an answer was worth."
    return [
        feedback,
        CounterMetricFamily("astune_feedback_again", again, figures.again),
        CounterMetricFamily("astune_judge_failures", failures, figures.judge_failures),
        *_following_metrics(connection),
    ]


def _following_metrics(connection: sa.Connection) -> list[Metric]:
    """Figures of judges of what users did after an answer."""
    votes = GaugeMetricFamily("astune_follow_votes", "Their votes on answers.", labels=["judge", "vote"])
    compared = "Answers that a judge of what followed and people have both scored."
    pairs = GaugeMetricFamily("astune_follow_compared", compared, labels=["judge", "agree"])
    trusted = GaugeMetricFamily("astune_follow_trusted", "1 while what the judge says counts.", labels=["judge"])
    for each in follow_figures(connection, FeedbackConfig()):
        for vote, count in sorted(each.votes.items()):
            votes.add_metric([each.author, vote], count)
        pairs.add_metric([each.author, "yes"], each.agreed)
        pairs.add_metric([each.author, "no"], each.compared - each.agreed)
        trusted.add_metric([each.author], float(each.trusted))
    return [votes, pairs, trusted]


def state_metrics(connection: sa.Connection, now: float) -> list[Metric]:
    """Figures of versions, roles and releases, of which every server says the same. `now` is in seconds since 1970."""
    version = _family(
        GaugeMetricFamily,
        "astune_version",
        "The number of the version that is the newest, champion (which answers), or tested against it.",
        "is",
        [("newest", versions.newest(connection).number), ("champion", aliases.champion(connection).number)],
    )
    release = releases.find_open(connection)
    if release is not None:
        version.add_metric(["challenger"], release.challenger)
    alive = [(role, float(leases.find_holder(connection, role, now) is not None)) for role in ROLES]
    roles = _family(GaugeMetricFamily, "astune_role_alive", "1 while a process has this role.", "role", alive)
    found: list[Metric] = [version, roles]
    last = [row for row in commits.recent(connection, 1) if row.ended is not None]
    if last and last[0].ended is not None:
        age = max(0.0, now - last[0].ended)
        found.append(GaugeMetricFamily("astune_last_commit_age_seconds", "Since the last commit ended.", age))
    found.append(GaugeMetricFamily("astune_release_open", "1 while a version is tested.", release is not None))
    if release is not None:
        look = (release.figures.get("looks") or [{}])[-1]
        alarms = len(look.get("alarms", ())) + len(look.get("breaches", ()))
        found += [
            GaugeMetricFamily("astune_release_stage", "Of the open release, from 1; 0: before.", release.stage + 1),
            GaugeMetricFamily("astune_release_share", "Of the users that get the challenger.", release.share),
            GaugeMetricFamily("astune_release_alarms", "That the last look at the open release found.", alarms),
            GaugeMetricFamily(
                "astune_release_stage_age_seconds", "Since its stage began.", max(0.0, now - release.stage_began)
            ),
        ]
    counts = releases.count_ended(connection)
    by_state = [(state, counts.get(state, 0)) for state in ("promoted", "held", "rolled_back")]
    ended = _family(CounterMetricFamily, "astune_releases_ended", "Releases, by how they ended.", "state", by_state)
    return [*found, ended]


def _family(kind: type[Family], name: str, meaning: str, label: str, values: Iterable[tuple[str, float]]) -> Family:
    """A figure with a value for each `label`."""
    family = kind(name, meaning, labels=[label])
    for which, value in values:
        family.add_metric([which], value)
    return family

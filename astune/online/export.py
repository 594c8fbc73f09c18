"""Exports conversations and feedback in the formats that the other commands read.

    episodes       a line of episodes/*.jsonl of a run: `astune view`, `replay`, `rescore`, examples of sft, dpo and kto
    corrections    {"messages", "tools"} that end with what a user wrote in the answer's place, for sft; earlier answers
                   have "weight": 0, so that they are not learned

Pairs of answers have a module of their own: `preference_export`.

Answers that users judged together are an episode, as a commit has it; an exchange that nobody judged is one without a
verdict. `step` is the version that gave the last answer. A turn carries loss in the first of its episodes alone.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import sqlalchemy as sa

from astune.config.online import FeedbackConfig
from astune.monitor.episodes import EpisodeRecord, episode_to_row
from astune.online.store.answers import chunks
from astune.online.store.feedback.judgements import Judgement, judgements
from astune.online.store.recorded import RecordedAnswer, answers_in
from astune.online.store.requests import find_request, load_conversation
from astune.online.training.episodes import episode_of, question_of
from astune.rollout.episode import turn_metrics
from astune.rollout.verdict import USERS
from astune.store.tables import requests
from astune.types import Verdict, WorkflowOutput

Kind = Literal["episodes", "corrections"]
Row = Mapping[str, Any]
PHASE = "online"
VALID = ("counts", "trained", "left_out", "late")
"""States of feedback that is neither replaced nor refused, and waits for nothing."""
TOGETHER = 100
"""Conversations that are read with one statement."""


@dataclass(frozen=True)
class ExportFilter:
    """The answers to export: of this time (seconds since 1970, `until` excluded), by this version, to this user. None
    selects all."""

    since: float | None = None
    until: float | None = None
    version: int | None = None
    user: str | None = None

    def takes(self, answer: RecordedAnswer) -> bool:
        """True if an episode with this last answer is exported."""
        its = answer.heading
        return (
            (self.since is None or its.answered >= self.since)
            and (self.until is None or its.answered < self.until)
            and self.version in (None, its.version)
            and self.user in (None, its.user)
        )

    def of_rows(self) -> list[sa.ColumnElement[bool]]:
        """The same conditions for a row of `requests`."""
        said = []
        if self.since is not None:
            said.append(requests.c.answered >= self.since)
        if self.until is not None:
            said.append(requests.c.answered < self.until)
        if self.version is not None:
            said.append(requests.c.version == self.version)
        if self.user is not None:
            said.append(requests.c.user == self.user)
        return said


def exchanges(
    connection: sa.Connection, wanted: ExportFilter, without: Collection[str]
) -> Iterator[tuple[str, list[str]]]:
    """The conversation of each exchange that has a wanted answer, and the ids of all its answers, in the order of
    conversations; less those with an answer that is in `without`."""
    some = sa.select(requests.c.conversation_id).where(*wanted.of_rows()).distinct()
    for part in chunks(connection.scalars(some.order_by(requests.c.conversation_id)).all(), TOGETHER):
        rows = connection.execute(
            sa.select(requests.c.conversation_id, requests.c.exchange, requests.c.msg_id)
            .where(requests.c.conversation_id.in_(part))
            .order_by(requests.c.conversation_id, requests.c.number)
        )
        found: dict[tuple[str, str], list[str]] = {}
        for conversation, exchange, msg_id in rows:
            found.setdefault((conversation, exchange), []).append(msg_id)
        for (conversation, _), msg_ids in found.items():
            if not any(msg_id in without for msg_id in msg_ids):
                yield conversation, msg_ids


@dataclass
class LoadedAnswers:
    """Conversations as they are read, the last few of them kept. Turns are numbered as they come."""

    connection: sa.Connection
    asked: dict[str, float] = field(default_factory=dict)
    """The time at which each was asked, seconds since 1970."""
    _kept: dict[str, dict[str, RecordedAnswer]] = field(default_factory=dict)
    _numbers: dict[tuple[str, int], int] = field(default_factory=dict)

    def answers(self, msg_ids: Iterable[str]) -> list[RecordedAnswer]:
        """Load the known answers, in their order."""
        found = []
        for msg_id in msg_ids:
            conversation = find_request(self.connection, msg_id)
            if conversation is not None:
                found.append(self.conversation(conversation)[msg_id])
        return found

    def conversation(self, conversation: str) -> dict[str, RecordedAnswer]:
        if conversation not in self._kept:
            if len(self._kept) > 16:
                del self._kept[next(iter(self._kept))]
            requests = load_conversation(self.connection, conversation)
            self.asked |= {request.msg_id: request.asked for request in requests}
            self._kept[conversation] = answers_in(
                requests, lambda *place: self._numbers.setdefault(place, len(self._numbers))
            )
        return self._kept[conversation]


def rows_of(
    connection: sa.Connection,
    kind: Kind,
    wanted: ExportFilter,
    rules: FeedbackConfig,
    *,
    rated: bool = False,
    skipped: Callable[[str], None] = lambda why: None,
) -> Iterator[Row]:
    """The rows of an export, few conversations in memory at a time. `rated`: only what somebody judged. `skipped` is
    told why something that was wanted cannot be a row."""
    if kind == "corrections":
        return _corrections(connection, wanted, rules, skipped)
    return _episodes(connection, wanted, rules, rated)


def _episodes(connection: sa.Connection, wanted: ExportFilter, rules: FeedbackConfig, rated: bool) -> Iterator[Row]:
    loaded, used, names = LoadedAnswers(connection), set[int](), set[str]()
    judged: set[str] = set()
    for judgement in judgements(connection, rules, VALID):
        judged.update(judgement.msg_ids)
        answers = loaded.answers(judgement.msg_ids)
        if answers and wanted.takes(answers[-1]):
            yield _row(loaded, answers, judgement, used, names)
    if rated:
        return
    for _, msg_ids in exchanges(connection, wanted, judged):
        answers = loaded.answers(msg_ids)
        if wanted.takes(answers[-1]):
            yield _row(loaded, answers, None, used, names)


def _row(
    loaded: LoadedAnswers,
    answers: Sequence[RecordedAnswer],
    judgement: Judgement | None,
    used: set[int],
    names: set[str],
) -> Row:
    last = answers[-1].heading
    name, number = last.msg_id, 1
    while name in names:  # judged alone, and together with others
        number += 1
        name = f"{last.msg_id}#{number}"
    names.add(name)
    task_id = last.task_id if judgement is None else judgement.task_id
    made = episode_of(name, answers, None, used, task_id)
    used |= made.trained
    newest = answers[-1]
    episode = replace(
        made.episode,
        task=replace(
            made.episode.task,
            query=question_of(answers[0]),
            messages=tuple(answers[0].messages),
            metadata=_about(newest),
        ),
        output=WorkflowOutput(newest.turns[0][1].response.get("content") if newest.turns else None),
        verdict=_verdict(judgement),
        metrics={
            "seconds": last.answered - loaded.asked[answers[0].heading.msg_id],
            **turn_metrics(made.episode.turns),
        },
    )
    return episode_to_row(EpisodeRecord(max(last.version, 0), PHASE, episode))


def _about(answer: RecordedAnswer) -> Mapping[str, Any]:
    heading = answer.heading
    names = ("conversation_id", "agent", "client", "user", "task_id", "run_id", "model", "version", "answered")
    return {name: getattr(heading, name) for name in names}


def _verdict(judgement: Judgement | None) -> Verdict | None:
    if judgement is None or judgement.reward is None:
        return None
    return Verdict(judgement.reward, judgement.thumb, metrics=judgement.rewards, judged_by=USERS)


def _corrections(
    connection: sa.Connection, wanted: ExportFilter, rules: FeedbackConfig, skipped: Callable[[str], None]
) -> Iterator[Row]:
    loaded = LoadedAnswers(connection)
    for judgement in judgements(connection, rules, VALID):
        answers = loaded.answers(judgement.msg_ids[-1:]) if judgement.corrections else []
        if answers and wanted.takes(answers[0]):
            for _ in judgement.corrections[:-1]:
                skipped("several corrections of one answer: the newest is taken")
            said = {"role": "assistant", "content": judgement.corrections[-1]}
            before = [
                {**message, "weight": 0} if message["role"] == "assistant" else message
                for message in answers[0].messages
            ]
            yield {"messages": [*before, said], "tools": list(answers[0].tools)}

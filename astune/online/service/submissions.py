"""Submissions of clients besides chat: feedback, commits, records. They become rows in the store."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

import sqlalchemy as sa

from astune.config.online import FeedbackConfig
from astune.errors import StoreError
from astune.online.redaction import Redactor
from astune.online.service.evaluations import read_evaluations
from astune.online.service.feedback import read_feedback, redact
from astune.online.service.records import NewRecord, new_record, write_record
from astune.online.store.commits import Wanted, ask
from astune.online.store.feedback.states import FeedbackOutcome, NewFeedback, add
from astune.online.store.requests import clients_of
from astune.online.telemetry import Telemetry
from astune.online.wire import Commit, ConversationRecord, OutOfBounds, Status, UnknownReward, WireError, read_wire
from astune.store.writer import Writer
from astune.support.http.service import HttpError

Result = TypeVar("Result")
REFUSED_REWARDS: Mapping[type[WireError], str] = {OutOfBounds: "reward_out_of_bounds", UnknownReward: "unknown_reward"}
"""Codes of errors that Java's client logs without their reason: the service's log and figures have it."""


class Submissions:
    """Invariant: what was acknowledged is in the store."""

    def __init__(
        self,
        writer: Writer,
        rules: FeedbackConfig,
        redactor: Redactor,
        clock: Callable[[], float] = time.time,
        telemetry: Telemetry | None = None,
    ) -> None:
        self._writer, self._rules, self._redactor, self._clock = writer, rules, redactor, clock
        self._telemetry = telemetry or Telemetry(None)

    @property
    def failure(self) -> str | None:
        """Why nothing could be written the last time; None if it could."""
        return self._writer.failure

    async def feedback(self, body: object, client: str | None) -> tuple[Status, FeedbackOutcome]:
        """`client` is None where the service has tokens and the feedback came without one: it then counts as that of
        the client whose answers it is about, and can be about no other's."""
        new = read_or_refuse(
            lambda: read_feedback(body, client=client or "", received=self._clock(), rules=self._rules)
        )
        new = redact(new, self._redactor)
        outcome = await self._write(
            lambda connection: add(connection, _add_client(connection, new, client), self._rules)
        )
        if outcome.state == "refused":
            raise HttpError(403, "feedback_refused", outcome.reason or "the feedback was refused")
        if not outcome.duplicate:
            self._telemetry.evaluate(new)
        said = f"{outcome.state}: {outcome.reason}" if outcome.reason else outcome.state
        return Status(status="success", message=said), outcome

    async def evaluations(self, body: object, client: str | None) -> dict[str, Any]:
        """Feedback that a collector sends as OpenTelemetry's events. What cannot be taken is told in the reply, as OTLP
        has it; a store that cannot be written is an error, after which the collector sends all again."""
        refused: list[str] = []
        for each in read_or_refuse(lambda: read_evaluations(body)):
            try:
                await self.feedback(each, client)
            except HttpError as error:
                if error.status >= 500:
                    raise
                refused.append(error.message)
        if not refused:
            return {"partialSuccess": {}}
        said = f"{len(refused)} evaluations are not taken, the first as {refused[0]:.500}"
        return {"partialSuccess": {"rejectedLogRecords": str(len(refused)), "errorMessage": said}}

    async def commit(self, body: object) -> tuple[Status, int]:
        """Ask for a commit; its number."""
        asked = read_or_refuse(lambda: read_wire(Commit, body))
        threshold = None if asked.time_threshold is None else asked.time_threshold / 1000
        wanted = Wanted(asked.task_id, asked.run_id, threshold)
        number = await self._write(lambda connection: ask(connection, "client", self._clock(), wanted))
        return Status(status="success", message=f"commit {number} is asked for"), number

    async def record(self, body: object, client: str) -> Status:
        """A conversation with any model. A long one is read in a thread, so that others are answered meanwhile."""

        def read() -> tuple[ConversationRecord, NewRecord]:
            record = read_wire(ConversationRecord, body)
            return record, new_record(record, client, self._clock(), self._redactor, self._rules)

        record, new = await asyncio.to_thread(read_or_refuse, read)
        number = await self._write(lambda connection: write_record(connection, new, self._rules))
        return Status(status="success", message=f"{number} answers of {record.conversation_id!r:.100} are recorded")

    async def _write(self, work: Callable[[sa.Connection], Result]) -> Result:
        return await write_or_refuse(self._writer, work)


async def write_or_refuse(writer: Writer, work: Callable[[sa.Connection], Result]) -> Result:
    """Write what a client has sent. Raises HttpError (503) where the store takes nothing."""
    try:
        return await writer.write(work)
    except (StoreError, sa.exc.SQLAlchemyError) as error:
        raise HttpError(503, "store_unavailable", "it could not be written, so it is not taken") from error


def read_or_refuse(read: Callable[[], Result]) -> Result:
    """Read what a client has sent. Raises HttpError (400) for what is none of it."""
    try:
        return read()
    except WireError as error:
        code = REFUSED_REWARDS.get(type(error), "invalid_value")
        raise HttpError(400, code, str(error), error.param or None) from None


def _add_client(connection: sa.Connection, new: NewFeedback, client: str | None) -> NewFeedback:
    """With its client. Raises HttpError (403) where that cannot be told: nobody without a token writes anything that is
    not about an answer which is there. The id of an answer is given when the answer is stored, so an agent that has one
    never comes too early."""
    if client is not None:
        return new
    ids = [*new.msg_ids, *(each for each in (new.better, new.worse) if each is not None)]
    owners = clients_of(connection, ids)
    if len(owners) != 1:
        said = (
            "is about answers of several clients"
            if owners
            else "is about no answer that is known, so nobody can tell whose it is; with a token it would be waited for"
        )
        raise HttpError(403, "feedback_refused", f"feedback without a token {said}")
    (owner,) = owners
    return replace(new, client=owner, author=new.author or owner)

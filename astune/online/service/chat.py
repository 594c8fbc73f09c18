"""Answers to chat requests, written before they are given."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import sqlalchemy as sa

from astune.context_tracker.prompt.messages import Message, meaning
from astune.context_tracker.tracker import ChatAnswer
from astune.errors import StoreError, TooManyTurns
from astune.gateway.api_request import ApiRequest, show_message
from astune.online.redaction import Redactor
from astune.online.service.callers import Caller, History
from astune.online.service.conversations import LiveConversation, LiveConversations
from astune.online.store.requests import RecordedRequest, RecordedTurn, TurnPlace, exclude, expose, record
from astune.online.telemetry import Telemetry
from astune.store.writer import Writer
from astune.support.http.service import HttpError
from astune.types import Turn

logger = logging.getLogger(__name__)

AGENT = "agent"
MOST_CALLS = 10_000
"""Model calls of one conversation."""
REDACTED = "redacted"
"""`Turn.excluded` of turns that are written without ids."""


class Recordable(ApiRequest, Protocol):
    """A parsed request that can be recorded."""

    @property
    def parallel_tool_calls(self) -> bool: ...


@dataclass(frozen=True)
class ServiceRequest:
    """A request as the service reads it. `kind` begins the id of the reply: "chatcmpl-" or "resp_"; for `instructions`
    see `RecordedRequest`."""

    parsed: Recordable
    whose: Caller
    model: str
    kind: str
    instructions: int | None = None
    retry: bool = False
    """The client repeats a request whose answer it did not get."""


def new_token() -> str:
    """64 random bits, which make the id of a reply unique in all processes."""
    return secrets.token_hex(8)


class ChatService:
    """Invariant: what `answer` returned is in the store."""

    def __init__(
        self,
        live: LiveConversations,
        writer: Writer,
        redactor: Redactor,
        *,
        clock: Callable[[], float],
        token: Callable[[], str] = new_token,
        telemetry: Telemetry | None = None,
    ) -> None:
        self._telemetry = telemetry or Telemetry(None)
        self._live, self._writer, self._redactor = live, writer, redactor
        self._clock, self._token = clock, token

    async def answer(self, asked: ServiceRequest) -> tuple[list[ChatAnswer], LiveConversation]:
        """The answers, with an id that no other reply has, and their conversation. A caller that is cancelled before
        they are sampled leaves no trace.

        Raises:
            HttpError: 503, they could not be written.
            RolloutError: as `ContextTracker.choices`.
        """
        began = self._clock()
        history = History(asked.parsed.request.messages, asked.whose)
        try:
            async with self._live.find(asked.whose, history.digests[::-1], began) as live:
                answers = await self._answer(asked, live, history, began)
        except Exception as error:
            if self._telemetry.is_on:
                self._telemetry.fail(asked, error, began)
            raise
        if self._telemetry.is_on:
            self._telemetry.answer(asked, live.conversation_id, answers, began)
        return answers, live

    async def _answer(
        self, asked: ServiceRequest, live: LiveConversation, history: History, began: float
    ) -> list[ChatAnswer]:
        request = replace(asked.parsed.request, retry=asked.retry)
        try:
            answers = await live.tracker.choices(AGENT, request, asked.parsed.n)
        except TooManyTurns:
            message = f"the conversation has {MOST_CALLS} model calls, which is the most: begin a new one"
            raise HttpError(400, "conversation_too_long", message) from None
        # Up to the writing nothing is awaited: the store has the turns in the order of the tracker.
        name = f"{self._token()}_{answers[0].turn.call}"
        recorded, before = self._make_record(asked, live, answers, history, f"{asked.kind}{name}", began)
        retried = _newly_excluded(live) if request.retry else []
        _remember(live, recorded)
        number = live.requests - 1
        writing = self._writer.submit(lambda connection: _write(connection, recorded, before, retried))
        try:
            if await asyncio.shield(asyncio.wrap_future(writing)) != number:
                self._live.forget(live)  # another process wrote to it as well
        except (StoreError, sa.exc.SQLAlchemyError) as error:
            self._live.forget(live)
            logger.error("an answer could not be written, so it is not given: %s", error)
            raise HttpError(503, "store_unavailable", "the answer could not be written, so it is not given") from error
        return [replace(answer, answer_id=name) for answer in answers]

    def _make_record(
        self,
        asked: ServiceRequest,
        live: LiveConversation,
        answers: Sequence[ChatAnswer],
        history: History,
        msg_id: str,
        began: float,
    ) -> tuple[RecordedRequest, Turn | None]:
        """Make the row of a request, and find the turn that it follows as that was written."""
        first, whose = len(live.places), asked.whose
        known = [live.tracker.get_known_turn(first + choice) for choice in range(len(answers))]
        turn = known[0].turn
        said = [show_message(a, parallel_tool_calls=asked.parsed.parallel_tool_calls) for a in answers]
        turns = tuple(
            RecordedTurn(each.turn, history.digest_with(message), each.forced, each.shown)
            for each, message in zip(known, said, strict=True)
        )
        redacted = self._redactor.apply([*turn.messages, *(each.turn.response for each in turns)])
        if redacted.changed:
            turns = tuple(_without_ids(each, redacted.messages, n) for n, each in enumerate(turns, -len(turns)))
        recorded = RecordedRequest(
            msg_id=msg_id,
            conversation_id=live.conversation_id,
            key=live.key,
            client=whose.client,
            user=whose.user,
            task_id=whose.task_id,
            run_id=whose.run_id,
            exchange=_exchange(live, turn, msg_id),
            follows=None if turn.follows is None else live.places[turn.follows],
            seen=known[0].seen,
            agent=AGENT,
            model=asked.model,
            asked=began,
            answered=self._clock(),
            turns=turns,
            instructions=asked.instructions,
            redacted=redacted.changed,
        )
        return recorded, None if turn.follows is None else live.written[turn.follows]


def _remember(live: LiveConversation, recorded: RecordedRequest) -> None:
    live.places += [TurnPlace(recorded.msg_id, choice) for choice in range(len(recorded.turns))]
    live.written += [each.turn for each in recorded.turns]
    live.exchanges[recorded.msg_id] = recorded.exchange
    live.requests += 1


def _without_ids(recorded: RecordedTurn, messages: Sequence[Message], number: int) -> RecordedTurn:
    """The turn without its ids, which spell the text. `messages` end with the answers; its own has this `number`."""
    turn = replace(
        recorded.turn,
        prompt_ids=(),
        output_ids=(),
        logprobs=(),
        messages=tuple(messages[: len(recorded.turn.messages)]),
        response=messages[number],
        excluded=REDACTED,
        exact=False,
    )
    return RecordedTurn(turn, recorded.history)


def _exchange(live: LiveConversation, turn: Turn, msg_id: str) -> str:
    """The exchange that the turn is part of: that of the answer it follows, unless a user has spoken since."""
    if turn.follows is None:
        return msg_id
    answer = meaning([live.tracker.get_known_turn(turn.follows).turn.response], 0)
    for index in range(len(turn.messages) - 1, -1, -1):
        if turn.messages[index]["role"] == "user":
            return msg_id
        if meaning([turn.messages[index]], 0) == answer:
            break
    return live.exchanges[live.places[turn.follows].msg_id]


def _newly_excluded(live: LiveConversation) -> list[TurnPlace]:
    """The earlier turns that a repeated request has taken out of training."""
    now = enumerate(live.written)
    return [live.places[n] for n, turn in now if turn.trainable and not live.tracker.get_known_turn(n).turn.trainable]


def _write(
    connection: sa.Connection, request: RecordedRequest, before: Turn | None, retried: Sequence[TurnPlace]
) -> int:
    number = record(connection, request, before)
    exclude(connection, retried, "retried")
    for version in sorted({each.turn.policy_version for each in request.turns}):
        expose(connection, request.conversation_id, version, request.answered)
    return number

"""Answers to chat requests, written before they are given."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Protocol

import sqlalchemy as sa

from astune.context_tracker.prompt.messages import Message, content_text, meaning
from astune.context_tracker.tracker import ChatAnswer, ChatRequest
from astune.errors import ContextOverflow, RolloutError, StoreError, TooManyTurns
from astune.gateway.api_request import ApiRequest, show_message
from astune.gateway.http import call_error, to_http_error
from astune.online.redaction import Redactor
from astune.online.service.access import OPERATOR
from astune.online.service.callers import Caller, History
from astune.online.service.conversations import LiveConversation, LiveConversations
from astune.online.service.presence import Presence
from astune.online.service.versions import Answering, ServedVersions
from astune.online.store.assignments import Assignment, LastAnswer, enter, unit_of
from astune.online.store.requests import RecordedRequest, RecordedTurn, TurnPlace, exclude, expose, record
from astune.online.store.servers import Traffic
from astune.online.telemetry import Telemetry
from astune.store.writer import Writer
from astune.support.http.service import HttpError
from astune.types import Turn
from astune.workflow.tool_log import says_it_failed

logger = logging.getLogger(__name__)

AGENT = "agent"
MOST_CALLS = 10_000
"""Model calls of one conversation."""
REDACTED = "redacted"
"""`Turn.excluded` of turns that are written without ids."""
ASKED_BY_OPERATOR = "operator"
"""`Turn.excluded` of answers to operators, which count in no figure."""


class Recordable(ApiRequest, Protocol):
    """A parsed request that can be recorded."""

    @property
    def parallel_tool_calls(self) -> bool: ...


@dataclass(frozen=True)
class ServiceRequest:
    """A request as the service reads it. `kind` begins the id of the reply: "chatcmpl-", "resp_" or "msg_"; for
    `instructions` see `RecordedRequest`."""

    parsed: Recordable
    whose: Caller
    model: str
    kind: str
    instructions: int | None = None
    retry: bool = False
    """The client repeats a request whose answer it did not get."""
    version: int | None = None
    """The version that is to answer, if whoever asks chose one."""

    @property
    def is_operators(self) -> bool:
        return self.whose.client.startswith(OPERATOR)

    @property
    def counts(self) -> bool:
        """False of what an operator asks, and of what is asked of a version that was chosen."""
        return self.version is None and not self.is_operators


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
        versions: ServedVersions,
        presence: Presence,
        *,
        clock: Callable[[], float],
        token: Callable[[], str] = new_token,
        telemetry: Telemetry | None = None,
    ) -> None:
        self._telemetry = telemetry or Telemetry(None)
        self._live, self._writer, self._redactor = live, writer, redactor
        self._versions, self._presence = versions, presence
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
                answers = await self._answer_in(asked, live, history, began)
        except Exception as error:
            if self._telemetry.is_on:
                self._telemetry.fail(asked, error, began)
            raise
        if self._telemetry.is_on:
            self._telemetry.answer(asked, live.conversation_id, answers, began)
        return answers, live

    async def count_tokens(self, request: ChatRequest, whose: Caller) -> int:
        """Count the tokens of the prompt that `answer` would send now. Nothing is recorded.

        Raises:
            RolloutError: as `ContextTracker.count_tokens`.
        """
        history = History(request.messages, whose)
        live = await self._live.look(whose, history.digests[::-1], self._clock())
        return await live.tracker.count_tokens(AGENT, request)

    async def _answer_in(
        self, asked: ServiceRequest, live: LiveConversation, history: History, began: float
    ) -> list[ChatAnswer]:
        """Answer in this conversation, by the version that is decided on now."""
        unit = unit_of(asked.whose.client, asked.whose.user, live.conversation_id)
        async with self._versions.answering(unit, live.last, began, asked.version) as answering:
            live.last = LastAnswer(answering.decision.version, began)
            with self._counting(asked, answering, began) as traffic:
                return await self._answer(asked, live, history, began, answering, traffic)

    @contextmanager
    def _counting(self, asked: ServiceRequest, answering: Answering, began: float) -> Iterator[Traffic]:
        """Count a request for the version that answers it. One that the client gave up counts by its time alone, and a
        version is not at fault for a request that is no good."""
        traffic = Traffic(requests=1)
        try:
            yield traffic
        except Exception as error:
            told = to_http_error(call_error(error, None) if isinstance(error, RolloutError) else error)
            traffic.errors = int(told.status >= 500)
            raise
        finally:
            traffic.seconds = max(0.0, self._clock() - began)
            traffic.slow = int(traffic.seconds > self._presence.slow)
            if asked.counts:
                self._presence.count(answering.decision.version, traffic)

    async def _answer(
        self,
        asked: ServiceRequest,
        live: LiveConversation,
        history: History,
        began: float,
        answering: Answering,
        traffic: Traffic,
    ) -> list[ChatAnswer]:
        request = replace(asked.parsed.request, retry=asked.retry)
        try:
            answers = await live.tracker.choices(AGENT, request, asked.parsed.n)
        except TooManyTurns:
            message = f"the conversation has {MOST_CALLS} model calls, which is the most: begin a new one"
            raise HttpError(400, "conversation_too_long", message) from None
        except ContextOverflow as error:
            longest, own = self._versions.context_length, self._versions.current.context_length
            if own == longest:
                raise
            here = f"Version {answering.decision.version} answers here; another one has a context of {longest} tokens."
            raise ContextOverflow(f"{error} {here}") from None
        # Up to the writing nothing is awaited: the store has the turns in the order of the tracker.
        name = f"{self._token()}_{answers[0].turn.call}"
        recorded, before = self._make_record(asked, live, answers, history, f"{asked.kind}{name}", began)
        retried = _newly_excluded(live) if request.retry else []
        _remember(live, recorded)
        number = live.requests - 1
        entered = answering.decision.assignment if asked.counts else None
        writing = self._writer.submit(lambda connection: _write(connection, recorded, before, retried, entered))
        try:
            if await asyncio.shield(asyncio.wrap_future(writing)) != number:
                self._live.forget(live)  # another process wrote to it as well
        except (StoreError, sa.exc.SQLAlchemyError) as error:
            self._live.forget(live)
            logger.error("an answer could not be written, so it is not given: %s", error)
            raise HttpError(503, "store_unavailable", "the answer could not be written, so it is not given") from error
        live.last = LastAnswer(recorded.version, recorded.answered)
        _count(traffic, answers)
        if asked.counts and before is not None and (failed := _count_failed_calls(recorded, before)):
            self._presence.count(before.policy_version, Traffic(tool_failures=failed))
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
        if asked.is_operators:
            turns = tuple(replace(each, turn=replace(each.turn, excluded=ASKED_BY_OPERATOR)) for each in turns)
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


def _count(traffic: Traffic, answers: Sequence[ChatAnswer]) -> None:
    said = [answer.message for answer in answers]
    traffic.empty = int(not any((each.get("content") or "").strip() or each.get("tool_calls") for each in said))
    traffic.tool_calls = sum(len(each.get("tool_calls") or ()) for each in said)
    traffic.tokens = answers[0].prompt_tokens + sum(answer.completion_tokens for answer in answers)


def _count_failed_calls(request: RecordedRequest, before: Turn) -> int:
    """Count the tool calls of the answer before that went wrong, as their results say."""
    results = request.messages[len(before.messages) :]
    return sum(says_it_failed(content_text(each)) for each in results if each["role"] == "tool")


def _write(
    connection: sa.Connection,
    request: RecordedRequest,
    before: Turn | None,
    retried: Sequence[TurnPlace],
    entered: Assignment | None,
) -> int:
    number = record(connection, request, before)
    exclude(connection, retried, "retried")
    for version in sorted({each.turn.policy_version for each in request.turns}):
        expose(connection, request.conversation_id, version, request.answered)
    if entered is not None:
        enter(connection, entered, request.answered)
    return number

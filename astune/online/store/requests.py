"""Requests, their turns and the conversations that they belong to.

A request is written without the part that it repeats of the request it follows: memory and disk grow by what is new.

    with database.writing() as connection:
        record(connection, request, before=the_turn_that_it_follows)
    with database.reading() as connection:
        requests = load_conversation(connection, "c-5e1f")
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import sqlalchemy as sa

from astune.online.store.once import insert_once, insert_or_raise
from astune.ropes import Messages, common_start
from astune.store import tables
from astune.token_ids import WIDTH, Logprobs, TokenIds, count_shared_bytes
from astune.types import Turn

MOST_CANDIDATES = 512
"""Newest answers with the same history among which one without a following request is looked for."""


# Statements of the way of a call, made once: to make one takes as long as to run it.
_LATER = tables.requests.alias()
_INSERT_TURN = tables.turns.insert().returning(tables.turns.c.id)
_TURN_NUMBER = sa.select(tables.turns.c.id).where(
    tables.turns.c.msg_id == sa.bindparam("msg_id"), tables.turns.c.choice == sa.bindparam("choice")
)
_REQUESTS_IN = sa.select(sa.func.coalesce(sa.func.max(tables.requests.c.number) + 1, 0)).where(
    tables.requests.c.conversation_id == sa.bindparam("its_id")
)
_INSERT_REQUEST = (
    tables.requests.insert().values(number=_REQUESTS_IN.scalar_subquery()).returning(tables.requests.c.number)
)
_SAMPLED = tables.turns.c.policy_version >= 0
"""Here, and not recorded of another model: a record may be sent anew, and takes its conversation with it."""
_KNOWN_HISTORIES = (
    sa.select(tables.turns.c.history)
    .where(tables.turns.c.history.in_(sa.bindparam("digests", expanding=True)), _SAMPLED)
    .distinct()
)
_CANDIDATES = (
    sa.select(tables.turns.c.id, tables.turns.c.msg_id, tables.turns.c.choice)
    .where(tables.turns.c.history == sa.bindparam("digest"), _SAMPLED)
    .order_by(tables.turns.c.id.desc())
    .limit(MOST_CANDIDATES)
    .subquery()
)
_THEIRS = tables.requests.c.conversation_id
_IS_FREE = _THEIRS.not_in(sa.bindparam("taken", expanding=True)) & ~sa.exists().where(
    _LATER.c.follows == _CANDIDATES.c.msg_id, _LATER.c.follows_choice == _CANDIDATES.c.choice
)
_OF_HISTORY = (
    sa.select(_THEIRS)
    .join(_CANDIDATES, _CANDIDATES.c.msg_id == tables.requests.c.msg_id)
    .join(tables.conversations, tables.conversations.c.conversation_id == _THEIRS)
    .order_by(_IS_FREE.desc(), tables.conversations.c.key.is_not(None), _CANDIDATES.c.id.desc())
    .limit(1)
)


class TurnPlace(NamedTuple):
    """An answer: the message it came in, and its number among the answers of that."""

    msg_id: str
    choice: int


@dataclass(frozen=True)
class RecordedTurn:
    """A turn with the further values that a tracker needs to go on from it."""

    turn: Turn
    """`follows` is the number of a turn of the conversation, counted over its requests in their order."""
    history: str
    """Digest of the conversation's owner and of all messages up to and with this answer."""
    forced: int = 0
    """Number of ids at the end of the prompt with which the answer had to begin."""
    shown: int | None = None
    """Number of sampled ids whose text the message has; the others spell a stop text. None: all."""


@dataclass(frozen=True)
class RecordedRequest:
    """A request that was answered. Its turns have the same prompt, messages and tools."""

    msg_id: str
    conversation_id: str
    client: str
    """Name of the client whose token it came with; empty if the service has no tokens."""
    user: str | None
    task_id: str | None
    run_id: str | None
    exchange: str
    """msg_id of the first request since the user's message."""
    follows: TurnPlace | None
    seen: int
    """Requests of the conversation that were answered before this one began."""
    agent: str
    model: str
    asked: float
    answered: float
    turns: tuple[RecordedTurn, ...]
    key: str | None = None
    """The clients' name for the conversation, behind its owner; None if it is found by its history alone."""
    instructions: int | None = None
    """For a request to /v1/responses that may be continued: number of first messages that do not carry over."""
    redacted: bool = False
    """True if texts were changed or removed; then the turns have no ids."""

    @property
    def messages(self) -> Sequence[Mapping[str, Any]]:
        return self.turns[0].turn.messages

    @property
    def tools(self) -> tuple[Mapping[str, Any], ...]:
        return self.turns[0].turn.tools

    @property
    def version(self) -> int:
        return self.turns[0].turn.policy_version


def began(requests: Sequence[RecordedRequest]) -> float:
    """The time at which the conversation of these requests began. Requests that came together may be written in any
    order."""
    return min(request.asked for request in requests)


def record(connection: sa.Connection, request: RecordedRequest, before: Turn | None = None) -> int:
    """Write `request`, whose `follows` is the turn `before`; return its number within the conversation.

    Several processes may write to one conversation: each waits for the others' transactions. If the turn that it
    follows was deleted meanwhile, the request is written as the first of an exchange.
    """
    prompt_of = None if request.follows is None else turn_number(connection, request.follows)
    if request.follows is not None and prompt_of is None:
        request, before = replace(request, follows=None, exchange=request.msg_id), None
    _enter_conversation(connection, request)
    said = () if before is None else (*before.messages, before.response)
    kept = common_start(said, request.messages)
    same_tools = before is not None and before.tools == request.tools
    row = _request_row(request, kept, request.messages[kept:]) | {"its_id": request.conversation_id}
    # A row beside the statement costs a third of one within it. A column that is left out is null.
    number = connection.scalar(_INSERT_REQUEST, row if same_tools else row | {"tools": list(request.tools)})
    _record_turns(connection, request, before, prompt_of)
    return int(number)


def record_new(connection: sa.Connection, requests: Sequence[RecordedRequest]) -> None:
    """Write a conversation that is not there yet, in a fixed number of statements. Each request follows the answer to
    the one before and has the same tools; its turns have no ids, and it has only its new messages."""
    _enter_conversation(connection, requests[0])
    rows, kept = [], 0
    for number, request in enumerate(requests):
        row = _request_row(request, kept, request.messages)
        rows.append(row | {"number": number, "tools": None if number else list(request.tools)})
        kept += len(request.messages) + 1
    connection.execute(tables.requests.insert(), rows)
    turns = [_turn_row(each, choice, one) for each in requests for choice, one in enumerate(each.turns)]
    connection.execute(tables.turns.insert(), turns)


def _request_row(request: RecordedRequest, kept: int, messages: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """`messages` are those after the first `kept`."""
    return {name: getattr(request, name) for name in _PLAIN} | {
        "follows": None if request.follows is None else request.follows.msg_id,
        "follows_choice": None if request.follows is None else request.follows.choice,
        "version": request.version,
        "messages_kept": kept,
        "messages": list(messages),
    }


_PLAIN = (
    *("msg_id", "conversation_id", "client", "user", "task_id", "run_id", "exchange"),
    *("seen", "agent", "model", "asked", "answered", "instructions", "redacted"),
)
"""Fields that are columns as they are."""


def _enter_conversation(connection: sa.Connection, request: RecordedRequest) -> None:
    """Insert its conversation's row if there is none. The row is locked until the transaction ends."""
    row = {name: getattr(request, name) for name in ("conversation_id", "key", "client", "user", "task_id", "run_id")}
    row |= {"began": request.asked, "last": request.answered}
    insert_or_raise(connection, tables.conversations, row, "last")


def _record_turns(
    connection: sa.Connection, request: RecordedRequest, before: Turn | None, prompt_of: int | None
) -> None:
    """`prompt_of` is the row of the turn `before`."""
    ids = TokenIds.of(request.turns[0].turn.prompt_ids)
    kept = 0
    if prompt_of is not None and before is not None:
        kept = count_shared_bytes((TokenIds.of(before.prompt_ids) + before.output_ids).pack(), ids.pack()) // 4
    for choice, recorded in enumerate(request.turns):
        row_id = connection.scalar(_INSERT_TURN, _turn_row(request, choice, recorded, kept, prompt_of))
        if choice == 0 and len(request.turns) > 1:  # the others have the same prompt
            prompt_of, kept = row_id, len(ids)


def _turn_row(
    request: RecordedRequest, choice: int, recorded: RecordedTurn, kept: int = 0, prompt_of: int | None = None
) -> dict[str, Any]:
    """`kept`: number of first ids of its prompt that are those of the row `prompt_of`."""
    turn = recorded.turn
    return {name: getattr(turn, name) for name in _TURN_PLAIN} | {
        "msg_id": request.msg_id,
        "choice": choice,
        "prompt_kept": kept,
        "prompt_of": prompt_of,
        "prompt_ids": pack_ids(TokenIds.of(turn.prompt_ids), kept),
        "forced": recorded.forced,
        "output_ids": pack_ids(TokenIds.of(turn.output_ids)),
        "shown": recorded.shown,
        "logprobs": pack_logprobs(Logprobs.of(turn.logprobs)),
        "response": dict(turn.response),
        "history": recorded.history,
    }


def forget_conversation(connection: sa.Connection, conversation_id: str) -> None:
    """Delete it and its requests, for it to be written anew."""
    known = tables.conversations
    connection.execute(known.delete().where(known.c.conversation_id == conversation_id))


def exclude(connection: sa.Connection, places: Sequence[TurnPlace], reason: str) -> None:
    """Exclude turns from training, unless they are excluded already."""
    for place in places:
        its_row = (tables.turns.c.msg_id == place.msg_id) & (tables.turns.c.choice == place.choice)
        connection.execute(
            tables.turns.update().where(its_row, tables.turns.c.excluded.is_(None)).values(excluded=reason)
        )


def expose(connection: sa.Connection, conversation_id: str, version: int, now: float) -> None:
    """Note that this version answered in the conversation, and when it first did."""
    insert_once(connection, tables.exposures, {"conversation_id": conversation_id, "version": version, "first": now})


def turn_number(connection: sa.Connection, place: TurnPlace) -> int | None:
    """The id of a turn's row; None if there is none."""
    return connection.scalar(_TURN_NUMBER, place._asdict())


def requests_in(connection: sa.Connection, conversation_id: str) -> int:
    """Count the requests of a conversation; 0 if it is not known."""
    return int(connection.scalar(_REQUESTS_IN, {"its_id": conversation_id}))


def conversation_of_history(
    connection: sa.Connection, digests: Sequence[str], taken: Collection[str] = ()
) -> str | None:
    """Find the conversation with an answer whose history is the first known one of `digests`.

    If there are several, an answer that no request follows yet, in a conversation that is not `taken`, comes first: so
    each of two conversations with the same messages goes on by itself. Next, one that no client named; then the newest.
    """
    found = set(connection.scalars(_KNOWN_HISTORIES, {"digests": list(digests)}))
    digest = next((each for each in digests if each in found), None)
    return None if digest is None else connection.scalar(_OF_HISTORY, {"digest": digest, "taken": list(taken)})


def find_request(connection: sa.Connection, msg_id: str) -> str | None:
    """The id of the conversation that a message belongs to; None if it is not known."""
    requests = tables.requests.c
    return connection.scalar(sa.select(requests.conversation_id).where(requests.msg_id == msg_id))


def clients_of(connection: sa.Connection, msg_ids: Sequence[str]) -> set[str]:
    """The clients of those messages that are known."""
    requests = tables.requests.c
    return set(connection.scalars(sa.select(requests.client).where(requests.msg_id.in_(msg_ids)).distinct()))


def load_conversation(connection: sa.Connection, conversation_id: str) -> list[RecordedRequest]:
    """Load the whole requests of a conversation in the order in which they were answered; none if it is not known."""
    requests, turns = tables.requests, tables.turns
    of_it = requests.c.conversation_id == conversation_id
    key = connection.scalar(
        sa.select(tables.conversations.c.key).where(tables.conversations.c.conversation_id == conversation_id)
    )
    asked = connection.execute(sa.select(requests).where(of_it).order_by(requests.c.number)).mappings().all()
    sampled: dict[str, list[sa.RowMapping]] = {}
    rows = sa.select(turns).join(requests).where(of_it).order_by(turns.c.msg_id, turns.c.choice)
    for row in connection.execute(rows).mappings():
        sampled.setdefault(row["msg_id"], []).append(row)
    loading = _Loading(key)
    return [loading.request(row, sampled.get(row["msg_id"], [])) for row in asked]


class _Loading:
    """Puts requests together again, each after the one that it follows."""

    def __init__(self, key: str | None) -> None:
        self._key = key
        self._places: dict[TurnPlace, tuple[int, Turn]] = {}
        self._ids: dict[int, TokenIds] = {}
        """Prompt and output of each turn, by its row."""

    def request(self, row: sa.RowMapping, rows: Sequence[sa.RowMapping]) -> RecordedRequest:
        follows = None if row["follows"] is None else TurnPlace(row["follows"], row["follows_choice"])
        number, before = (None, None) if follows is None else self._places[follows]
        said = Messages() if before is None else Messages.of(before.messages).and_then(before.response)
        messages = said.start(row["messages_kept"]).and_then(*row["messages"])
        tools = tuple(row["tools"]) if row["tools"] is not None else before.tools if before is not None else ()
        turns = tuple(self._turn(row, each, messages, tools, number) for each in rows)
        return RecordedRequest(**{name: row[name] for name in _PLAIN}, follows=follows, turns=turns, key=self._key)

    def _turn(
        self,
        request: sa.RowMapping,
        row: sa.RowMapping,
        messages: Messages,
        tools: tuple[Mapping[str, Any], ...],
        follows: int | None,
    ) -> RecordedTurn:
        prompt_ids, kept = TokenIds(), row["prompt_kept"]
        if kept:
            prompt_ids = self._ids[row["prompt_of"]].start(kept)
        if row["prompt_ids"] or not kept:
            prompt_ids = unpack_ids(row["prompt_ids"], prompt_ids)
        turn = Turn(
            agent=request["agent"],
            prompt_ids=prompt_ids,
            output_ids=unpack_ids(row["output_ids"]),
            logprobs=unpack_logprobs(row["logprobs"]),
            follows=follows,
            messages=messages,
            tools=tools,
            **{name: row[name] for name in _TURN_PLAIN},
        )
        self._ids[row["id"]] = prompt_ids + turn.output_ids
        self._places[TurnPlace(row["msg_id"], row["choice"])] = len(self._places), turn
        return RecordedTurn(turn, row["history"], row["forced"], row["shown"])


_TURN_PLAIN = ("policy_version", "finish_reason", "temperature", "excluded", "exact", "fork", "response", "call")


def pack_ids(ids: TokenIds, start: int = 0) -> bytes:
    """Pack the ids from `start` on as a column holds them: little-endian, 4 bytes each; log-probabilities have 8.

    >>> len(pack_ids(TokenIds([1, 2, 3])))
    12
    """
    return _little_endian("i", ids.pack()[start * WIDTH :])


def unpack_ids(data: bytes, before: TokenIds | None = None) -> TokenIds:
    """The ids that `data` holds, after `before`."""
    return TokenIds.from_packed(_little_endian("i", data), before if before else None)


def pack_logprobs(logprobs: Logprobs) -> bytes:
    return _little_endian("d", array("d", logprobs).tobytes())


def unpack_logprobs(data: bytes) -> Logprobs:
    values = array("d")
    values.frombytes(_little_endian("d", data))
    return Logprobs(values)


def _little_endian(kind: str, data: bytes) -> bytes:
    """From this machine's order to little-endian, or back."""
    if sys.byteorder == "little":
        return data
    values = array(kind)
    values.frombytes(data)
    values.byteswap()
    return values.tobytes()

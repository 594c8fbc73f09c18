"""Requests, their turns and the conversations that they belong to.

What a request repeats of the one that it follows is not written again: memory and disk are linear in what is new.

    with database.writing() as connection:
        record(connection, request, before=the_turn_that_it_follows)
    with database.reading() as connection:
        requests = load_conversation(connection, "c-5e1f")
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import sqlalchemy as sa

from astune.store import tables
from astune.store.once import insert_once, insert_or_raise
from astune.store.packing import pack_ids, pack_logprobs, unpack_ids, unpack_logprobs
from astune.support.sequences import common_start
from astune.token_ids import Logprobs, TokenIds, shared_bytes
from astune.types import Turn

MOST_CANDIDATES = 16
"""Answers with the same history that are looked at for one that nothing goes on from."""


# Statements of the way of a call, made once: to make one takes as long as to run it.
_LATER = tables.requests.alias()
_GOES_ON = sa.exists().where(
    _LATER.c.follows == tables.turns.c.msg_id, _LATER.c.follows_choice == tables.turns.c.choice
)
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
_KNOWN_HISTORIES = (
    sa.select(tables.turns.c.history)
    .where(tables.turns.c.history.in_(sa.bindparam("digests", expanding=True)))
    .distinct()
)
_CANDIDATES = (
    sa.select(tables.requests.c.conversation_id, _GOES_ON)
    .join(tables.requests, tables.requests.c.msg_id == tables.turns.c.msg_id)
    .where(tables.turns.c.history == sa.bindparam("digest"))
    .order_by(tables.turns.c.id.desc())
    .limit(MOST_CANDIDATES)
)


class TurnPlace(NamedTuple):
    """An answer: the message it came in, and its number among the answers of that."""

    msg_id: str
    choice: int


@dataclass(frozen=True)
class RecordedTurn:
    """A turn, and what a tracker needs besides to take it back."""

    turn: Turn
    """`follows` is the number of a turn of the conversation, counted over its requests in their order."""
    history: str
    """Digest of whose conversation it is and of all that was said, up to and with this answer."""
    forced: int = 0
    """The last so many ids of the prompt are what the answer had to begin with."""
    shown: int | None = None
    """The message has the first so many of the sampled ids: the others spell a stop text. None: all."""


@dataclass(frozen=True)
class RecordedRequest:
    """A request that was answered. Its turns have the same prompt, messages and tools."""

    msg_id: str
    conversation_id: str
    client: str
    """Whose token it came with; empty without tokens."""
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
    """What clients call the conversation, behind whose it is; None where the history alone tells."""
    instructions: int | None = None
    """Of a request to /v1/responses that may be continued: its first messages that do not carry over."""
    redacted: bool = False
    """Not all that was said is here, so the turns have no ids."""

    @property
    def messages(self) -> tuple[Mapping[str, Any], ...]:
        return self.turns[0].turn.messages

    @property
    def tools(self) -> tuple[Mapping[str, Any], ...]:
        return self.turns[0].turn.tools

    @property
    def version(self) -> int:
        return self.turns[0].turn.policy_version


def record(connection: sa.Connection, request: RecordedRequest, before: Turn | None = None) -> int:
    """Write `request`, whose `follows` is the turn `before`; returns its number within the conversation.

    Several processes may write to one conversation: each waits for the others' transactions. If what it follows was
    deleted meanwhile, it begins anew.
    """
    prompt_of = None if request.follows is None else turn_number(connection, request.follows)
    if request.follows is not None and prompt_of is None:
        request, before = replace(request, follows=None, exchange=request.msg_id), None
    _enter_conversation(connection, request)
    said = () if before is None else (*before.messages, before.response)
    kept = common_start(said, request.messages)
    same_tools = before is not None and before.tools == request.tools
    row = {name: getattr(request, name) for name in _PLAIN} | {
        "its_id": request.conversation_id,
        "follows": None if request.follows is None else request.follows.msg_id,
        "follows_choice": None if request.follows is None else request.follows.choice,
        "version": request.version,
        "messages_kept": kept,
        "messages": list(request.messages[kept:]),
    }
    # A row beside the statement costs a third of one within it. A column that is left out is null.
    number = connection.scalar(_INSERT_REQUEST, row if same_tools else row | {"tools": list(request.tools)})
    _record_turns(connection, request, before, prompt_of)
    return int(number)


_PLAIN = (
    "msg_id",
    "conversation_id",
    "client",
    "user",
    "task_id",
    "run_id",
    "exchange",
    "seen",
    "agent",
    "model",
    "asked",
    "answered",
    "instructions",
    "redacted",
)
"""Fields that are columns as they are."""


def _enter_conversation(connection: sa.Connection, request: RecordedRequest) -> None:
    """Make its row if there is none. The row is locked until the transaction ends."""
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
        kept = shared_bytes((TokenIds.of(before.prompt_ids) + before.output_ids).packed(), ids.packed()) // 4
    for choice, recorded in enumerate(request.turns):
        turn = recorded.turn
        row = {name: getattr(turn, name) for name in _TURN_PLAIN} | {
            "msg_id": request.msg_id,
            "choice": choice,
            "prompt_kept": kept,
            "prompt_of": prompt_of,
            "prompt_ids": pack_ids(ids, kept),
            "forced": recorded.forced,
            "output_ids": pack_ids(TokenIds.of(turn.output_ids)),
            "shown": recorded.shown,
            "logprobs": pack_logprobs(Logprobs.of(turn.logprobs)),
            "response": dict(turn.response),
            "history": recorded.history,
        }
        row_id = connection.scalar(_INSERT_TURN, row)
        if choice == 0 and len(request.turns) > 1:  # the others have the same prompt
            prompt_of, kept = row_id, len(ids)


def forget_conversation(connection: sa.Connection, conversation_id: str) -> None:
    """Delete it and its requests, for it to be written anew."""
    known = tables.conversations
    connection.execute(known.delete().where(known.c.conversation_id == conversation_id))


def exclude(connection: sa.Connection, places: Sequence[TurnPlace], reason: str) -> None:
    """Take turns out of training, where they were in it."""
    for place in places:
        its_row = (tables.turns.c.msg_id == place.msg_id) & (tables.turns.c.choice == place.choice)
        connection.execute(
            tables.turns.update().where(its_row, tables.turns.c.excluded.is_(None)).values(excluded=reason)
        )


def expose(connection: sa.Connection, conversation_id: str, version: int, now: float) -> None:
    """Remember that the conversation was answered by this version, and since when."""
    insert_once(connection, tables.exposures, {"conversation_id": conversation_id, "version": version, "first": now})


def turn_number(connection: sa.Connection, place: TurnPlace) -> int | None:
    """The id of a turn's row; None if there is none."""
    return connection.scalar(_TURN_NUMBER, place._asdict())


def requests_in(connection: sa.Connection, conversation_id: str) -> int:
    """How many requests the conversation has; 0 where it is not known."""
    return int(connection.scalar(_REQUESTS_IN, {"its_id": conversation_id}))


def conversation_of_history(connection: sa.Connection, digests: Sequence[str]) -> str | None:
    """The conversation with an answer up to which all was said as one of `digests` tells, the first of them that is
    known. Of several the newest that nothing goes on from yet; so each of two that say the same goes on by itself."""
    found = set(connection.scalars(_KNOWN_HISTORIES, {"digests": list(digests)}))
    digest = next((each for each in digests if each in found), None)
    if digest is None:
        return None
    rows = connection.execute(_CANDIDATES, {"digest": digest}).all()
    free = [conversation for conversation, followed in rows if not followed]
    return str((free or [rows[0][0]])[0])


def find_request(connection: sa.Connection, msg_id: str) -> str | None:
    """The id of the conversation that a message belongs to; None if it is not known."""
    requests = tables.requests.c
    return connection.scalar(sa.select(requests.conversation_id).where(requests.msg_id == msg_id))


def clients_of(connection: sa.Connection, msg_ids: Sequence[str]) -> set[str]:
    """The clients that these messages went to, as far as they are known."""
    requests = tables.requests.c
    return set(connection.scalars(sa.select(requests.client).where(requests.msg_id.in_(msg_ids)).distinct()))


def load_conversation(connection: sa.Connection, conversation_id: str) -> list[RecordedRequest]:
    """The requests of a conversation in the order in which they were answered, whole again; empty if it is not
    known."""
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
        said = () if before is None else (*before.messages, before.response)
        messages = (*said[: row["messages_kept"]], *row["messages"])
        tools = tuple(row["tools"]) if row["tools"] is not None else before.tools if before is not None else ()
        turns = tuple(self._turn(row, each, messages, tools, number) for each in rows)
        return RecordedRequest(**{name: row[name] for name in _PLAIN}, follows=follows, turns=turns, key=self._key)

    def _turn(
        self,
        request: sa.RowMapping,
        row: sa.RowMapping,
        messages: tuple[Mapping[str, Any], ...],
        tools: tuple[Mapping[str, Any], ...],
        follows: int | None,
    ) -> RecordedTurn:
        prompt_ids = self._prompt(row)
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

    def _prompt(self, row: sa.RowMapping) -> TokenIds:
        kept = row["prompt_kept"]
        if not kept:
            return unpack_ids(row["prompt_ids"])
        before = self._ids[row["prompt_of"]]
        if kept < len(before):
            before = TokenIds(before[:kept])
        return unpack_ids(row["prompt_ids"], before) if row["prompt_ids"] else before


_TURN_PLAIN = (
    "policy_version",
    "finish_reason",
    "temperature",
    "excluded",
    "exact",
    "fork",
    "response",
    "call",
)

"""Conversations that are under way: a tracker for each, made anew from the store where it is not in memory."""

from __future__ import annotations

import asyncio
import threading
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial

from astune.context_tracker.calls import KnownTurn
from astune.context_tracker.tracker import ContextTracker
from astune.online.service.callers import Caller
from astune.online.store.assignments import LastAnswer
from astune.online.store.requests import (
    RecordedRequest,
    TurnPlace,
    began,
    conversation_of_history,
    load_conversation,
    requests_in,
)
from astune.store.database import Database
from astune.types import Turn

MakeTracker = Callable[[str, float], ContextTracker]
"""A tracker for the conversation with this id, which began at that time."""


@dataclass(eq=False)
class LiveConversation:
    """A conversation in memory. `places` and `written` say of each turn of the tracker where it stands in the store and
    how; `requests` counts those of the store, of which the tracker may not have all: what was redacted is gone."""

    conversation_id: str
    key: str | None
    tracker: ContextTracker
    places: list[TurnPlace] = field(default_factory=list)
    written: list[Turn] = field(default_factory=list)
    exchanges: dict[str, str] = field(default_factory=dict)
    requests: int = 0
    last: LastAnswer | None = None
    """Its last answer, or the decision on one that is under way."""

    def take_back(self, requests: Sequence[RecordedRequest]) -> None:
        """Go on from what the store has."""
        self.requests = len(requests)
        sampled = [LastAnswer(each.version, each.answered) for each in requests if each.version >= 0]
        self.last = max(sampled, key=lambda each: each.time, default=None)
        redacted = next((number for number, request in enumerate(requests) if request.redacted), len(requests))
        known: list[KnownTurn] = []
        for request in requests[:redacted]:
            self.exchanges[request.msg_id] = request.exchange
            for choice, each in enumerate(request.turns):
                known.append(KnownTurn(each.turn, request.seen, each.forced, each.shown))
                self.places.append(TurnPlace(request.msg_id, choice))
                self.written.append(each.turn)
        self.tracker.take_back(known)


@dataclass(eq=False)
class _Claim:
    """A request under way, with the digest of its history."""

    history: str
    over: bool = False


class LiveConversations:
    """At most `most` conversations in memory. What is not there is read from the store, and read anew where another
    process has written to it: it is the store that knows them."""

    def __init__(self, database: Database, make_tracker: MakeTracker, *, most: int, new_id: Callable[[], str]) -> None:
        self._database, self._make_tracker = database, make_tracker
        self._most, self._new_id = most, new_id
        self._live: OrderedDict[str, LiveConversation] = OrderedDict()
        self._loading: dict[str, asyncio.Task[LiveConversation]] = {}
        self._claims: dict[_Claim, str] = {}
        """The conversations of requests under way that were found by their history."""
        self._choosing = threading.Lock()

    def __len__(self) -> int:
        return len(self._live)

    @asynccontextmanager
    async def find(self, whose: Caller, histories: Sequence[str], asked: float) -> AsyncIterator[LiveConversation]:
        """The conversation of a request: the one that it names, else the one with an answer up to which all was said
        as one of `histories` tells (`History.digests`, the last first), else a new one, which began when it was
        asked. Until the request is done, another one with the same history looks for another such answer."""
        claim = _Claim(histories[0] if histories else "")
        try:
            yield await self._of(*await asyncio.to_thread(self._identify, whose, histories, claim), whose, asked)
        finally:
            claim.over = True
            self._claims.pop(claim, None)

    async def look(self, whose: Caller, histories: Sequence[str], asked: float) -> LiveConversation:
        """The conversation that `find` would give now, for a question that leaves no trace of itself."""
        conversation_id, requests = await asyncio.to_thread(self._identify, whose, histories, None)
        is_new = conversation_id not in self._live and not requests
        live = await self._of(conversation_id, requests, whose, asked)
        if is_new:
            self.forget(live)
        return live

    async def _of(self, conversation_id: str, requests: int, whose: Caller, asked: float) -> LiveConversation:
        """`requests`: how many the store has of it."""
        live = self._live.get(conversation_id)
        if live is None and not requests:
            live = LiveConversation(conversation_id, whose.key, self._make_tracker(conversation_id, asked))
        elif live is None or live.requests < requests:
            live = await self._load_once(conversation_id, whose.key)
        self._live[conversation_id] = live
        self._live.move_to_end(conversation_id)
        while len(self._live) > self._most:
            self._live.popitem(last=False)
        return live

    def forget(self, live: LiveConversation) -> None:
        """The store has something else than the tracker: the next request reads it."""
        if self._live.get(live.conversation_id) is live:
            del self._live[live.conversation_id]

    def _identify(self, whose: Caller, histories: Sequence[str], claim: _Claim | None) -> tuple[str, int]:
        """The conversation's id, and how many requests the store has of it. Without a claim others may have it, too."""
        with self._database.reading() as connection:
            if (key := whose.key) is not None:
                return f"c-{key[:32]}", requests_in(connection, f"c-{key[:32]}")
            if not histories:
                return self._new_id(), 0
            with self._choosing:
                others = [] if claim is None else list(self._claims.items())
                taken = [name for other, name in others if other.history == histories[0]]
                # almost always the last answer is known; the earlier ones are asked for only where it is not
                found = conversation_of_history(connection, histories[:1], taken) or (
                    conversation_of_history(connection, histories[1:]) if len(histories) > 1 else None
                )
                if found is None:
                    return self._new_id(), 0
                if claim is not None:
                    self._claims[claim] = found
            if claim is not None and claim.over:  # the request was given up meanwhile
                self._claims.pop(claim, None)
            return found, requests_in(connection, found)

    async def _load_once(self, conversation_id: str, key: str | None) -> LiveConversation:
        """Requests that come meanwhile wait for the same reading."""
        if conversation_id not in self._loading:
            reading = asyncio.to_thread(partial(self._load, conversation_id, key))
            task = self._loading[conversation_id] = asyncio.create_task(reading)
            task.add_done_callback(lambda _: self._loading.pop(conversation_id, None))
        return await asyncio.shield(self._loading[conversation_id])

    def _load(self, conversation_id: str, key: str | None) -> LiveConversation:
        with self._database.reading() as connection:
            requests = load_conversation(connection, conversation_id)
        live = LiveConversation(conversation_id, key, self._make_tracker(conversation_id, began(requests)))
        live.take_back(requests)
        return live

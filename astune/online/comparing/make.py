"""Pairs of answers out of what was recorded: the answers of a request with `n` above 1, and attempts at one task."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from itertools import combinations
from typing import Any

import sqlalchemy as sa

from astune.context_tracker.prompt.messages import meaning
from astune.online.store import comparisons
from astune.online.store.comparisons import Choice
from astune.online.store.feedback.states import lock
from astune.online.store.recorded import RecordedAnswer, load_recorded
from astune.online.store.requests import RecordedRequest, RecordedTurn, load_conversation, record
from astune.store.tables import requests

MOST_AT_ONCE = 20
"""Pairs that are made when a rater has seen all."""
LEAST_LEAD = 1e-9
"""By which rewards differ."""


def make_pairs(connection: sa.Connection, client: str, task_id: str | None, now: float) -> list[int]:
    """Make some pairs that are not there yet, of the newest answers; return their numbers. With a task only of answers
    at that task."""
    numbers: list[int] = []
    lock(connection)
    found = _of_attempts(connection, client, task_id)
    for source, first, second in found if task_id is not None else (*_of_choices(connection, client), *found):
        numbers.append(comparisons.add(connection, source, first, second, client, now))
        if (judged := by_rewards(connection, first, second)) is not None:
            comparisons.write_judged(connection, numbers[-1], judged, comparisons.REWARDS)
        if len(numbers) == MOST_AT_ONCE:
            break
    return numbers


def by_rewards(connection: sa.Connection, first: str, second: str) -> Choice | None:
    """The choice that the rewards of both answers make; None unless both have one."""
    rewards = [comparisons.reward_of(connection, msg_id) for msg_id in (first, second)]
    one, other = rewards
    return None if one is None or other is None else choose(one, other)


def choose(one: float, other: float) -> Choice:
    """Choose by two rewards.

    >>> choose(1.0, 0.5), choose(0.0, 0.0)
    ('first', 'tie')
    """
    return "tie" if abs(one - other) < LEAST_LEAD else "first" if one > other else "second"


def _of_attempts(
    connection: sa.Connection, client: str, task_id: str | None
) -> Iterator[tuple[comparisons.Source, str, str]]:
    """Attempts at one task to which the same was asked, that say something else, and of which none is in a pair."""
    for attempts in comparisons.find_attempts(connection, client, task_id).values():
        used = comparisons.find_compared(connection, attempts)
        loaded = load_recorded(connection, [msg_id for msg_id in attempts if msg_id not in used])
        asked: dict[str, list[RecordedAnswer]] = {}
        for answer in sorted(loaded.values(), key=lambda answer: answer.heading.answered):
            if len(answer.turns) == 1:
                asked.setdefault(json.dumps([list(answer.messages), list(answer.tools)]), []).append(answer)
        for some in asked.values():
            for one, other in _disjoint(some, [answer.turns[0][1].response for answer in some]):
                yield "group", one.heading.msg_id, other.heading.msg_id


def _of_choices(connection: sa.Connection, client: str) -> Iterator[tuple[comparisons.Source, str, str]]:
    """The answers of requests with several. Each becomes a request of its own, as feedback names whole requests."""
    ids = comparisons.find_with_choices(connection, client)
    used = comparisons.find_compared(connection, [f"{msg_id}:{choice}" for msg_id in ids for choice in range(2)])
    for msg_id in ids:
        if used & {f"{msg_id}:0", f"{msg_id}:1"}:
            continue
        request = _load(connection, msg_id)
        numbers = list(range(len(request.turns)))
        responses = [each.turn.response for each in request.turns]
        for one, other in _disjoint(numbers, responses):
            for choice in (one, other):
                record(connection, _alone(request, choice))
            yield "traffic", f"{msg_id}:{one}", f"{msg_id}:{other}"


def _disjoint(values: Sequence[Any], responses: Sequence[Mapping[str, Any]]) -> Iterator[tuple[Any, Any]]:
    """Pair values whose responses mean something else, each in one pair at most."""
    said = [meaning([{"role": "assistant", **response}], 0) for response in responses]
    taken: set[int] = set()
    for one, other in combinations(range(len(values)), 2):
        if said[one] != said[other] and not {one, other} & taken:
            taken |= {one, other}
            yield values[one], values[other]


def _load(connection: sa.Connection, msg_id: str) -> RecordedRequest:
    whose = sa.select(requests.c.conversation_id).where(requests.c.msg_id == msg_id)
    conversation = load_conversation(connection, str(connection.scalar(whose)))
    return next(request for request in conversation if request.msg_id == msg_id)


def _alone(request: RecordedRequest, choice: int) -> RecordedRequest:
    """One answer of a request, in a conversation of its own that no client goes on from."""
    msg_id, recorded = f"{request.msg_id}:{choice}", request.turns[choice]
    history = sha256(f"{msg_id} {recorded.history}".encode()).hexdigest()
    turn = replace(recorded.turn, follows=None, messages=tuple(request.messages), tools=request.tools)
    return replace(
        request,
        msg_id=msg_id,
        conversation_id=f"c-{history[:32]}",
        key=None,
        run_id=f"{comparisons.COPIED}{request.msg_id}",
        exchange=msg_id,
        follows=None,
        seen=0,
        instructions=None,
        turns=(RecordedTurn(turn, history, recorded.forced, recorded.shown),),
    )

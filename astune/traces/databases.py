"""Reads the store of the online service, and the tables of AgentScope 2.x's agent service, and changes neither.

The agent service keeps no feedback: who uses it writes that into a message's `metadata`, as in a chat log.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

import sqlalchemy as sa

from astune.config.online import FeedbackConfig
from astune.context_tracker.prompt.messages import REASONING_KEYS
from astune.errors import TaskError
from astune.online.export import VALID, ExportFilter, LoadedAnswers, exchanges
from astune.online.follow.followed import find_followed
from astune.online.store.feedback.judgements import Judgement, judgements
from astune.online.store.recorded import RecordedAnswer
from astune.online.store.requests import load_conversation
from astune.traces.record import (
    BROKEN,
    FeedbackInTrace,
    Message,
    ReadingRules,
    TracedConversation,
    TracedExchange,
    Unread,
    read_conversation,
    read_json,
)

OF_PEOPLE = ("user", "channel")
"""The origins of sessions in which a person speaks; a schedule and a team of agents speak for themselves."""
MESSAGES = sa.table("messages", *map(sa.column, ("session_id", "msg_id", "created_at", "payload")))
SESSIONS = sa.table("sessions", *map(sa.column, ("id", "user_id", "payload")))


def is_agent_service(inspector: sa.Inspector) -> bool:
    """True for its database. Raises TaskError where its tables are of another version."""
    if not {"sessions", "messages"} <= set(inspector.get_table_names()):
        return False
    for table in (SESSIONS, MESSAGES):
        missing = {*table.c.keys()} - {column["name"] for column in inspector.get_columns(table.name)}
        if missing:
            raise TaskError(
                f"the table {table.name} has no {', '.join(sorted(missing))}: it is not that of AgentScope's agent "
                "service as of 2.0.10"
            )
    return True


def read_agent_service(connection: sa.Connection, rules: ReadingRules) -> Iterator[TracedConversation | Unread]:
    """Its sessions, in the order of their ids."""
    sessions = {row.id: row for row in connection.execute(sa.select(SESSIONS))}
    in_order = sa.select(MESSAGES).order_by(MESSAGES.c.session_id, MESSAGES.c.created_at, MESSAGES.c.msg_id)
    for name, rows in groupby(connection.execute(in_order), key=lambda row: str(row.session_id)):
        session = sessions.get(name)
        try:
            about = read_json("{}" if session is None else session.payload, dict)
            origin = (about.get("origin") or {}).get("type", about.get("source", "user"))
            if origin not in OF_PEOPLE:
                yield Unread(f"session {name}", f"a session of a {origin}", "nobody asked")
                continue
            messages = [(f"message {name}/{row.msg_id}", read_json(row.payload, dict)) for row in rows]
            found = read_conversation("agent service", name, messages, {"metadata": about}, rules)
        except BROKEN as error:
            yield Unread(f"session {name}", str(error))
            continue
        found.people |= {str(session.user_id)} if session is not None else set()
        yield found


def read_online_store(
    connection: sa.Connection, wanted: ExportFilter, rules: FeedbackConfig
) -> Iterator[TracedConversation]:
    """Its conversations with a wanted answer, in the order of their ids. Titles and other things that programs ask for
    on the side are exchanges too, which nobody judged."""
    judged = {one.msg_ids[-1]: one for one in judgements(connection, rules, VALID)}
    loaded = LoadedAnswers(connection)
    last: TracedConversation | None = None
    for name, msg_ids in exchanges(connection, wanted, ()):
        answers = loaded.answers(msg_ids)
        if not answers or not answers[-1].turns or not wanted.takes(answers[-1]):
            continue
        if last is None or last.name != name:
            if last is not None:
                yield last
            user = answers[0].heading.user
            last = TracedConversation("online store", name, [], people=frozenset({user} if user else ()))
            requests = load_conversation(connection, name)
        found = [judged[msg_id] for msg_id in msg_ids if msg_id in judged]
        exchange = _exchange(answers, [part for one in found for part in _feedback(one, rules)])
        exchange.followed = find_followed(requests, msg_ids[0])
        last.exchanges.append(exchange)
    if last is not None:
        yield last


def _feedback(judgement: Judgement, rules: FeedbackConfig) -> list[FeedbackInTrace]:
    found = [FeedbackInTrace("correction", correction=text) for text in judgement.corrections]
    if judgement.reward is not None:
        kinds = "+".join(sorted(judgement.kinds - {"correction"}))
        value = (judgement.reward - rules.least) / (rules.most - rules.least)
        found.append(FeedbackInTrace(kinds, min(max(value, 0.0), 1.0)))
    return found


def _exchange(answers: list[RecordedAnswer], feedback: list[FeedbackInTrace]) -> TracedExchange:
    first, newest = answers[0], answers[-1]
    asked = [_plain(message) for message in first.messages]
    said = [_plain(message) for message in newest.messages[len(asked) :]]
    response = _plain({"role": "assistant", **newest.turns[0][1].response})
    place = f"answer {newest.heading.msg_id}"
    return TracedExchange(place, asked, [*said, response], list(newest.tools), feedback)


def _plain(message: object) -> Message:
    assert isinstance(message, dict)
    kept = ("role", "content", "tool_calls", "tool_call_id", *REASONING_KEYS)
    return {key: message[key] for key in kept if message.get(key) is not None or key in ("role", "content")}

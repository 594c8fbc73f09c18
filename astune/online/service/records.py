"""Conversations of any agent with any model (`POST /v1/astune/records`) as requests of the store: texts without token
ids, which are never trained by what was sampled."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import sqlalchemy as sa

from astune.config.online import FeedbackConfig
from astune.online.redaction import Redactor
from astune.online.service.callers import Caller, History
from astune.online.service.feedback import new_feedback, redact
from astune.online.store.feedback.states import NewFeedback, add
from astune.online.store.requests import RecordedRequest, RecordedTurn, TurnPlace, forget_conversation, record_new
from astune.online.wire import ConversationRecord, Feedback, WireError
from astune.types import Turn

OTHER_MODEL = -1
"""The version of what another model said."""
NO_IDS = "inexact"
"""`Turn.excluded` of turns whose token ids nobody knows."""


@dataclass(frozen=True)
class NewRecord:
    """A conversation as the store keeps it (`record_new`), and what was said of it."""

    conversation_id: str
    requests: tuple[RecordedRequest, ...]
    feedback: tuple[NewFeedback, ...]


def new_record(
    body: ConversationRecord, client: str, received: float, redactor: Redactor, rules: FeedbackConfig
) -> NewRecord:
    """Raises WireError for feedback that says what none may say, and for a conversation without an answer."""
    whose = Caller(client, body.user, None, body.task_id, body.run_id)
    named = json.dumps([client, body.user, body.conversation_id, body.run_id])
    digest = hashlib.sha256(named.encode()).hexdigest()[:32]
    plain = _with_thoughts(body)
    allowed = redactor.apply(plain)
    said = allowed.messages
    requests: list[RecordedRequest] = []
    digests = History(plain, whose).digests
    places = [place for place, message in enumerate(plain) if message["role"] == "assistant"]
    for number, place in enumerate(places):
        msg_id = f"rec-{digest}-{number}"
        before = requests[-1] if requests else None
        since = said[places[number - 1] + 1 : place] if number else said[:place]
        same = before is not None and all(message["role"] != "user" for message in since)
        turn = Turn(
            agent="agent",
            prompt_ids=(),
            output_ids=(),
            logprobs=(),
            policy_version=OTHER_MODEL,
            finish_reason="stop",
            excluded=NO_IDS,
            exact=False,
            follows=number - 1 if number else None,
            messages=tuple(since),
            tools=tuple(body.tools),
            response=said[place],
            call=number,
        )
        requests.append(
            RecordedRequest(
                msg_id=msg_id,
                conversation_id=f"r-{digest}",
                client=client,
                user=body.user,
                task_id=body.task_id,
                run_id=body.run_id,
                exchange=before.exchange if before is not None and same else msg_id,
                follows=None if before is None else TurnPlace(before.msg_id, 0),
                seen=number,
                agent="agent",
                model=body.model or "",
                asked=received,
                answered=received,
                turns=(RecordedTurn(turn, digests[number]),),
                redacted=allowed.changed,
            )
        )
    if not requests:
        raise WireError("the conversation has no message of the assistant: there is nothing to record", "messages")
    opinions = _feedback(body, [each.msg_id for each in requests], client, received, rules)
    feedback = tuple(redact(each, redactor) for each in opinions)
    return NewRecord(f"r-{digest}", tuple(requests), feedback)


def write_record(connection: sa.Connection, new: NewRecord, rules: FeedbackConfig) -> int:
    """Write it in the place of what was sent before; the number of its answers."""
    forget_conversation(connection, new.conversation_id)
    record_new(connection, new.requests)
    for each in new.feedback:
        add(connection, each, rules)
    return len(new.requests)


def _with_thoughts(body: ConversationRecord) -> list[Mapping[str, Any]]:
    """The messages, each of the assistant with what it thought before."""
    thoughts: dict[int, list[str]] = {}
    for thought in body.thoughts:
        thoughts.setdefault(thought.step, []).append(thought.content)
    messages: list[Mapping[str, Any]] = []
    step = 0
    for message in body.messages:
        plain = message.to_json() | {"content": message.content}
        if message.role == "assistant":
            step += 1
            if step in thoughts:
                plain["reasoning_content"] = "\n".join(thoughts[step])
        messages.append(plain)
    return messages


def _feedback(
    body: ConversationRecord, msg_ids: Sequence[str], client: str, received: float, rules: FeedbackConfig
) -> list[NewFeedback]:
    # A body names a thousand answers at most; what is said of the whole conversation is about all of them.
    named = {"msg_ids": msg_ids[:1], "user": body.user, "task_id": body.task_id, "run_id": body.run_id}
    said: list[dict[str, Any]] = []
    if body.rewards is not None:
        said.append({"rewards": body.rewards})
    if body.feedback is not None:
        said.append(body.feedback.to_json())
    try:
        bodies = [Feedback.model_validate(named | each) for each in said]
    except ValueError as error:
        raise WireError(f"'feedback': {error}", "feedback") from None
    read = (new_feedback(each, client=client, received=received, rules=rules) for each in bodies)
    return [replace(each, msg_ids=tuple(msg_ids)) for each in read]

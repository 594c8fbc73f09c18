"""`GET /v1/astune/...`: what the store knows. With tokens a client sees what is its own."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import sqlalchemy as sa

from astune.online.service.callers import may_be_known
from astune.online.service.versions import ServedVersions
from astune.online.store.commits import by_state
from astune.online.store.feedback.figures import feedback_figures
from astune.online.store.requests import RecordedRequest, find_request, load_conversation
from astune.online.store.versions import every
from astune.ropes import common_start
from astune.store.database import Database
from astune.support.http.service import HttpError


class Lookups:
    def __init__(self, database: Database, versions: ServedVersions, clock: Callable[[], float]) -> None:
        self._database, self._versions, self._clock = database, versions, clock
        self._began = clock()

    def request(self, names: Mapping[str, Any], client: str) -> object:
        """One reply: what was asked, the tokens, the version that answered."""
        msg_id = str(names["msg_id"])
        with self._database.reading() as connection:
            conversation = find_request(connection, msg_id) if may_be_known(msg_id) else None
            requests = _own(connection, conversation, client)
        found = [each for each in requests if each.msg_id == msg_id]
        if not found:
            raise HttpError(404, "not_found", f"no message {msg_id!r:.300} is known")
        return _show_request(found[0], tokens=True)

    def conversation(self, names: Mapping[str, Any], client: str) -> object:
        """Its requests in their order, without tokens, each with the messages that are new in it: as many bytes as were
        said, however long it is."""
        conversation = str(names["conversation_id"])
        with self._database.reading() as connection:
            requests = _own(connection, conversation if may_be_known(conversation) else None, client)
        if not requests:
            raise HttpError(404, "not_found", f"no conversation {conversation!r:.300} is known")
        answered = {each.msg_id: each for each in requests}
        shown = []
        for each in requests:
            before = None if each.follows is None else answered[each.follows.msg_id]
            kept = 0 if before is None else common_start(before.messages, each.messages)
            kept += before is not None and kept == len(before.messages) < len(each.messages)  # its answer
            new = {"messages_kept": kept, "messages": list(each.messages[kept:])}
            shown.append(_show_request(each, tokens=False) | new)
        return {"conversation_id": conversation, "requests": shown}

    def versions(self, names: Mapping[str, Any], client: str) -> object:
        with self._database.reading() as connection:
            made = [asdict(version) for version in every(connection)]
        for version in made:
            del version["probes"]  # which are long
        return {"serving": self._versions.serving, **self._versions.trouble, "versions": made}

    def status(self, names: Mapping[str, Any], client: str) -> object:
        with self._database.reading() as connection:
            commits = by_state(connection)
            feedback = feedback_figures(connection).by_state
        return {
            "serving": self._versions.serving,
            **self._versions.trouble,
            "seconds": self._clock() - self._began,
            "commits": commits,
            "feedback": {state: count for state, count in feedback.items() if count},
        }


def _own(connection: sa.Connection, conversation: str | None, client: str) -> Sequence[RecordedRequest]:
    requests = [] if conversation is None else load_conversation(connection, conversation)
    return [each for each in requests if each.client == client]


def _show_request(request: RecordedRequest, *, tokens: bool) -> dict[str, Any]:
    shown: dict[str, Any] = {
        name: getattr(request, name)
        for name in ("msg_id", "conversation_id", "exchange", "user", "task_id", "run_id", "model", "version")
    }
    shown |= {"asked": request.asked, "answered": request.answered, "redacted": request.redacted}
    shown["follows"] = None if request.follows is None else request.follows.msg_id
    shown |= {"messages": list(request.messages), "tools": list(request.tools), "answers": []}
    for each in request.turns:
        turn = each.turn
        answer: dict[str, Any] = {"message": turn.response, "finish_reason": turn.finish_reason, "fork": turn.fork}
        if tokens:
            answer |= {
                "prompt_token_ids": list(turn.prompt_ids),
                "token_ids": list(turn.output_ids),
                "logprobs": [each if math.isfinite(each) else None for each in turn.logprobs],
            }
        shown["answers"].append(answer)
    return shown

"""The caller of a request, and the digests that find its conversation."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from astune.context_tracker.prompt.messages import CallPlaces, Message, meaning
from astune.online.wire import CONVERSATION_HEADER, RUN_HEADER, TASK_HEADER
from astune.support.http.service import invalid

MOST_NAME = 255


@dataclass(frozen=True)
class Caller:
    """`client` is the name of the token that came with the request, empty without tokens. `conversation`, `task_id` and
    `run_id` are what its headers say, `user` is what its body says."""

    client: str = ""
    user: str | None = None
    conversation: str | None = None
    task_id: str | None = None
    run_id: str | None = None

    @property
    def key(self) -> str | None:
        """A digest of what the client calls the conversation and of whose it is; None where it does not say."""
        if self.conversation is not None:
            return _digest([self.client, self.user, "conversation", self.conversation])
        if self.task_id is not None:
            return _digest([self.client, self.user, "run", self.task_id, self.run_id])
        return None


def caller_of(headers: Mapping[str, str], user: object, client: str) -> Caller:
    """Raises HttpError (400) for a name that is empty, longer than `MOST_NAME`, or has control characters."""
    names = {name: check_name(name, headers.get(name)) for name in (CONVERSATION_HEADER, TASK_HEADER, RUN_HEADER)}
    return Caller(
        client=client,
        user=check_name("user", user),
        conversation=names[CONVERSATION_HEADER],
        task_id=names[TASK_HEADER],
        run_id=names[RUN_HEADER],
    )


class History:
    """Digests of the conversation's owner and of all messages. Messages are compared by their meaning: without
    reasoning, ids of calls and layout, which clients change."""

    def __init__(self, messages: Sequence[Message], of: Caller) -> None:
        calls = CallPlaces(messages)
        self._all = hashlib.sha256(json.dumps([of.client, of.user]).encode())
        self.digests: list[str] = []
        """The digests up to and with each message of the assistant, in order."""
        for index, message in enumerate(messages):
            self._all.update(json.dumps(meaning(messages, index, calls)).encode())
            if message.get("role") == "assistant":
                self.digests.append(self._all.hexdigest())

    def digest_with(self, answer: Message) -> str:
        """The digest up to and with `answer` as the next message."""
        with_it = self._all.copy()
        with_it.update(json.dumps(meaning([answer], 0)).encode())
        return with_it.hexdigest()


def check_name(name: str, value: object) -> str | None:
    """`value`, if it may be a name. None is none. Raises HttpError (400)."""
    if value is None:
        return None
    if not isinstance(value, str) or not 0 < len(value) <= MOST_NAME or not value.isprintable():
        raise invalid(name, value, f"a text of 1 to {MOST_NAME} characters, none of them a control character")
    return value


def may_be_known(name: str) -> bool:
    """True if the store can have an id like it."""
    return 0 < len(name) <= MOST_NAME and "\x00" not in name


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()

"""What followed an exchange: the user's next message, the same question again, an edit, or nothing.

Only the **main line** of a conversation counts, where a person speaks. A program that asks for a title, a summary or a
list of suggestions asks the same model, and nobody waits for such an answer. A request speaks for the person if

- it has the system message and the tools of the answer that it goes on from (or of the one in whose place it stands),
  or the conversation itself goes on from its answer: nothing goes on from a title;
- and its answer does not stand within a later message of the conversation, as a summary does.

The same question again or another one in its place is the person's if it came `READ_SECONDS` after the answer or later:
earlier it is a program's second attempt, or one of several that it makes at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from astune.context_tracker.prompt.messages import SYSTEM_ROLES, show_content
from astune.online.store.requests import RecordedRequest

Message = Mapping[str, Any]
FollowKind = Literal["message", "retry", "edit", "corrected", "silence"]
"""The user's next message; the same question again; another question in its place; another answer in the place of the
model's; nothing."""
READ_SECONDS = 2.0
"""Nobody has read an answer sooner."""
LEAST_SUMMARY = 40
"""Fewest characters of an answer that is looked for in later messages."""


@dataclass(frozen=True)
class Followed:
    """An exchange and what followed it. `said` is the text of that: empty for silence."""

    kind: FollowKind
    question: str
    answer: str
    messages: tuple[Message, ...]
    """The exchange itself: the user's message, calls of tools with their results, the answer."""
    said: str


def find_followed(conversation: Sequence[RecordedRequest], exchange: str, *, rests: bool = False) -> Followed | None:
    """Find what followed an exchange of a whole conversation. None while nothing did, unless the conversation `rests`,
    and where the exchange is not on the main line."""
    own = [request for request in conversation if request.exchange == exchange]
    line = _MainLine(conversation)
    if not own or not _last_user(own[0].messages):
        return None
    answered = {request.msg_id for request in own}
    later = [request for request in conversation if request.exchange == request.msg_id and request not in own]
    later.sort(key=lambda request: request.exchange not in line.continued)
    for request in later:
        if request.follows is not None and request.follows.msg_id in answered and line.goes_on(own[-1], request):
            return _show(own, "message", show_content(_last_user(request.messages)))
    for request in later:
        found = _in_its_place(own, request) if line.goes_on(own[0], request) else None
        if found is not None:
            return found
    if rests and line.has(own[0]):
        return _show(own, "silence", "")
    return None


class _MainLine:
    """The main line of a conversation."""

    def __init__(self, conversation: Sequence[RecordedRequest]) -> None:
        self._conversation = conversation
        of_exchange = {request.msg_id: request.exchange for request in conversation}
        self.continued = {
            of_exchange[request.follows.msg_id]
            for request in conversation
            if request.follows is not None and request.exchange == request.msg_id
        }
        """Exchanges from whose answers the conversation goes on."""

    def goes_on(self, before: RecordedRequest, request: RecordedRequest) -> bool:
        """Tell whether a person speaks in a request that came after `before`, or stands in its place."""
        same = _setting(before) == _setting(request) or request.exchange in self.continued
        return same and not self._is_summary(request)

    def has(self, request: RecordedRequest) -> bool:
        """Tell whether a request whose answer nothing followed is on it: it is made as the conversation's first."""
        return _setting(self._conversation[0]) == _setting(request) and not self._is_summary(request)

    def _is_summary(self, request: RecordedRequest) -> bool:
        text = _answer_of(request).strip()
        if len(text) < LEAST_SUMMARY:
            return False
        later = [each for each in self._conversation if each is not request and each.asked >= request.answered]
        said = (message for each in later for message in each.messages if message.get("role") != "assistant")
        return any(text in show_content(message) for message in said)


def _in_its_place(own: Sequence[RecordedRequest], request: RecordedRequest) -> Followed | None:
    """Tell what a request says of an exchange in whose place it stands; None where it stands elsewhere."""
    first = own[0]
    if request.follows != first.follows or request.asked < own[-1].answered + READ_SECONDS:
        return None
    asked, now = list(first.messages), list(request.messages)
    if now == asked:
        return _show(own, "retry", show_content(asked[-1]))
    if now[: len(asked)] == asked:
        answer = next((message for message in now[len(asked) :] if message.get("role") == "assistant"), None)
        if answer is None or show_content(answer) in {"", *map(_answer_of, own)}:
            return None
        return _show(own, "corrected", show_content(answer))
    if len(now) == len(asked) and now[:-1] == asked[:-1] and now[-1].get("role") == "user":
        return _show(own, "edit", show_content(now[-1]))
    return None


def _show(own: Sequence[RecordedRequest], kind: FollowKind, said: str) -> Followed:
    last = own[-1]
    messages = [*last.messages, last.turns[0].turn.response]
    begins = max(place for place, message in enumerate(messages) if message.get("role") == "user")
    return Followed(kind, show_content(_last_user(last.messages)), _answer_of(last), tuple(messages[begins:]), said)


def _answer_of(request: RecordedRequest) -> str:
    return show_content(request.turns[0].turn.response)


def _last_user(messages: Sequence[Message]) -> Message:
    return next((message for message in reversed(messages) if message.get("role") == "user"), {})


def _setting(request: RecordedRequest) -> tuple[list[Message], list[Message]]:
    """The system messages and the tools of a request."""
    return [message for message in request.messages if message.get("role") in SYSTEM_ROLES], list(request.tools)

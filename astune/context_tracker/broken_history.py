"""Find tool calls and results of a history that do not fit. Models are shown it all the same, and learn from it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

UNKNOWN_CALL = "tool result without a call"
UNANSWERED = "tool call without a result"
TWICE = "tool call id used twice"


def broken_history(messages: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    """Yield the kind of each problem, and a clause that says where it is.

    A call is answered by a result after it and before the next answer of the assistant.
    """
    known: dict[Any, int] = {}
    waiting: dict[Any, int] = {}
    for index, message in enumerate(messages):
        if message.get("role") == "assistant":
            yield from _unanswered(waiting)
            waiting = {}
            for call in message.get("tool_calls") or ():
                if call.get("id") in known:
                    yield (
                        TWICE,
                        f"messages[{index}] has a call with the id {call.get('id')!r:.100}, as has "
                        + (f"messages[{known[call.get('id')]}]"),
                    )
                known[call.get("id")] = waiting[call.get("id")] = index
        elif message.get("role") == "tool":
            answered = message.get("tool_call_id")
            if answered is None:
                yield UNKNOWN_CALL, f"messages[{index}] is a tool result without a tool_call_id"
            elif answered not in known:
                yield UNKNOWN_CALL, f"messages[{index}] is the result of a call {answered!r:.100} that nobody made"
            waiting.pop(answered, None)
    yield from _unanswered(waiting)


def _unanswered(waiting: Mapping[Any, int]) -> Iterator[tuple[str, str]]:
    for call_id, index in waiting.items():
        yield UNANSWERED, f"the call {call_id!r:.100} of messages[{index}] has no result"

"""An answer becomes a `Turn`, and what the agent is given of it."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from astune.context_tracker.sources import Answer, Call
from astune.types import Turn


class KnownTurn(NamedTuple):
    """A turn, and what a tracker needs besides to go on from it as the one that recorded it (`take_back`)."""

    turn: Turn
    seen: int
    """Turns that were recorded when its prompt was made."""
    forced: int
    """The last so many ids of the prompt are what the answer had to begin with."""
    shown: int | None
    """`Answer.shown`."""


@dataclass(frozen=True)
class ChatAnswer:
    """The answer that the agent gets, and the turn behind it. `message` is an OpenAI assistant message: `content`, and
    where there are any `reasoning_content` and `tool_calls` with ids."""

    answer_id: str
    message: dict[str, Any]
    finish_reason: Literal["stop", "length", "tool_calls"]
    prompt_tokens: int
    completion_tokens: int
    turn: Turn


def turn_of(call: Call, answer: Answer, temperature: float, *, fork: str | None, follows: int | None) -> Turn:
    """The turn that `answer` to `call` is, drawn at `temperature`. See `Turn` for the other two."""
    return Turn(
        agent=call.agent,
        prompt_ids=answer.prompt_ids,
        output_ids=answer.output_ids,
        logprobs=answer.logprobs,
        policy_version=answer.policy_version,
        finish_reason=answer.finish_reason,
        temperature=temperature,
        excluded=call.why_not_trained(answer),
        exact=answer.exact,
        fork=fork,
        follows=follows,
        call=call.number,
        messages=tuple(call.request.messages),
        tools=tuple(call.request.tools),
        response=_with_call_ids(answer.message, call.number),
    )


def chat_answer(turn: Turn) -> ChatAnswer:
    """The answer that the agent gets for `turn`, with a message of its own, which it may change."""
    message = copy.deepcopy(dict(turn.response))
    calls_tools = bool(message.get("tool_calls")) and turn.finish_reason == "stop"
    return ChatAnswer(
        answer_id=f"answer_{turn.call}",
        message=message,
        finish_reason="tool_calls" if calls_tools else turn.finish_reason,
        prompt_tokens=len(turn.prompt_ids),
        completion_tokens=len(turn.output_ids),
        turn=turn,
    )


def _with_call_ids(message: Mapping[str, Any], number: int) -> dict[str, Any]:
    """The message with an id for every tool call that has none, of nine characters as Mistral's templates want."""
    calls = message.get("tool_calls") or ()
    if not calls:
        return dict(message)
    return {**message, "tool_calls": [{"id": f"c{number:05d}{at:03d}", **call} for at, call in enumerate(calls)]}

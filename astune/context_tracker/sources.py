"""A source answers calls: the policy, whose tokens are known, or an auxiliary model (`chat_source`), whose may not be.

Agents name a source by `source=`: one of `astune.rollout.auxiliary_models`, or None, which is the policy.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from astune.context_tracker.prompt.builder import Prompt
from astune.context_tracker.prompt.chat_format import ChatFormat, ParsedMessage
from astune.context_tracker.request import ChatRequest
from astune.token_ids import TokenIds
from astune.types import FinishReason, Generation, Policy, Sampling


@dataclass(frozen=True)
class Answer:
    """A source's answer and its tokens. The fields mean what they mean in `Turn`."""

    message: dict[str, Any]
    """OpenAI's assistant message; tool calls may lack their ids."""
    prompt_ids: TokenIds
    output_ids: Sequence[int]
    logprobs: Sequence[float]
    policy_version: int
    finish_reason: FinishReason
    exact: bool = True
    excluded: str | None = None
    shown: int | None = None
    """How many of the output ids the message shows; None for all. Those of a stop text are sampled and not shown."""


@dataclass(frozen=True)
class Call:
    """A model call on its way to a source: who asks for what, the prompt, and its number in the order of begin."""

    agent: str
    request: ChatRequest
    prompt: Prompt
    number: int
    trainable: bool
    """Whether the agent is trained: it is not frozen by `trainable=False`, nor on a model that is never trained."""
    source: str | None
    """The auxiliary model that is asked; None is the policy."""

    def why_not_trained(self, answer: Answer) -> str | None:
        """`Turn.excluded` of the answer as far as call and source tell. A frozen agent is that before anything else."""
        return answer.excluded if self.trainable else "frozen"


class Source(Protocol):
    """A model, as the tracker knows it."""

    @property
    def is_policy(self) -> bool:
        """Whether the model is the one that is trained: the run's sampling and its context length hold."""

    async def answer(self, call: Call, sampling: Sampling) -> Answer: ...


WrapSource = Callable[[str | None, Source], Source]
"""Gives the source to use in place of one, from its name (None: the policy) and itself."""


class PolicySource:
    """The policy: it is sent token ids and gives token ids."""

    is_policy = True

    def __init__(self, policy: Policy, chat_format: ChatFormat) -> None:
        self._policy = policy
        self._format = chat_format

    async def answer(self, call: Call, sampling: Sampling) -> Answer:
        return read_answer(self._format, call, await self._policy.generate(call.prompt.ids, sampling))


def read_answer(chat_format: ChatFormat, call: Call, generation: Generation) -> Answer:
    """Read sampled tokens as the answer that the agent gets: its text up to the first stop text, its tool calls."""
    text, shown = _shown(chat_format, call.request, generation.output_ids)
    return Answer(
        message=_assistant_message(_parsed(chat_format, call, call.prompt.answer_start + text)),
        prompt_ids=call.prompt.ids,
        output_ids=generation.output_ids,
        logprobs=generation.logprobs,
        policy_version=generation.policy_version,
        finish_reason=generation.finish_reason,
        shown=shown,
    )


def _shown(chat_format: ChatFormat, request: ChatRequest, ids: Sequence[int]) -> tuple[str, int | None]:
    """The text of the ids up to the first stop text, and the number of ids that spell it: None if there is no such
    text, or if it begins within a token."""
    ended = bool(ids) and ids[-1] in chat_format.stop_token_ids
    sampled = chat_format.decode(ids[:-1] if ended else ids)
    found = [place for place in map(sampled.find, request.stop) if place >= 0]
    if not found:
        return sampled, None
    text = sampled[: min(found)]
    count = bisect_left(range(len(ids)), len(text), key=lambda count: len(chat_format.decode(ids[:count])))
    return text, count if chat_format.decode(ids[:count]) == text else None


def _parsed(chat_format: ChatFormat, call: Call, text: str) -> ParsedMessage:
    request = call.request
    if request.prompt is not None:
        return ParsedMessage(text, None, ())
    tools = request.tools if request.may_call else ()
    return chat_format.parse_text(text, tools, prompt=call.prompt.ending)


def _assistant_message(parsed: ParsedMessage) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": parsed.content}
    if parsed.reasoning:
        message["reasoning_content"] = parsed.reasoning
    if parsed.tool_calls:
        message["tool_calls"] = [
            {"type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            | ({} if call.call_id is None else {"id": call.call_id})
            for call in parsed.tool_calls
        ]
    return message

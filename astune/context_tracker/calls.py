"""One model call on its way: the request of an agent, the answer of a source, the turn that the answer becomes.

A source answers calls: the policy, whose tokens are known, or an auxiliary model (`chat_source`), whose may not be.
Agents name a source by `source=`: one of `astune.rollout.auxiliary_models`, or None, which is the policy. Where that
has several models (`astune.models`), each is a source by its name.
"""

from __future__ import annotations

import copy
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

from astune.context_tracker.prompt.answer_formats import FORMATS
from astune.context_tracker.prompt.builder import Prompt
from astune.context_tracker.prompt.chat_format import ChatFormat, ParsedMessage
from astune.context_tracker.prompt.messages import Message, reasoning_of
from astune.sampling import ContextCut
from astune.token_ids import TokenIds
from astune.types import FinishReason, Generation, Policy, Sampling, Turn

if TYPE_CHECKING:
    from astune.clients.chat import TokenUsage


@dataclass(frozen=True)
class ChatRequest:
    """A chat completion as the agent asks for it, in OpenAI's shape. None takes the run's default."""

    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]] = ()
    may_call: bool = True
    """If False, calls in the answer are not read and stay text. The prompt shows the tools all the same, as it did
    before and will again."""
    max_tokens: int | None = None
    """Lowers the run's limit, never raises it."""
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    """Calls of one episode with equal seed and prompt get equal answers; other attempts at the task get others,
    as training needs."""
    stop: tuple[str, ...] = ()
    """Texts that end the answer. They are sampled, and trained, but not part of the message."""
    force: Literal["tool_call", "json_object"] | None = None
    """The shape that the answer must have. Its start is then put into the prompt: context, not sampled, not trained."""
    force_tool: str | None = None
    """With `force="tool_call"`: the one tool to call; None leaves the choice."""
    retry: bool = False
    """The client repeats a request whose answer it did not get: the answer that was lost is not trained."""
    prompt: str | tuple[int, ...] | None = None
    """A raw text or token ids to continue, instead of `messages`."""
    cut: ContextCut | None = None
    """What the run has just taken out of `messages`."""


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
    """The number of output ids that the message shows; None for all. The ids of a stop text are sampled and not
    shown."""
    unread: bool = False
    usage: TokenUsage | None = None
    """The tokens as the API that answered counts them; None where none did, or it did not say."""


@dataclass(frozen=True)
class Call:
    """A model call on its way to a source: its agent, its request, its prompt, and its number in the order in which
    calls began."""

    agent: str
    request: ChatRequest
    prompt: Prompt
    number: int
    trainable: bool
    """True if the agent is trained: it is not frozen by `trainable=False`, nor on a model that is never trained."""
    source: str | None
    """The auxiliary model, or the one of several that the policy has; None is the policy's only one."""
    chat_format: ChatFormat
    """That of the model, of an auxiliary one the policy's."""
    model: str = ""
    """The one of several models that the policy is asked for (`Turn.model`)."""

    def why_not_trained(self, answer: Answer) -> str | None:
        """The value of `Turn.excluded`, as far as call and source tell it. A frozen agent comes before all other
        reasons."""
        return answer.excluded if self.trainable else "frozen"


class Source(Protocol):
    """A model, as the tracker knows it."""

    @property
    def is_policy(self) -> bool:
        """True if the model is the one that is trained: the run's sampling and its context length hold."""

    async def answer(self, call: Call, sampling: Sampling) -> Answer: ...


WrapSource = Callable[[str | None, Source], Source]
"""Gives the source to use in place of one, from its name (None: the policy, any model of it) and itself."""


class PolicySource:
    """The policy: it is sent token ids and gives token ids."""

    is_policy = True

    def __init__(self, policy: Policy) -> None:
        self._policy = policy

    async def answer(self, call: Call, sampling: Sampling) -> Answer:
        return read_answer(call, await self._policy.generate(call.prompt.ids, sampling))


def read_answer(call: Call, generation: Generation) -> Answer:
    """Read sampled tokens as the answer that the agent gets: its text up to the first stop text, its tool calls."""
    chat_format = call.chat_format
    text, shown = _cut_at_stop(chat_format, call.request, generation.output_ids)
    message = _assistant_message(_parse(chat_format, call, call.prompt.answer_start + text))
    return Answer(
        message=message,
        prompt_ids=call.prompt.ids,
        output_ids=generation.output_ids,
        logprobs=generation.logprobs,
        policy_version=generation.policy_version,
        finish_reason=generation.finish_reason,
        shown=shown,
        unread=is_unread(chat_format, call.request, message),
    )


def is_unread(chat_format: ChatFormat, request: ChatRequest, message: Message) -> bool:
    """True if tools were offered and the answer has marks of a call, but no call was read. In an answer that ends
    within its reasoning, the reasoning counts."""
    if not request.tools or not request.may_call or message.get("tool_calls"):
        return False
    text = message.get("content") or reasoning_of(message) or ""
    return any(mark in text for mark in FORMATS[chat_format.tool_call_format].call_marks)


def find_stop(chat_format: ChatFormat, stops: Sequence[str], ids: Sequence[int]) -> tuple[str, str | None]:
    """The text of the ids up to the first of the stop texts, and that one; all of it and None if there is none."""
    ended = bool(ids) and ids[-1] in chat_format.stop_token_ids
    sampled = chat_format.decode(ids[:-1] if ended else ids)
    found = [(place, stop) for stop in stops if (place := sampled.find(stop)) >= 0]
    if not found:
        return sampled, None
    place, stop = min(found)
    return sampled[:place], stop


def _cut_at_stop(chat_format: ChatFormat, request: ChatRequest, ids: Sequence[int]) -> tuple[str, int | None]:
    """The text of the ids up to the first stop text, and the number of ids that spell it: None if there is no such
    text, or if it begins within a token."""
    text, stop = find_stop(chat_format, request.stop, ids)
    if stop is None:
        return text, None
    count = bisect_left(range(len(ids)), len(text), key=lambda count: len(chat_format.decode(ids[:count])))
    return text, count if chat_format.decode(ids[:count]) == text else None


def _parse(chat_format: ChatFormat, call: Call, text: str) -> ParsedMessage:
    """Parse the answer. Calls that the template would refuse in the history of the next prompt stay text."""
    request = call.request
    if request.prompt is not None:
        return ParsedMessage(text, None, ())
    tools = request.tools if request.may_call else ()
    parsed = chat_format.parse_text(text, tools, prompt=call.prompt.ending)
    if chat_format.takes_back(parsed):
        return parsed
    return chat_format.parse_text(text, (), prompt=call.prompt.ending)


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


class KnownTurn(NamedTuple):
    """A turn, and the figures that another tracker needs to go on from it (`take_back`)."""

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


def turn_of(
    call: Call,
    answer: Answer,
    temperature: float,
    *,
    fork: str | None,
    follows: int | None,
    cut: ContextCut | None = None,
) -> Turn:
    """Make the turn of `answer` to `call`, drawn at `temperature`. `Turn` explains the others."""
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
        unread=answer.unread,
        fork=fork,
        follows=follows,
        call=call.number,
        model=call.model,
        messages=call.request.messages,
        tools=tuple(call.request.tools),
        response=with_call_ids(answer.message, call.number),
        cut=cut,
    )


def chat_answer(turn: Turn) -> ChatAnswer:
    """Make the answer that the agent gets for `turn`. Its message is a copy, which the agent may change."""
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


def with_call_ids(message: Mapping[str, Any], number: int) -> dict[str, Any]:
    """Copy the message and give an id to every tool call that has none. Mistral's templates want nine characters."""
    calls = message.get("tool_calls") or ()
    if not calls:
        return dict(message)
    return {**message, "tool_calls": [{"id": f"c{number:05d}{at:03d}", **call} for at, call in enumerate(calls)]}

"""One episode's model: chat requests in, exact turns recorded, timelines out."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from astune.context_tracker.chat_format import ChatFormat, ParsedMessage
from astune.context_tracker.render import PromptBuilder
from astune.context_tracker.timeline import merge_turns
from astune.errors import ContextOverflow, TooManyTurns, WorkflowError
from astune.types import Policy, Sampling, Timeline, Turn


@dataclass(frozen=True)
class ChatRequest:
    """A chat completion as the agent asks for it, in OpenAI's shape. None takes the run's default."""

    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]] = ()
    max_tokens: int | None = None
    """Lowers the run's limit, never raises it."""
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    """Calls of one episode with equal seed and prompt get equal answers; other attempts at the task get others,
    as training needs."""


@dataclass(frozen=True)
class ChatAnswer:
    """What the agent gets, and the turn behind it. `message` is an OpenAI assistant message: `content`, and where
    there are any `reasoning_content` and `tool_calls` with ids."""

    answer_id: str
    message: dict[str, Any]
    finish_reason: Literal["stop", "length", "tool_calls"]
    prompt_tokens: int
    completion_tokens: int
    turn: Turn


class ContextTracker:
    """All model calls of one episode, by all its agents. Calls may run side by side on one event loop.

        tracker = ContextTracker(policy, chat_format, Sampling(max_tokens=512), max_turns=20, seed=1)
        answer = await tracker.chat("solver", ChatRequest([{"role": "user", "content": "2 + 2?"}]))
        tracker.timelines()

    Invariant: `Turn.prompt_ids` is what the engine was sent and `Turn.output_ids` what it sampled.
    """

    def __init__(
        self, policy: Policy, chat_format: ChatFormat, sampling: Sampling, *, max_turns: int, seed: int
    ) -> None:
        self._policy = policy
        self._format = chat_format
        self._sampling = replace(sampling, stop_token_ids=chat_format.stop_token_ids)
        self._max_turns = max_turns
        self._seed = seed
        self._prompts = PromptBuilder(chat_format)
        self._calls = 0
        self._recorded: dict[int, tuple[Turn, str | None]] = {}

    @property
    def turns(self) -> tuple[Turn, ...]:
        """The finished calls, in the order in which they were begun."""
        return tuple(turn for _, (turn, _) in sorted(self._recorded.items()))

    def timelines(self) -> tuple[Timeline, ...]:
        """The turns merged into training rows; `Span.turn` counts in `turns`."""
        return merge_turns(self.turns, [fork for _, (_, fork) in sorted(self._recorded.items())])

    async def chat(self, agent: str, request: ChatRequest, *, trainable: bool = True) -> ChatAnswer:
        """Answer `request` and record the turn; a call that fails or is cancelled records none.

        A greedy turn (temperature 0) is recorded as not trainable. Raises TooManyTurns, ContextOverflow,
        WorkflowError for a request that cannot be rendered, and whatever the policy raises.
        """
        self._check(request)
        messages = tuple(copy.deepcopy(list(request.messages)))  # agents go on to change their own lists
        tools = tuple(copy.deepcopy(list(request.tools)))
        prompt = self._prompts.build(agent, messages, tools)
        number = self._calls
        sampling = self._sampling_for(request, number, len(prompt.ids))
        self._calls += 1
        generation = await self._policy.generate(prompt.ids, sampling)
        parsed = self._format.parse(generation.output_ids, tools)
        message = _assistant_message(parsed, number)
        turn = Turn(
            agent=agent,
            prompt_ids=prompt.ids,
            output_ids=generation.output_ids,
            logprobs=generation.logprobs,
            policy_version=generation.policy_version,
            finish_reason=generation.finish_reason,
            temperature=sampling.temperature,
            trainable=trainable and sampling.temperature > 0,
            messages=messages,
            tools=tools,
            response=message,
        )
        self._prompts.record(agent, prompt, turn.output_ids, message)
        self._recorded[number] = (turn, prompt.fork)
        return ChatAnswer(
            answer_id=f"answer_{number}",
            message=copy.deepcopy(message),
            finish_reason="tool_calls" if parsed.tool_calls and turn.finish_reason == "stop" else turn.finish_reason,
            prompt_tokens=len(turn.prompt_ids),
            completion_tokens=len(turn.output_ids),
            turn=turn,
        )

    def _check(self, request: ChatRequest) -> None:
        if self._calls >= self._max_turns:
            raise TooManyTurns(
                f"the workflow asked for model call {self._calls + 1}; astune.rollout.max_turns is {self._max_turns}"
            )
        if request.tools and self._format.tool_call_format == "none":
            raise WorkflowError(
                "the agent offers tools, but how this model writes tool calls could not be read off its chat "
                "template: set astune.model.tool_call_format to hermes or qwen3_coder"
            )

    def _sampling_for(self, request: ChatRequest, number: int, prompt_tokens: int) -> Sampling:
        default = self._sampling
        room = self._policy.context_length - prompt_tokens
        if room <= 0:
            raise ContextOverflow(
                f"the prompt of model call {number + 1} has {prompt_tokens} tokens and the model's context "
                f"{self._policy.context_length}: no room for an answer"
            )
        asked = default.max_tokens if request.max_tokens is None else request.max_tokens
        return replace(
            default,
            max_tokens=min(asked, default.max_tokens, room),
            temperature=default.temperature if request.temperature is None else request.temperature,
            top_p=default.top_p if request.top_p is None else request.top_p,
            seed=_derive(self._seed, f"call {number}" if request.seed is None else f"seed {request.seed}"),
        )


def _derive(seed: int, name: str) -> int:
    """A seed in [0, 2**63), the same on every machine and in every process."""
    digest = hashlib.blake2b(f"{seed}/{name}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def _assistant_message(parsed: ParsedMessage, number: int) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": parsed.content}
    if parsed.reasoning:
        message["reasoning_content"] = parsed.reasoning
    if parsed.tool_calls:
        message["tool_calls"] = [
            {
                "id": f"call_{number}_{index}",
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for index, call in enumerate(parsed.tool_calls)
        ]
    return message

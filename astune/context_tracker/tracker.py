"""One episode's model: chat requests in, exact turns recorded, timelines out."""

from __future__ import annotations

import asyncio
import copy
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from astune.context_tracker.chat_format import ChatFormat, ParsedMessage
from astune.context_tracker.forks import BEST_OF_N, RETRY
from astune.context_tracker.render import Prompt, PromptBuilder
from astune.context_tracker.timeline import TurnForest
from astune.errors import ContextOverflow, TooManyTokens, TooManyTurns, WorkflowError
from astune.types import Generation, Policy, Sampling, Timeline, Turn


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
    stop: tuple[str, ...] = ()
    """Texts that end the answer. They are sampled, and trained, but not part of the message."""
    force: Literal["tool_call", "json_object"] | None = None
    """What the answer must be. Its start is then written into the prompt: context, not sampled, not trained."""
    force_tool: str | None = None
    """With `force="tool_call"`: the one tool to call; None leaves the choice."""
    retry: bool = False
    """The client repeats a request whose answer it did not get: the answer that was lost is not trained."""
    prompt: str | tuple[int, ...] | None = None
    """A raw text or token ids to continue, instead of `messages`."""


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
        self,
        policy: Policy,
        chat_format: ChatFormat,
        sampling: Sampling,
        *,
        max_turns: int,
        max_tokens: int | None = None,
        seed: int,
    ) -> None:
        """`max_tokens`: most tokens that all calls together may sample; None is no limit. It is looked at when a call
        begins, so calls side by side may pass it together."""
        self._policy = policy
        self._format = chat_format
        self._sampling = replace(sampling, stop_token_ids=chat_format.stop_token_ids)
        self._max_turns = max_turns
        self._max_tokens = max_tokens
        self._seed = seed
        self._prompts = PromptBuilder(chat_format)
        self._forest = TurnForest()
        self._calls = 0
        self._sampled = 0
        self.lost_calls = 0
        """Calls that ended without an answer: cancelled, or failed by the policy. They sampled nothing we know of."""

    @property
    def turns(self) -> tuple[Turn, ...]:
        """The calls that were answered, in the order in which they ended."""
        return tuple(self._forest.turns)

    @property
    def unique_tokens(self) -> int:
        """Distinct (context, token) pairs of all turns."""
        return self._forest.unique_tokens

    def timelines(self) -> tuple[Timeline, ...]:
        """The turns merged into training rows; `Span.turn` counts in `turns`."""
        return self._forest.timelines()

    async def chat(self, agent: str, request: ChatRequest, *, trainable: bool = True) -> ChatAnswer:
        """`choices` with one answer."""
        return (await self.choices(agent, request, trainable=trainable))[0]

    async def choices(
        self, agent: str, request: ChatRequest, n: int = 1, *, trainable: bool = True
    ) -> list[ChatAnswer]:
        """`n` answers to `request`, sampled side by side; each is a turn. If one fails, none is recorded.

        A greedy turn (temperature 0) carries no loss. Raises TooManyTurns, TooManyTokens, ContextOverflow,
        WorkflowError for a request that cannot be rendered, and whatever the policy raises.
        """
        self._check(request, n)
        request = copy.deepcopy(request)  # agents go on to change their own lists
        prompt = self._build(agent, request)
        numbers = range(self._calls, self._calls + n)
        samplings = [self._sampling_for(request, prompt, index) for index in range(n)]
        self._calls += n
        generations = await self._generate(prompt, samplings)
        if request.retry:
            self._forest.exclude_repeated(agent, prompt.ids, "retried")
        sampled = zip(numbers, samplings, generations, strict=True)
        return [self._record(agent, request, prompt, *each, trainable, numbers[0]) for each in sampled]

    def _build(self, agent: str, request: ChatRequest) -> Prompt:
        if request.prompt is not None:
            return self._prompts.build_text(agent, request.prompt)
        start = "" if request.force is None else self._format.forced_start(request.force, request.force_tool)
        return self._prompts.build(agent, tuple(request.messages), tuple(request.tools), answer_start=start)

    async def _generate(self, prompt: Prompt, samplings: Sequence[Sampling]) -> list[Generation]:
        jobs = [asyncio.ensure_future(self._policy.generate(prompt.ids, sampling)) for sampling in samplings]
        try:
            return await asyncio.gather(*jobs)
        except BaseException:
            self.lost_calls += len(jobs)
            for job in jobs:
                job.cancel()
            await asyncio.gather(*jobs, return_exceptions=True)
            raise

    def _record(
        self,
        agent: str,
        request: ChatRequest,
        prompt: Prompt,
        number: int,
        sampling: Sampling,
        generation: Generation,
        trainable: bool,
        first: int,
    ) -> ChatAnswer:
        parsed = self._parsed(request, prompt, generation)
        message = _assistant_message(parsed, number)
        fork = prompt.fork or (RETRY if request.retry else BEST_OF_N if number > first else None)
        turn = Turn(
            agent=agent,
            prompt_ids=prompt.ids,
            output_ids=generation.output_ids,
            logprobs=generation.logprobs,
            policy_version=generation.policy_version,
            finish_reason=generation.finish_reason,
            temperature=sampling.temperature,
            excluded="frozen" if not trainable else "greedy" if sampling.temperature == 0 else None,
            fork=fork,
            messages=tuple(request.messages),
            tools=tuple(request.tools),
            response=message,
        )
        self._prompts.record(agent, prompt, turn.output_ids, None if request.prompt is not None else message)
        self._forest.add(turn)
        self._sampled += len(turn.output_ids)
        return ChatAnswer(
            answer_id=f"answer_{number}",
            message=copy.deepcopy(message),
            finish_reason="tool_calls" if parsed.tool_calls and turn.finish_reason == "stop" else turn.finish_reason,
            prompt_tokens=len(turn.prompt_ids),
            completion_tokens=len(turn.output_ids),
            turn=turn,
        )

    def _parsed(self, request: ChatRequest, prompt: Prompt, generation: Generation) -> ParsedMessage:
        """The answer as the agent gets it: from the forced start up to the first stop text."""
        ids = generation.output_ids
        ended = bool(ids) and ids[-1] in self._format.stop_token_ids
        text = prompt.answer_start + self._format.decode(ids[:-1] if ended else ids)
        found = [place for place in map(text.find, request.stop) if place >= 0]
        text = text[: min(found)] if found else text
        return (
            ParsedMessage(text, None, ())
            if request.prompt is not None
            else self._format.parse_text(text, request.tools)
        )

    def _check(self, request: ChatRequest, n: int) -> None:
        if self._calls + n > self._max_turns:
            raise TooManyTurns(
                f"the workflow asked for model call {self._calls + n}; astune.rollout.max_turns is {self._max_turns}"
            )
        if self._max_tokens is not None and self._sampled >= self._max_tokens:
            raise TooManyTokens(
                f"the episode has sampled {self._sampled} tokens and asked for more; "
                f"astune.rollout.max_episode_tokens is {self._max_tokens}"
            )
        if request.tools and self._format.tool_call_format == "none":
            raise WorkflowError(
                "the agent offers tools, but how this model writes tool calls could not be read off its chat "
                "template: set astune.model.tool_call_format (docs/configuration.md lists the formats)"
            )

    def _sampling_for(self, request: ChatRequest, prompt: Prompt, index: int) -> Sampling:
        default = self._sampling
        number = self._calls + index
        room = self._policy.context_length - len(prompt.ids)
        if room <= 0:
            raise ContextOverflow(
                f"the prompt of model call {number + 1} has {len(prompt.ids)} tokens and the model's context "
                f"{self._policy.context_length}: no room for an answer"
            )
        if self._max_tokens is not None:
            room = min(room, self._max_tokens - self._sampled)
        asked = default.max_tokens if request.max_tokens is None else request.max_tokens
        seed_name = f"call {number}" if request.seed is None else f"seed {request.seed}" + f"/{index}" * bool(index)
        return replace(
            default,
            max_tokens=min(asked, default.max_tokens, room),
            temperature=default.temperature if request.temperature is None else request.temperature,
            top_p=default.top_p if request.top_p is None else request.top_p,
            stop=request.stop,
            seed=_derive(self._seed, seed_name),
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

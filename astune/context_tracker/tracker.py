"""The model calls of one episode: chat requests in, exact turns recorded, timelines out."""

from __future__ import annotations

import asyncio
import copy
import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from astune.context_tracker import forks
from astune.context_tracker.agent_models import AgentModels
from astune.context_tracker.calls import (
    Answer,
    Call,
    ChatAnswer,
    ChatRequest,
    KnownTurn,
    PolicySource,
    Source,
    WrapSource,
    chat_answer,
    turn_of,
)
from astune.context_tracker.chat_source import ChatSource, write_for_people
from astune.context_tracker.merge import TurnForest
from astune.context_tracker.prompt.builder import Draft, Prompt, PromptBuilder
from astune.context_tracker.prompt.chat_format import ChatFormat
from astune.context_tracker.prompt.sampled_answer import SampledAnswer
from astune.errors import ContextOverflow, TooManyTokens, TooManyTurns, WorkflowError, nearest
from astune.ropes import Messages, common_start
from astune.support.concurrency import all_or_none
from astune.token_ids import TokenIds
from astune.types import Policy, Sampling, Timeline, Turn

if TYPE_CHECKING:
    from astune.clients.chat import ChatClient

__all__ = ["ChatAnswer", "ChatRequest", "ContextTracker"]

MANY_PIECES = 2000
"""Messages, tool calls and tools, which a template goes through one by one, that take long: tens of milliseconds."""


class PreparedCall(NamedTuple):
    """A request as it is sent, the number of turns that were recorded when its prompt was made, and the prompt."""

    request: ChatRequest
    seen: int
    prompt: Prompt


class ContextTracker:
    """All model calls of one episode, by all its agents. Calls may run side by side on one event loop.

        tracker = ContextTracker(policy, chat_format, Sampling(max_tokens=512), max_turns=20, seed=1)
        answer = await tracker.chat("solver", ChatRequest([{"role": "user", "content": "2 + 2?"}]))
        tracker.timelines()

    Invariant: of an exact turn, `prompt_ids` is what the engine was sent and `output_ids` what it sampled.
    """

    cuts_context = False
    """True if conversations that grow too long are cut here (`astune.rollout.context`)."""

    def __init__(
        self,
        policy: Policy,
        chat_format: ChatFormat,
        sampling: Sampling,
        *,
        max_turns: int,
        max_tokens: int | None = None,
        seed: int,
        auxiliary_models: Mapping[str, ChatClient] | None = None,
        allow_inexact: bool = False,
        wrap: WrapSource | None = None,
        models: AgentModels | None = None,
    ) -> None:
        """`max_tokens`: most tokens that all calls together may sample; None is no limit. It is looked at when a call
        begins, so calls side by side may pass it together. `auxiliary_models` are the others that agents may run on.
        `wrap` may put something else in the place of any model. `models` are those of `policy`, if it has
        several."""
        self._policy = policy
        self._format = chat_format
        self._sampling = sampling
        self._max_turns = max_turns
        self._max_tokens = max_tokens
        self._seed = seed
        self._models = models or AgentModels()
        self._sources: dict[str | None, Source] = dict.fromkeys(self._models.names, PolicySource(policy))
        for name, client in (auxiliary_models or {}).items():
            self._sources[name] = ChatSource(client, allow_inexact=allow_inexact)
        if wrap is not None:
            of_policy = self._models.names  # to those who look on, all its models are the policy
            for key, source in self._sources.items():
                self._sources[key] = wrap(None if key in of_policy else key, source)
        self._prompts = {name: PromptBuilder(self.format_of(name)) for name in self._sources}
        self._forest = TurnForest()
        self._numbers: dict[SampledAnswer, int] = {}
        self._made: list[tuple[int, int, int | None]] = []  # `seen`, `forced` and `shown` of each turn
        self._cut: set[int] = set()  # turns whose message ends before a stop text that was sampled
        self._calls = self._sampled = 0
        self.lost_calls = 0
        """Calls that ended without an answer: cancelled, or failed by the policy. They sampled nothing we know of."""
        self.inexact_turns: Counter[str] = Counter()
        """Turns without exact ids, by the source, of sources that are to be trained."""

    @property
    def turns(self) -> tuple[Turn, ...]:
        """The calls that were answered, in the order in which they ended."""
        return tuple(self._forest.turns)

    @property
    def unique_tokens(self) -> int:
        """Distinct (context, token) pairs of all turns."""
        return self._forest.unique_tokens

    @property
    def policy_source(self) -> Source:
        """The policy, or what stands in its place."""
        return self._sources[self._models.names[0]]

    @property
    def auxiliary_models(self) -> tuple[str, ...]:
        """The names of the models that agents may run on beside the policy."""
        return tuple(name for name in self._sources if name is not None and name not in self._models.names)

    def source_of(self, agent: str, source: str | None, policy: str | None) -> str | None:
        """The source that an agent asks who names an auxiliary model or a model of the run, or neither. Raises
        ConfigError for a model of the run that there is not, WorkflowError for an auxiliary one."""
        if source is None:
            return self._models.choose(agent, policy)
        if policy is not None:
            raise WorkflowError(
                f"source={source!r}, policy={policy!r}: an agent runs on one model; take one of them out"
            )
        self.check_source(source)
        return source

    def check_source(self, source: str | None) -> None:
        """Raises WorkflowError if there is no such source; None is the only model of the policy."""
        if source not in self._sources:
            raise WorkflowError(
                f"source={source!r}: there is no such auxiliary model.{nearest(str(source), self.auxiliary_models)} "
                f"astune.rollout.auxiliary_models has: {', '.join(self.auxiliary_models) or 'none'}"
            )

    def format_of(self, source: str | None) -> ChatFormat:
        """The chat format of a source: that of the run, unless it is one of several models with its own."""
        return self._models.formats.get(source or "", self._format)

    def length_of(self, source: str | None) -> int:
        """The context length of a source that is the policy, or one of its models."""
        return self._models.find_length(source, self._policy.context_length)

    def get_known_turn(self, number: int) -> KnownTurn:
        """Turn `number` with what `take_back` needs; a negative one counts from the end."""
        return KnownTurn(self._forest.turns[number], *self._made[number])

    def take_back(self, turns: Sequence[KnownTurn]) -> None:
        """Go on from the policy's turns of another tracker, all in their order, as that one would: later prompts have
        the same ids, turns the same causes of forks, calls the same seeds. To be called before any call."""
        begun: dict[int, list[int]] = {}
        for number, each in enumerate(turns):
            begun.setdefault(each.seen, []).append(number)
        drafts: dict[int, Prompt] = {}
        for number, (turn, seen, forced, shown) in enumerate(turns):
            for later in begun.pop(number, ()):
                drafts[later] = self._draft_again(turns[later].turn)
            prompt = drafts.pop(number, None) or self._draft_again(turn)
            ids = TokenIds.of(turn.prompt_ids)
            if prompt.match is not None:
                turn = replace(turn, messages=prompt.match.sent, tools=prompt.match.tools)
            start_ids = ids[len(ids) - forced :]
            self._keep(self._models.names[0], turn, replace(prompt, ids=ids, start_ids=start_ids), seen, shown)
            self._calls = max(self._calls, turn.call + 1)

    def _draft_again(self, turn: Turn) -> Prompt:
        """The prompt of a recorded turn as far as it is known now."""
        prompts = self._prompts[self._models.names[0]]
        if turn.messages:
            return prompts.draft(turn.agent, turn.messages, turn.tools).prompt
        return prompts.draft_text(turn.agent, tuple(turn.prompt_ids)).prompt

    def timelines(self) -> tuple[Timeline, ...]:
        """The turns merged into timelines; `Span.turn` counts in `turns`."""
        return self._forest.timelines()

    async def chat(
        self, agent: str, request: ChatRequest, *, trainable: bool = True, source: str | None = None
    ) -> ChatAnswer:
        """`choices` with one answer."""
        return (await self.choices(agent, request, trainable=trainable, source=source))[0]

    async def choices(
        self, agent: str, request: ChatRequest, n: int = 1, *, trainable: bool = True, source: str | None = None
    ) -> list[ChatAnswer]:
        """`n` answers to `request`, sampled side by side; each is a turn. If one fails, none is recorded.

        They are the policy's, or those of the auxiliary model `source`. A greedy turn carries no loss.
        Raises TooManyTurns, TooManyTokens, ContextOverflow, WorkflowError for a request that cannot be rendered, and
        whatever the model raises.
        """
        self._check(request, n, source)
        ready = await self._prepare(agent, request, source, trainable)
        return await self._answer(agent, ready, n, trainable, source)

    async def _prepare(self, agent: str, request: ChatRequest, source: str | None, trainable: bool) -> PreparedCall:
        """The request as it is sent, with its prompt."""
        return PreparedCall(request, len(self._forest.turns), await self._build(agent, request, source))

    async def _answer(
        self, agent: str, ready: PreparedCall, n: int, trainable: bool, source: str | None
    ) -> list[ChatAnswer]:
        """`choices` for a prompt that is made."""
        request, seen, prompt = ready
        self._check(request, n, source)  # again, as other calls may have begun meanwhile
        trained = trainable and self._sources[source].is_policy and self._models.is_trained(agent, source)
        kept = self._copy_request(agent, request, prompt)
        last = trained, source, self.format_of(source), self._models.name(source)
        calls = [Call(agent, kept, prompt, self._calls + choice, *last) for choice in range(n)]
        samplings = [self._sampling_for(call, choice) for choice, call in enumerate(calls)]
        self._calls += n
        work = [self._sources[source].answer(call, drawn) for call, drawn in zip(calls, samplings, strict=True)]
        try:
            answers = [await work[0]] if n == 1 else await all_or_none(work)
        except BaseException:
            self.lost_calls += n
            raise
        if request.retry:
            self._forest.exclude_repeated(agent, answers[0].prompt_ids, n, "retried")
        return [
            self._record(call, choice, sampling.temperature, answer, seen)
            for choice, (call, sampling, answer) in enumerate(zip(calls, samplings, answers, strict=True))
        ]

    async def count_tokens(self, agent: str, request: ChatRequest, *, source: str | None = None) -> int:
        """Count the tokens of the prompt that `choices` would send now, whether or not they fit. Nothing is recorded.

        Raises WorkflowError for a request that cannot be rendered.
        """
        self.check_source(source)
        return len((await self._build(agent, request, source, must_fit=False)).ids)

    async def _build(self, agent: str, request: ChatRequest, source: str | None, *, must_fit: bool = True) -> Prompt:
        """The prompt. A conversation of very many messages is rendered in a thread, so that other agents go on. A text
        that takes long to tokenize is refused first if it cannot fit, and is tokenized in a thread too. All others are
        read here, so that the order of calls does not depend on timing."""
        tool_calls = sum(len(message.get("tool_calls") or ()) for message in request.messages)
        pieces = len(request.messages) + tool_calls + len(request.tools)
        try:
            if pieces > MANY_PIECES:
                draft = await asyncio.to_thread(self._draft, agent, request, source)
            else:
                draft = self._draft(agent, request, source)
            if not draft.is_long:
                prompt = self._prompts[source].finish(draft)
            else:
                if must_fit and self._sources[source].is_policy:
                    self._check_room(draft.least_tokens(self.format_of(source)), source, "at least ")
                prompt = await asyncio.to_thread(self._prompts[source].finish, draft)
        except RecursionError:
            raise WorkflowError("the request is nested too deeply: lists and objects within each other") from None
        if not prompt.ids:
            raise WorkflowError(f"the prompt of model call {self._calls + 1} is empty: there is nothing to continue")
        return prompt

    def _draft(self, agent: str, request: ChatRequest, source: str | None) -> Draft:
        prompts, chat_format = self._prompts[source], self.format_of(source)
        if request.prompt is not None:
            if not isinstance(request.prompt, str):
                self._check_room(len(request.prompt), source)
                if (foreign := chat_format.foreign_id(request.prompt)) is not None:
                    raise WorkflowError(f"the prompt has token id {foreign}, which is not in the model's vocabulary")
            return prompts.draft_text(agent, request.prompt)
        if self._is_sent_ids(source):
            start = None
            if request.force is not None:
                start = partial(chat_format.write_forced_start, request.force, request.force_tool)
            return prompts.draft(agent, request.messages, request.tools, answer_start=start)
        try:
            return prompts.draft(agent, request.messages, request.tools)
        except WorkflowError:  # another model may take a conversation that our template refuses
            return prompts.draft_text(agent, write_for_people(request.messages))

    def _is_sent_ids(self, source: str | None) -> bool:
        """True of the policy: what our template cannot write, it cannot be asked. A model of another kind may stand in
        its place, which takes messages."""
        return source in self._models.names and self._sources[source].is_policy

    def _copy_request(self, agent: str, request: ChatRequest, prompt: Prompt) -> ChatRequest:
        """The request in messages that are ours: agents go on to change their own lists."""
        if prompt.match is not None:
            return replace(request, messages=prompt.match.sent, tools=prompt.match.tools)
        before = next((turn.messages for turn in reversed(self._forest.turns) if turn.agent == agent), ())
        known = common_start(before, request.messages)
        new = copy.deepcopy(list(request.messages[known:]))
        messages = Messages.of(before).start(known).and_then(*new)
        return replace(request, messages=messages, tools=copy.deepcopy(tuple(request.tools)))

    def _record(self, call: Call, choice: int, temperature: float, answer: Answer, seen: int) -> ChatAnswer:
        """Make the answer a turn."""
        cut = None if choice else call.request.cut
        if cut is not None and cut.summary is not None:
            follows: int | None = cut.summary
        else:
            follows = None if call.prompt.follows is None else self._numbers[call.prompt.follows]
        # A source that gave other ids than it was sent made them anew (`ChatSource`); equal ones are the same object.
        retokenized = answer.prompt_ids is not call.prompt.ids
        fork = forks.of_turn(
            call.prompt.fork,
            choice=choice,
            retry=call.request.retry,
            cut=cut is not None,
            sent_before=call.prompt.sent_before,
            stop_text_removed=follows in self._cut,
            retokenized=retokenized and any(turn.agent == call.agent for turn in self._forest.turns),
        )
        turn = turn_of(call, answer, temperature, fork=fork, follows=follows, cut=cut)
        self._keep(call.source, turn, replace(call.prompt, ids=answer.prompt_ids), seen, answer.shown)
        if call.source in self.auxiliary_models and call.trainable and not turn.exact:
            self.inexact_turns[call.source] += 1
        return chat_answer(turn)

    def _keep(self, source: str | None, turn: Turn, prompt: Prompt, seen: int, shown: int | None) -> None:
        """Remember a turn, and its tokens for the prompts that go on from it."""
        number = len(self._forest.turns)
        self._forest.add(turn)
        message = None if prompt.match is None else turn.response
        sampled = self._prompts[source].record(turn.agent, prompt, turn.output_ids[:shown], message)
        self._numbers[sampled] = number
        self._made.append((seen, len(prompt.start_ids), shown))
        if shown is not None:
            self._cut.add(number)
        self._sampled += len(turn.output_ids)

    def _check(self, request: ChatRequest, n: int, source: str | None) -> None:
        self.check_source(source)
        if self._calls + n > self._max_turns:
            raise TooManyTurns(
                f"the workflow asked for model call {self._calls + n}; astune.rollout.max_turns is {self._max_turns}"
            )
        if self._max_tokens is not None and self._sampled >= self._max_tokens:
            raise TooManyTokens(
                f"the episode has sampled {self._sampled} tokens and asked for more; "
                f"astune.rollout.max_episode_tokens is {self._max_tokens}"
            )
        if self._is_sent_ids(source) and request.tools and (problem := self.format_of(source).call_problem):
            raise WorkflowError(str(problem))

    def _sampling_for(self, call: Call, choice: int) -> Sampling:
        """The sampling of this answer. A model other than the policy has limits and defaults of its own."""
        request = call.request
        default, room = self._sampling, self._sampling.max_tokens
        if self._sources[call.source].is_policy:
            room = self._check_room(len(call.prompt.ids), call.source)
            if self._max_tokens is not None:
                room = min(room, self._max_tokens - self._sampled)
        else:
            default = Sampling(room)
        asked = default.max_tokens if request.max_tokens is None else request.max_tokens
        seed_name = f"call {call.number}" if request.seed is None else f"seed {request.seed}"
        if request.seed is not None and choice:  # or all answers to a request with a seed would be the same
            seed_name += f"/{choice}"
        if call.agent == self._models.redrawn:
            seed_name += "/redrawn"
        digest = hashlib.blake2b(f"{self._seed}/{seed_name}".encode(), digest_size=8).digest()
        try:
            return replace(
                default,
                max_tokens=min(asked, default.max_tokens, room),
                temperature=default.temperature if request.temperature is None else request.temperature,
                top_p=default.top_p if request.top_p is None else request.top_p,
                stop=request.stop,
                stop_token_ids=call.chat_format.stop_token_ids,
                model=self._models.drawn.get(call.model, call.model),
                seed=int.from_bytes(digest, "big") >> 1,  # below 2**63, the same on every machine
            )
        except ValueError as error:
            raise WorkflowError(f"model call {call.number + 1}: {error}") from None

    def _check_room(self, tokens: int, source: str | None, about: str = "") -> int:
        """The tokens that a prompt of so many leaves for the answer in the model's context. The error has OpenAI's
        words, as frameworks look for them.

        Raises:
            ContextOverflow: none.
        """
        length = self.length_of(source)
        if tokens >= length:
            raise ContextOverflow(
                f"the prompt of model call {self._calls + 1} has {about}{tokens} tokens and the model's context "
                f"{length}: no room for an answer. This model's maximum context length is {length} tokens: "
                "the prompt is too long. Please reduce the length of the messages."
            )
        return length - tokens

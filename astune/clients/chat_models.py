"""Several chat APIs that answer as one, in JSON: failover, rate limit, cache and accounting."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from pydantic import BaseModel

from astune.clients.chat import ChatReply
from astune.clients.json_reply import read_reply, repair_request, response_format
from astune.clients.limited_model import ChatCompleter, LimitedModel
from astune.clients.reply_cache import CachedReply, ReplyCache, cache_key
from astune.clients.single_flight import SingleFlight
from astune.clients.usage import Budget, BudgetSpent, Usage
from astune.config.chat_models import AskedModelsConfig, JudgeModelConfig
from astune.errors import ConfigError, JudgeError, PolicyError, WorkflowError

__all__ = ["Budget", "BudgetSpent", "ChatModels", "ParsedReply", "Usage"]

T = TypeVar("T", bound=BaseModel)

EXCERPT = 300


@dataclass(frozen=True)
class ParsedReply(Generic[T]):
    """A reply that was read as an instance of the schema that was asked for."""

    value: T
    model: str
    """The name of the model that gave it, one of `ChatModels.names`."""
    usage: Usage
    """The cost of this answer, with that of a reply that had to be asked for again."""
    paid: Usage
    """The cost of its reply when it was sent, even if that was long ago and it comes from the cache now."""


@dataclass(frozen=True)
class _Question(Generic[T]):
    """One request to one model, and how its reply is read."""

    model: LimitedModel
    body: Mapping[str, Any]
    schema: type[T]
    check: Callable[[T], None] | None
    key: str

    def read(self, content: str) -> T:
        return read_reply(content, self.schema, self.check)


class _LoopState:
    """Locks and requests under way, which are bound to one event loop."""

    def __init__(self, max_concurrent: int, names: Sequence[str]) -> None:
        self.slots = asyncio.Semaphore(max_concurrent)
        self.turns = {name: asyncio.Lock() for name in names}
        self.flights: SingleFlight[tuple[str, Usage]] = SingleFlight()


class ChatModels:
    """The chat APIs of `config.models`, in order of preference. `key` is the key of that section, which errors name.

        models = ChatModels(config.task_judge.llm)
        answer = await models.ask([{"role": "user", "content": "... Reply as {\\"score\\": 0 to 5}."}], Score)
        answer.value.score, answer.model, answer.usage.cost

    May be used on one event loop after another. A model that fails is not asked again until it has rested (see
    rate_limit.CircuitBreaker), unless by name. Replies that were understood are kept in `config.cache`, by all that a
    reply depends on; equal requests under way at the same time are sent once. Raises ConfigError if there is no model.
    """

    def __init__(self, config: AskedModelsConfig, *, key: str = "astune.task_judge.llm") -> None:
        if not config.models:
            raise ConfigError(f"{key}.models is empty, expected at least one {{base_url: ..., model: ...}}")
        self._config = config
        self._key = key
        self._models = {
            name: LimitedModel(name, model, key=f"{key}.models.{at}")
            for at, (name, model) in enumerate(zip(_unique_names(config.models), config.models, strict=True))
        }
        self.names = tuple(self._models)
        self.usage = Usage()
        self._cache = None if config.cache is None else ReplyCache(Path(config.cache), setting=f"{key}.cache")
        self._budget: Budget | None = None
        self._under_way = 0
        self._loops: dict[asyncio.AbstractEventLoop, _LoopState] = {}

    @property
    def budget(self) -> Budget | None:
        """The limit on the cost of all calls of this object. Setting a `max_cost` raises ConfigError where a price is
        missing."""
        return self._budget

    @budget.setter
    def budget(self, budget: Budget | None) -> None:
        if budget is not None and budget.max_cost is not None:
            for at, model in enumerate(self._config.models):
                for price in ("prompt_price", "completion_price"):
                    if getattr(model, price) is None:
                        raise ConfigError(f"{self._key}.models.{at}.{price} is not set: a limit on the cost needs it")
        self._budget = budget

    def put_in(self, name: str, client: ChatCompleter) -> None:
        """Let `client` answer in the place of the API of this name."""
        self._models[name].client = client

    def in_order(self) -> tuple[str, ...]:
        """The `names` in the order in which to ask them: models that rest come last. For code that runs on an event
        loop."""
        return tuple(sorted(self.names, key=lambda name: self._models[name].resting()))

    async def ask(
        self,
        messages: Sequence[Mapping[str, Any]],
        schema: type[T],
        *,
        model: str | None = None,
        vote: int = 0,
        check: Callable[[T], None] | None = None,
        temperature: float | None = None,
    ) -> ParsedReply[T]:
        """The reply's last JSON object, as an instance of `schema`.

        `model=None` asks the models in order until one answers; a name asks that one only. `check` raises ValueError
        for what a schema cannot say. Equal questions with another `vote` are asked anew. `temperature=None` is that of
        the configuration. A reply that does not
        validate is asked for once more, with what was wrong.

        Raises:
            JudgeError: the second reply does not validate either, a reply was cut off, or no model accepts the request.
            PolicyError: no model that was asked answers.
            BudgetSpent: the call was not sent.
        """
        members = [*self._models.values()] if model is None else [self._find_model(model)]
        heat = self._config.temperature if temperature is None else temperature
        questions = [self._question(member, messages, schema, check, vote, heat) for member in members]
        for question in questions:
            if (known := self._look_up(question)) is not None:
                return known
        said = {member.name: f"{member.name} rests after: {member.last_failure}" for member in members}
        refusals = 0
        for question in _awake(questions):
            try:
                return self._look_up(question) or await self._answer(question)  # others may have asked in the meantime
            except (PolicyError, WorkflowError) as error:
                said[question.model.name] = str(error)
                refusals += isinstance(error, WorkflowError)
        told = "; ".join(said.values())
        if refusals == len(members):
            raise JudgeError(f"no model accepts the request: {told}")
        raise PolicyError(f"no model answers: {told}")

    def _find_model(self, name: str) -> LimitedModel:
        if name not in self._models:
            raise ValueError(f"{self._key}.models has no {name!r}, only {', '.join(self.names)}")
        return self._models[name]

    def _question(
        self,
        model: LimitedModel,
        messages: Sequence[Mapping[str, Any]],
        schema: type[T],
        check: Callable[[T], None] | None,
        vote: int,
        temperature: float,
    ) -> _Question[T]:
        body = {
            "messages": json.loads(_sendable(json.dumps(messages, ensure_ascii=False))),
            "temperature": temperature,
            model.config.limit_field: self._config.max_tokens,
            **response_format(model.config.response_format, schema),
        }
        depends_on = [model.config.base_url, model.config.model, body, schema.model_json_schema(), vote]
        return _Question(model, body, schema, check, cache_key(depends_on))

    def _look_up(self, question: _Question[T]) -> ParsedReply[T] | None:
        """Look for the reply in the cache. None also if `check` no longer accepts the one there."""
        reply = self._cache.get(question.key) if self._cache else None
        if reply is None:
            return None
        try:
            value = question.read(reply.content)
        except ValueError:
            return None
        return ParsedReply(value, question.model.name, self._free(), reply.paid)

    async def _answer(self, question: _Question[T]) -> ParsedReply[T]:
        name = question.model.name
        (content, usage), led = await self._state().flights.join(question.key, lambda: self._conversation(question))
        try:
            return ParsedReply(question.read(content), name, usage if led else self._free(), usage)
        except ValueError as error:
            raise _unusable(name, content, error) from error

    def _free(self) -> Usage:
        self.usage += Usage(cached=1)
        return Usage(cached=1)

    async def _conversation(self, question: _Question[T]) -> tuple[str, Usage]:
        """A reply that validates, and what it cost."""
        model, body = question.model, question.body
        reply, usage = await self._call(model, body)
        content = self._whole(model, reply)
        try:
            question.read(content)
        except ValueError as error:
            reply, more = await self._call(model, _ask_again(body, content, error, question.schema))
            content, usage = self._whole(model, reply), usage + more
            try:
                question.read(content)
            except ValueError as still:
                raise _unusable(model.name, content, still) from still
        if self._cache:
            await asyncio.to_thread(self._cache.put, question.key, CachedReply(content, model.name, usage))
        return content, usage

    def _whole(self, model: LimitedModel, reply: ChatReply) -> str:
        if reply.finish_reason == "length":
            raise JudgeError(
                f"{model.name}: the reply was cut off after {self._config.max_tokens} tokens; raise "
                f"{self._key}.max_tokens"
            )
        return _sendable(reply.message["content"] or "")

    async def _call(self, model: LimitedModel, body: Mapping[str, Any]) -> tuple[ChatReply, Usage]:
        async with self._state().slots:
            if self._budget is not None:
                self._budget.check(self.usage, self._under_way)
            self._under_way += 1
            try:
                async with self._state().turns[model.name]:
                    await model.turn()
                reply, usage = await model.complete(body)
                self.usage += usage
            finally:
                self._under_way -= 1
        return reply, usage

    def _state(self) -> _LoopState:
        loop = asyncio.get_running_loop()
        if loop not in self._loops:
            self._loops = {other: state for other, state in self._loops.items() if not other.is_closed()}
            self._loops[loop] = _LoopState(self._config.max_concurrent, self.names)
        return self._loops[loop]


def _awake(questions: Sequence[_Question[T]]) -> Sequence[_Question[T]]:
    """The models that do not rest; if all rest, or there is only one, the first."""
    awake = [question for question in questions if not question.model.resting()]
    return awake or questions[:1]


def _sendable(text: str) -> str:
    """Replace halves of surrogate pairs by ?. Agents write them at times, and neither APIs nor files take them."""
    return text.encode("utf-8", "replace").decode()


def _unique_names(models: Sequence[JudgeModelConfig]) -> list[str]:
    names: list[str] = []
    for model in models:
        candidates = (model.model, *(f"{model.model}#{number}" for number in range(2, len(models) + 2)))
        names.append(next(name for name in candidates if name not in names))
    return names


def _ask_again(body: Mapping[str, Any], content: str, wrong: ValueError, schema: type[BaseModel]) -> dict[str, Any]:
    said = {"role": "assistant", "content": content}
    return {**body, "messages": [*body["messages"], said, {"role": "user", "content": repair_request(wrong, schema)}]}


def _unusable(name: str, content: str, wrong: ValueError) -> JudgeError:
    end = content if len(content) <= EXCERPT else f"...{content[-EXCERPT:]}"
    return JudgeError(f"{name}: the reply cannot be used: {wrong}. It was: {end!r}")

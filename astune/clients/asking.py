"""Ask chat models many questions, stage by stage, in a way that can be cut off and goes on."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from pydantic import BaseModel

from astune.clients.chat_models import BudgetSpent, ChatModels, ParsedReply
from astune.clients.usage import Usage
from astune.config.chat_models import AskedModelsConfig
from astune.errors import AstuneError, JudgeError, PolicyError
from astune.support.concurrency import all_ended

B = TypeVar("B", bound=BaseModel)
R = TypeVar("R")


class Watch(Protocol):
    """Sees how the asking goes on: a bar on a terminal."""

    def stage(self, name: str, total: int) -> None: ...
    def advance(self) -> None: ...
    def report_failure(self, why: str) -> None:
        """Report that a reply could not be used."""


@dataclass
class Inquiry:
    """Asks the models, stage by stage, and adds up what the replies cost when they were paid for.

    All calls of a stage go out together; results stand in the order of the questions, so nothing depends on which
    reply comes first. A question that was asked before, in this run or in one that was cut off, is answered from the
    cache; `paid` counts it once, so it is the same however often a run was cut off.
    """

    models: ChatModels
    llm: AskedModelsConfig
    watch: Watch
    paid: dict[str, Usage] = field(default_factory=dict)
    stopped_by: AstuneError | None = None
    """The error after which nothing more is asked: the models are gone, or the budget."""

    def __post_init__(self) -> None:
        self._slots = asyncio.Semaphore(self.llm.max_concurrent)

    async def ask(
        self,
        messages: Sequence[Mapping[str, Any]],
        schema: type[B],
        check: Callable[[B], None] | None = None,
        vote: int = 0,
    ) -> B | None:
        """None where no reply could be used: `watch` is told, and it is never taken for a score."""
        reply = await self.reply(messages, schema, check, vote)
        return None if reply is None else reply.value

    async def reply(
        self,
        messages: Sequence[Mapping[str, Any]],
        schema: type[B],
        check: Callable[[B], None] | None = None,
        vote: int = 0,
    ) -> ParsedReply[B] | None:
        """The same, with the model that gave it."""
        question = hashlib.sha256(json.dumps([messages, schema.__name__, vote]).encode()).hexdigest()
        async with self._slots:
            if self.stopped_by is not None:
                raise self.stopped_by
            try:
                answer = await self.models.ask(messages, schema, vote=vote, check=check)
            except JudgeError as error:
                self.watch.report_failure(str(error))
                return None
            except (PolicyError, BudgetSpent) as error:
                self.stopped_by = error
                raise
        self.paid[question] = answer.paid
        return answer

    async def stage(self, name: str, questions: Sequence[Awaitable[R]]) -> list[R]:
        """The answers in order. Raises PolicyError and BudgetSpent, once those under way, which are paid, have come."""
        self.watch.stage(name, len(questions))
        return await all_ended([self._watch_progress(question) for question in questions])

    async def _watch_progress(self, question: Awaitable[R]) -> R:
        result = await question
        self.watch.advance()
        return result

    @property
    def total(self) -> Usage:
        """In an order that does not depend on which reply came first, for sums of floats do."""
        return sum((self.paid[question] for question in sorted(self.paid)), Usage())

"""Ask chat models many questions, stage by stage, in a way that can be cut off and goes on."""

from __future__ import annotations

import asyncio
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

    Results stand in the order of the questions, so nothing depends on which reply comes first. A question that was
    asked before, also by a run that was cut off, is answered from the cache; `paid` counts it once."""

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
        temperature: float | None = None,
    ) -> ParsedReply[B] | None:
        """None where no reply could be used: `watch` is told, and it is never taken for a score."""
        question = json.dumps([messages, schema.__name__, vote, temperature])
        async with self._slots:
            if self.stopped_by is not None:
                raise self.stopped_by
            try:
                answer = await self.models.ask(messages, schema, vote=vote, check=check, temperature=temperature)
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

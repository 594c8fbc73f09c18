"""Strategies that select requests of a deployed agent to be played again for training."""

from __future__ import annotations

import random
from contextvars import ContextVar, Token
from dataclasses import dataclass
from typing import Any, Protocol

from astune.errors import OnlineError


@dataclass(frozen=True)
class RequestContext:
    """Labels and task of a request, besides its input and output."""

    labels: tuple[str, ...] = ()
    """The labels that `mark` gave."""
    marked: bool = False
    task_id: str | None = None


class SelectionStrategy(Protocol):
    """Decides whether a request is played again. It is called within the request, so it must be quick; an error in it
    is counted and means no. `agent` is None if there is only a function."""

    def should_select(self, agent: Any, inputs: Any, output: Any, context: RequestContext) -> bool: ...


class SamplingRateStrategy:
    """Each request with probability `rate`. The same `seed` selects the same requests.

    >>> SamplingRateStrategy(1.0).should_select(None, "question", "answer", RequestContext())
    True
    """

    def __init__(self, rate: float, seed: int | None = None) -> None:
        if isinstance(rate, bool) or not isinstance(rate, (int, float)) or not 0 <= rate <= 1:
            raise OnlineError(f"SamplingRateStrategy: rate must be a number from 0 to 1, got {rate!r}")
        self.rate = float(rate)
        self._random = random.Random(seed)

    def should_select(self, agent: Any, inputs: Any, output: Any, context: RequestContext) -> bool:
        return self._random.random() < self.rate


class ExplicitMarkingStrategy:
    """Requests that were marked by `mark`; with `labels`, only those marked with one of them."""

    def __init__(self, *labels: str) -> None:
        self.labels = frozenset(labels)

    def should_select(self, agent: Any, inputs: Any, output: Any, context: RequestContext) -> bool:
        return context.marked and (not self.labels or not self.labels.isdisjoint(context.labels))


class mark:
    """Marks the next request of this task (or thread) for training, or all requests within a `with` block.

        mark("high-quality", "user-feedback")
        await agent(message)                        # this one

        with mark("billing", task_id="ticket-81"):
            await agent(message)

    Requests of other tasks are not marked, nor are those of tasks that were begun before.
    """

    def __init__(self, *labels: str, task_id: str | None = None) -> None:
        self.context = RequestContext(labels, True, task_id)
        self.lasts = False
        self.used = False
        self._token: Token[mark | None] = _MARK.set(self)

    def __enter__(self) -> mark:
        self.lasts = True
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.used = True  # for tasks that were begun within the block and go on
        self.lasts = False
        _MARK.reset(self._token)


_MARK: ContextVar[mark | None] = ContextVar("astune_online_mark", default=None)


def take_mark() -> RequestContext:
    """Take the mark of this task or thread; a mark outside of a `with` block is used up."""
    found = _MARK.get()
    if found is None or (found.used and not found.lasts):
        return RequestContext()
    found.used = True
    return found.context

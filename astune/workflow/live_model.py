"""A chat model object of AgentScope in the policy's place, as a candidate of `astune.tuner.select_model`.

Agents get a copy of the object whose calls are counted. The object itself stays as it is, and is called in the event
loop that it belongs to, so that its connections are of use there afterwards. What it is sent is its own affair, so its
episodes have no turns.
"""

from __future__ import annotations

import asyncio
import copy
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass, field
from threading import Event
from typing import Any, NamedTuple, TypeVar

from astune.context_tracker.calls import Answer, Call
from astune.errors import ConfigError, PolicyError, WorkflowError
from astune.types import Sampling
from astune.workflow.agentscope import is_chat_model

T = TypeVar("T")
ASKING = ("__call__", "generate_structured_output")
"""The methods that ask the model; 1.x has the first."""
_END = object()


class Spent(NamedTuple):
    """The seconds and tokens of a call; tokens are None where the API did not tell, `error` is the kind of one."""

    seconds: float
    input_tokens: int | None = None
    output_tokens: int | None = None
    error: str | None = None


@dataclass(frozen=True)
class LiveModel:
    """A chat model object, and the event loop that it is called in."""

    model: Any
    loop: asyncio.AbstractEventLoop
    stopped: Event = field(default_factory=Event, compare=False)
    """Set once nobody waits any more: then no call is made."""

    @property
    def name(self) -> str:
        """`model_name` in 1.x, `model` in 2.x. Raises ConfigError for what is no chat model."""
        if not is_chat_model(self.model):
            raise ConfigError(f"got {self.model!r:.80}; expected a chat model object of AgentScope")
        return str(getattr(self.model, "model_name", None) or self.model.model)

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Await `work` in the object's own loop. Raises WorkflowError once it is stopped."""
        if self.stopped.is_set():
            work.close()
            raise WorkflowError(f"{self.name}: the selection was stopped")
        if self.loop is asyncio.get_running_loop():
            return await work
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self.loop))


class LiveSource:
    """The object as the source of one episode. `calls` are those that have ended."""

    is_policy = False

    def __init__(self, live: LiveModel, note: Callable[[Spent], None]) -> None:
        self._live, self._note = live, note
        self.calls: list[Spent] = []

    async def answer(self, call: Call, sampling: Sampling) -> Answer:
        raise WorkflowError(
            f"the candidate {self._live.name!r} is an AgentScope object, which tuner.model() hands out; it has no "
            "client, address or tuner.chat()"
        )

    def hand_out(self, check_open: Callable[[], None], failed: Callable[[Exception], None]) -> Any:
        """A copy of the object that counts. `check_open` raises once the episode is over; `failed` is told of errors
        of calls."""
        original = type(self._live.model)

        def counting(name: str) -> Callable[..., Any]:
            async def ask(model: Any, *given: Any, **named: Any) -> Any:
                check_open()
                began = time.perf_counter()
                try:
                    found = await self._live.run(getattr(original, name)(model, *given, **named))
                except Exception as error:
                    self._fail(error, began, failed)
                    raise
                if isinstance(found, AsyncIterator):
                    return self._stream(found, began, failed)
                self._add(found, began)
                return found

            return ask

        own = {name: counting(name) for name in ASKING if hasattr(original, name)}
        counted = copy.copy(self._live.model)
        counted.__class__ = type(original.__name__, (original,), own | {"__module__": original.__module__})
        counted.astune_source = self
        return counted

    async def _stream(self, parts: Any, began: float, failed: Callable[[Exception], None]) -> AsyncIterator[Any]:
        async def step() -> Any:
            return await anext(parts, _END)

        last = None
        try:
            while (part := await self._live.run(step())) is not _END:
                last = part if last is None or part.usage is not None else last
                yield part
        except Exception as error:
            self._fail(error, began, failed)
            raise
        self._add(last, began)

    def _add(self, found: Any, began: float) -> None:
        usage, seconds = getattr(found, "usage", None), time.perf_counter() - began
        known = (None, None) if usage is None else (usage.input_tokens, usage.output_tokens)
        self._keep(Spent(seconds, *known))

    def _fail(self, error: Exception, began: float, failed: Callable[[Exception], None]) -> None:
        self._keep(Spent(time.perf_counter() - began, error=type(error).__name__))
        problem = PolicyError(f"{self._live.name}: {type(error).__name__}: {error}")
        problem.__cause__ = error
        failed(problem)

    def _keep(self, spent: Spent) -> None:
        self.calls.append(spent)
        self._note(spent)


def usage_of(model: Any) -> dict[str, float] | None:
    """The tokens of all calls in the episode of a copy that was handed out; None where they are not known."""
    calls = [call for call in model.astune_source.calls if call.error is None]
    sent, got = [call.input_tokens for call in calls], [call.output_tokens for call in calls]
    if None in sent or None in got:
        return None
    totals = float(sum(filter(None, sent))), float(sum(filter(None, got)))
    return {"input_tokens": totals[0], "output_tokens": totals[1], "total_tokens": sum(totals)}

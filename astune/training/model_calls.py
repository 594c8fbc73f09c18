"""The calls of a model that is evaluated: how long each took, what it read, wrote and cost; and a chat API in the
place of the policy.

A line of `calls.jsonl` is a call, or an episode as a whole:

    {"step": 0, "episode_id": "eval/greedy/7/0", "seconds": 0.8, "prompt_tokens": 120, "completion_tokens": 9,
     "cost": 0.00002, "error": null, "whole": false}

`cost` is null where a price or the tokens are not known.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Coroutine
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

from astune.clients.chat import ChatClient
from astune.clients.usage import usage_of_call
from astune.config.chat_models import PricedModelConfig
from astune.context_tracker.calls import Answer, Call, Source
from astune.context_tracker.chat_source import ChatSource
from astune.context_tracker.tracker import ContextTracker
from astune.monitor.jsonl import LineFile, keep_lines, read_lines
from astune.rollout.setup import Observer
from astune.support.current_episode import EPISODE
from astune.types import Episode, Sampling, Task
from astune.workflow.live_model import LiveModel, LiveSource

CALLS = "calls.jsonl"


@dataclass(frozen=True)
class TimedCall:
    """One call of the model, as its agent saw it: retries of the client are within its seconds. Its tokens are None
    where it failed, or an API did not report them. Or `whole`: the episode, without its judging."""

    episode_id: str
    seconds: float
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cost: float | None = None
    error: str | None = None
    whole: bool = False

    @property
    def tokens(self) -> int | None:
        known = self.prompt_tokens is not None and self.completion_tokens is not None
        return (self.prompt_tokens or 0) + (self.completion_tokens or 0) if known else None


StandIn: TypeAlias = Callable[[Sampling], Source]
"""Makes the source that answers in the policy's place, drawing as the run does unless the agent asks otherwise."""


class ApiSource:
    """A chat API in the place of the policy: it gets the run's sampling and has a context of its own. Seeds are not
    sent, as not every API takes one."""

    is_policy = False

    def __init__(self, client: ChatClient, sampling: Sampling) -> None:
        self._source = ChatSource(client, allow_inexact=False)
        self._sampling = sampling

    async def answer(self, call: Call, sampling: Sampling) -> Answer:
        request, run = call.request, self._sampling
        asked = replace(
            request,
            max_tokens=sampling.max_tokens,
            temperature=run.temperature if request.temperature is None else request.temperature,
            top_p=run.top_p if request.top_p is None and run.top_p < 1 else request.top_p,
        )
        return await self._source.answer(replace(call, request=asked), sampling)


class CallLog(Observer):
    """Writes the calls of the policy, or of what stands in its place, to `calls.jsonl`. `sampling` is to be set before
    each evaluation."""

    def __init__(
        self,
        folder: Path,
        step: int,
        stand_in: StandIn | None = None,
        prices: PricedModelConfig | None = None,
        live: LiveModel | None = None,
    ) -> None:
        self.sampling = Sampling(1)
        self._file = LineFile(folder / CALLS)
        self._step, self._stand_in, self._prices, self._live = step, stand_in, prices, live
        self._began: dict[str, float] = {}

    def source(self, name: str | None, source: Source) -> Source:
        episode = EPISODE.get()
        if name is not None or episode is None:
            return source
        if self._live is not None:
            return LiveSource(
                self._live, lambda spent: self.add(TimedCall(episode.episode_id, *spent[:3], None, spent[3]))
            )
        model = source if self._stand_in is None else self._stand_in(self.sampling)
        return _Measured(model, episode.episode_id, self)

    def on_start(self, episode_id: str, task: Task, tracker: ContextTracker, work: Coroutine[Any, Any, object]) -> None:
        self._began[episode_id] = time.perf_counter()

    async def on_judging(self, episode: Episode) -> None:
        self.on_end(episode)

    def on_end(self, episode: Episode) -> None:
        began = self._began.pop(episode.episode_id, None)
        if began is not None:
            self.add(TimedCall(episode.episode_id, time.perf_counter() - began, whole=True))

    def add(self, call: TimedCall) -> None:
        self._file.append({"step": self._step, **asdict(call)})

    def cost_of(self, answer: Answer) -> float | None:
        return None if self._prices is None else usage_of_call(answer.usage, self._prices).cost

    def close(self) -> None:
        self._file.close()


class _Measured:
    """A source whose calls are written down."""

    def __init__(self, source: Source, episode_id: str, log: CallLog) -> None:
        self.is_policy = source.is_policy
        self._source, self._episode_id, self._log = source, episode_id, log

    async def answer(self, call: Call, sampling: Sampling) -> Answer:
        began = time.perf_counter()
        try:
            answer = await self._source.answer(call, sampling)
        except Exception as error:
            kind = type(error).__name__
            self._log.add(TimedCall(self._episode_id, time.perf_counter() - began, error=kind))
            raise
        seconds, usage = time.perf_counter() - began, answer.usage
        tokens: tuple[int | None, int | None] = None, None
        if usage is not None:
            tokens = usage.prompt_tokens, usage.completion_tokens
        elif answer.exact:
            tokens = len(answer.prompt_ids), len(answer.output_ids)
        self._log.add(TimedCall(self._episode_id, seconds, *tokens, self._log.cost_of(answer)))
        return answer


def read_calls(folder: Path) -> dict[str, list[TimedCall]]:
    """The calls by episode. Empty for a folder that has none, as one of before they were written."""
    found: dict[str, list[TimedCall]] = {}
    path = folder / CALLS
    for row in read_lines(path) if path.is_file() else ():
        call = TimedCall(**{name: value for name, value in row.items() if name != "step"})
        found.setdefault(call.episode_id, []).append(call)
    return found


def keep_calls(folder: Path, tasks: Collection[str]) -> None:
    """Keep the calls of these tasks, as "eval/greedy/7": the others are played again."""
    if (folder / CALLS).is_file():
        keep_lines(folder / CALLS, lambda row: row["episode_id"].rpartition("/")[0] in tasks)

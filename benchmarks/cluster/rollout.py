"""Runners that play tasks over engines, as Trinity's scheduler and its workflow runners do."""

from __future__ import annotations

import math
from collections import Counter, deque
from dataclasses import dataclass, field

from cluster.clock import Clock, Event, Process, all_of, any_of
from cluster.engine import Engine, Speed
from cluster.workload import Attempt, Batch, TaskAttempts, read_prompt_once


@dataclass(frozen=True)
class Explorer:
    """What tasks are played with."""

    engines: int
    runners_per_engine: int
    attempts_per_runner: int
    """Attempts at one task that a runner plays at a time: all of them, or 1."""
    speed: Speed
    over_rollout: float = 0.0
    """Share of the tasks that a batch does not wait for."""
    grace: float = 30.0
    """Seconds that it waits for them all the same."""

    @property
    def most_running(self) -> int:
        """Calls that one engine can have at a time."""
        return self.runners_per_engine * self.attempts_per_runner


@dataclass
class Explored:
    """A batch on its way. The figures are of the tasks whose attempts have all ended."""

    done: Event = field(default_factory=Event)
    aborted: Event = field(default_factory=Event)
    calls: set[Event] = field(default_factory=set)
    """Under way."""
    tasks: int = 0
    episodes: int = 0
    tokens: int = 0
    """Of their training rows."""
    versions: Counter[int] = field(default_factory=Counter)
    """Output tokens by the version of the weights with which their call began."""


@dataclass
class Part:
    """The attempts at a task that one runner plays."""

    explored: Explored
    attempts: TaskAttempts
    ended: Event = field(default_factory=Event)
    versions: Counter[int] = field(default_factory=Counter)


class Rollout:
    """A runner belongs to an engine and plays one part at a time; parts wait in the order of their batches."""

    def __init__(self, clock: Clock, explorer: Explorer) -> None:
        self._clock = clock
        self._explorer = explorer
        self.engines = [Engine(clock, explorer.speed, explorer.most_running) for _ in range(explorer.engines)]
        self._idle = [explorer.runners_per_engine] * explorer.engines
        self._waiting: deque[Part] = deque()
        self.version = 0
        """Of the weights that the engines hold."""

    def submit(self, batch: Batch) -> Explored:
        explored = Explored()
        enough = Event()
        enough_tasks = math.ceil(len(batch) * (1 - self._explorer.over_rollout))
        tasks = []
        for task in batch:
            size = self._explorer.attempts_per_runner
            seen = read_prompt_once(task)
            parts = [Part(explored, seen[start : start + size]) for start in range(0, len(task), size)]
            self._waiting.extend(parts)
            ended = self._clock.start(self._collect(task, parts))
            ended.then(lambda: enough.happen() if explored.tasks >= enough_tasks else None)
            tasks.append(ended)
        self._clock.start(self._finish(explored, enough, all_of(tasks)))
        self._assign()
        return explored

    def _collect(self, task: TaskAttempts, parts: list[Part]) -> Process:
        yield all_of(part.ended for part in parts)
        explored = parts[0].explored
        if not explored.aborted.happened:
            explored.tasks += 1
            explored.episodes += len(task)
            explored.tokens += sum(attempt.tokens for attempt in task)
            for part in parts:
                explored.versions.update(part.versions)

    def _finish(self, explored: Explored, enough: Event, everything: Event) -> Process:
        """With over_rollout waits for enough tasks, then some seconds for the others, and stops those."""
        if self._explorer.over_rollout:
            yield enough
            yield any_of([everything, self._clock.sleep(self._explorer.grace)])
        else:
            yield everything
        if not everything.happened:
            self._waiting = deque(part for part in self._waiting if part.explored is not explored)
            explored.aborted.happen()
            for engine in self.engines:
                engine.abort(explored.calls)
        explored.done.happen()

    def _assign(self) -> None:
        """Parts that wait go to idle runners, first where most are idle."""
        while self._waiting and (most := max(self._idle)):
            engine = self._idle.index(most)
            self._idle[engine] -= 1
            self._clock.start(self._play(engine, self._waiting.popleft()))

    def _play(self, engine: int, part: Part) -> Process:
        attempts = [self._clock.start(self._attempt(self.engines[engine], part, attempt)) for attempt in part.attempts]
        yield any_of([all_of(attempts), part.explored.aborted])
        self._idle[engine] += 1
        part.ended.happen()
        self._assign()

    def _attempt(self, engine: Engine, part: Part, attempt: Attempt) -> Process:
        explored = part.explored
        for call in attempt.calls:
            part.versions[self.version] += call.output_tokens
            answered = engine.call(call.prompt_tokens, call.output_tokens)
            explored.calls.add(answered)
            yield answered
            explored.calls.discard(answered)
            yield self._clock.sleep(call.tool_seconds)
            if explored.aborted.happened:
                return
        yield self._clock.sleep(attempt.judge_seconds)

"""What there is to do: batches of tasks, each with attempts, each a row of model calls."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias


@dataclass(frozen=True)
class Call:
    """`prompt_tokens` are those that the episode has not had yet; `tool_seconds` pass after the call."""

    prompt_tokens: int
    output_tokens: int
    tool_seconds: float = 0.0


@dataclass(frozen=True)
class Attempt:
    calls: tuple[Call, ...]
    judge_seconds: float = 0.0

    @property
    def output_tokens(self) -> int:
        return sum(call.output_tokens for call in self.calls)

    @property
    def tokens(self) -> int:
        """Of the training row: all that was read or sampled, each once."""
        return sum(call.prompt_tokens for call in self.calls) + self.output_tokens


TaskAttempts: TypeAlias = tuple[Attempt, ...]
Batch: TypeAlias = tuple[TaskAttempts, ...]


def read_prompt_once(attempts: TaskAttempts) -> TaskAttempts:
    """As the engine sees the attempts at a task: the prompt that they share is read by the first."""

    def known(attempt: Attempt) -> Attempt:
        first, *others = attempt.calls
        return replace(attempt, calls=(replace(first, prompt_tokens=0), *others))

    return (attempts[0], *map(known, attempts[1:]))


@dataclass(frozen=True)
class LogNormal:
    """Heavy tail: half of the values are below `median`, one in six above `median * e**sigma`. 0 is no spread."""

    median: float
    sigma: float

    def draw(self, chance: random.Random) -> float:
        return self.median * chance.lognormvariate(0.0, self.sigma) if self.median else 0.0


@dataclass(frozen=True)
class Shape:
    """Episodes to draw when there is no recorded run."""

    turns: LogNormal
    output_tokens: LogNormal
    """Per call."""
    prompt_tokens: int
    """Of the first call."""
    tool_tokens: int
    """That a tool's result adds to the next prompt."""
    tool_seconds: LogNormal
    judge_seconds: float
    max_turns: int
    max_tokens: int
    """Per call."""

    def attempt(self, chance: random.Random) -> Attempt:
        turns = min(self.max_turns, max(1, round(self.turns.draw(chance))))
        calls = []
        for turn in range(turns):
            last = turn == turns - 1
            calls.append(
                Call(
                    self.tool_tokens if turn else self.prompt_tokens,
                    min(self.max_tokens, max(1, round(self.output_tokens.draw(chance)))),
                    0.0 if last else self.tool_seconds.draw(chance),
                )
            )
        return Attempt(tuple(calls), self.judge_seconds)


def drawn(shape: Shape, batches: int, tasks: int, repeat: int, seed: int) -> list[Batch]:
    """Equal arguments, equal batches."""
    chance = random.Random(seed)
    return [tuple(tuple(shape.attempt(chance) for _ in range(repeat)) for _ in range(tasks)) for _ in range(batches)]


def resampled(
    recorded: Sequence[TaskAttempts], batches: int, tasks: int, repeat: int, tools: LogNormal, seed: int
) -> list[Batch]:
    """Batches whose tasks are drawn from recorded ones, their attempts from that task's own, and tool time anew."""
    chance = random.Random(seed)

    def attempt(recorded: Attempt) -> Attempt:
        *calls, last = recorded.calls
        return replace(recorded, calls=(*(replace(call, tool_seconds=tools.draw(chance)) for call in calls), last))

    def one() -> TaskAttempts:
        attempts = chance.choice(recorded)
        return tuple(attempt(chance.choice(attempts)) for _ in range(repeat))

    return [tuple(one() for _ in range(tasks)) for _ in range(batches)]

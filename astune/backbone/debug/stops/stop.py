"""A stop of a debug run: what the commands of the debugger look at and change."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from astune.context_tracker.calls import Answer, Call
from astune.context_tracker.tracker import ContextTracker
from astune.types import Episode, Task

StopKind = Literal["tool result", "call", "answer", "judge", "verdict"]


@dataclass(frozen=True)
class RunningEpisode:
    """The episode under way. `work` is the coroutine of its workflow."""

    episode_id: str
    task: Task
    tracker: ContextTracker
    work: Coroutine[Any, Any, object]


@dataclass
class Answers:
    """The answers to one call so far, of which the agent will get the chosen one; the latest unless said otherwise."""

    draw: Callable[[int], Awaitable[Answer]]
    """Asks the model; the number makes each draw another one."""
    given: list[Answer] = field(default_factory=list)
    chosen: int = -1
    draft: str = ""
    """A text that a person wrote and that is no answer yet."""

    async def again(self) -> Answer:
        self.add(await self.draw(len(self.given)))
        return self.given[-1]

    def add(self, answer: Answer) -> None:
        self.given.append(answer)
        self.chosen = len(self.given) - 1

    @property
    def current(self) -> Answer | None:
        return self.given[self.chosen] if self.given else None


@dataclass(frozen=True)
class Stop:
    """One stop. A call and its answers are there for "call" and "answer", a call and `message` (the result) for "tool
    result", the episode for "judge" and "verdict"."""

    kind: StopKind
    running: RunningEpisode
    call: Call | None = None
    answers: Answers | None = None
    message: Mapping[str, Any] | None = None
    episode: Episode | None = None

    @property
    def title(self) -> str:
        number = "" if self.call is None else f" {self.call.number + 1} of {self.call.agent}"
        return {
            "tool result": f"at a tool result, which the model reads in call{number}",
            "call": f"before call{number}",
            "answer": f"after call{number}, before the agent gets the answer",
            "judge": "before the verdict",
            "verdict": "after the verdict",
        }[self.kind]


@dataclass(frozen=True)
class Branch:
    """Another attempt at a task: an episode up to a call, then another answer to it."""

    episode_id: str
    """The episode that it branches off."""
    call: int
    answer: Answer

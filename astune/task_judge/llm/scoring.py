"""Judging by an LLM, one by one, in pairs or ranked: from a job to the score of each attempt, and what it cost."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from pydantic import BaseModel

from astune.clients.chat_models import ChatModels, ParsedReply, Usage
from astune.task_judge.llm.rubric import Rubric

M = TypeVar("M", bound=BaseModel)


@dataclass(frozen=True)
class JudgeJob:
    """A task, the rubric for its answers, and the one model that judges them all."""

    query: str
    reference: str | None
    rubric: Rubric
    instructions: str
    votes: int
    models: ChatModels
    model: str

    async def ask(
        self, messages: Sequence[Mapping[str, object]], schema: type[M], vote: int, check: Callable[[M], None] | None
    ) -> ParsedReply[M]:
        return await self.models.ask(messages, schema, model=self.model, vote=vote, check=check)


@dataclass(frozen=True)
class AttemptScore:
    """The score that the model gave one attempt, from which the judge makes its verdict."""

    reward: float
    reason: str
    metrics: Mapping[str, float] = field(default_factory=dict)
    usage: Mapping[str, float] = field(default_factory=dict)
    """The metrics that `usage_metrics` gives."""
    votes: tuple[float, ...] | None = None
    """The reward by each vote that could tell; None where no vote was needed."""


def usage_metrics(usages: Sequence[Usage], episodes: int) -> dict[str, float]:
    """The metrics of calls that served `episodes`, as the share of each; without the cost where it is not known."""
    total = Usage()
    for usage in usages:
        total += usage
    figures: dict[str, float] = {
        "llm_calls": total.calls,
        "llm_cached": total.cached,
        "llm_prompt_tokens": total.prompt_tokens,
        "llm_completion_tokens": total.completion_tokens,
    }
    if total.cost is not None:
        figures["llm_cost"] = total.cost
    return {name: value / episodes for name, value in figures.items()}


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def spread(votes: Sequence[float]) -> dict[str, float]:
    """The distance of the best vote from the worst, where there are several."""
    return {"vote_spread": max(votes) - min(votes)} if len(votes) > 1 else {}


def short(text: str, most: int = 200) -> str:
    line = " ".join(text.split())
    return line if len(line) <= most else line[: most - 3] + "..."

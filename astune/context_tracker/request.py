"""The request of one call, as an agent makes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True)
class ChatRequest:
    """A chat completion as the agent asks for it, in OpenAI's shape. None takes the run's default."""

    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]] = ()
    may_call: bool = True
    """Whether calls in the answer are read. If not they are text; the prompt shows the tools all the same, as it did
    before and will again."""
    max_tokens: int | None = None
    """Lowers the run's limit, never raises it."""
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    """Calls of one episode with equal seed and prompt get equal answers; other attempts at the task get others,
    as training needs."""
    stop: tuple[str, ...] = ()
    """Texts that end the answer. They are sampled, and trained, but not part of the message."""
    force: Literal["tool_call", "json_object"] | None = None
    """The shape that the answer must have. Its start is then put into the prompt: context, not sampled, not trained."""
    force_tool: str | None = None
    """With `force="tool_call"`: the one tool to call; None leaves the choice."""
    retry: bool = False
    """The client repeats a request whose answer it did not get: the answer that was lost is not trained."""
    prompt: str | tuple[int, ...] | None = None
    """A raw text or token ids to continue, instead of `messages`."""

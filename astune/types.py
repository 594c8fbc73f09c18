"""The nouns of ASTune. Everything that crosses a package border is one of these.

    Task -> Turn* -> Timeline* -> Episode -> Group -> Sample* -> Learner

Standard library only, no input or output. All data types are frozen; lengths are checked at birth, so a
`Turn` or `Timeline` that exists is consistent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, Literal, Protocol

FinishReason = Literal["stop", "length"]


class StopReason(str, Enum):
    """Why an episode ended."""

    COMPLETED = "completed"
    """The workflow returned."""
    MAX_TURNS = "max_turns"
    """The workflow asked for more model calls than `astune.rollout.max_turns`."""
    CONTEXT_OVERFLOW = "context_overflow"
    """A prompt left no room for an answer in the model's context."""
    TIMEOUT = "timeout"
    """The episode ran longer than `astune.rollout.episode_timeout`."""
    ERROR = "error"
    """The workflow, the judge or the policy raised; `Episode.error` says which."""
    CANCELLED = "cancelled"
    """The run was stopped while the episode was under way."""


@dataclass(frozen=True)
class Task:
    """One problem, as read. A run never writes to it; `task_id` is unique within a split."""

    task_id: str
    query: str
    messages: tuple[Mapping[str, Any], ...] = ()
    """Conversation to start from, in OpenAI's shape, when the task is more than one question."""
    answer: str | None = None
    """The reference answer, for the judge, or for a workflow that returns the reward itself. Not for the agent."""
    env_type: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """The whole row as it was read."""


@dataclass(frozen=True)
class Sampling:
    """How one answer is drawn. `temperature=0` is greedy."""

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    """0 keeps the whole vocabulary."""
    stop_token_ids: tuple[int, ...] = ()
    """Generation ends after the first of these; it is part of the output."""
    seed: int | None = None
    """Equal seed, prompt, weights: equal answer, whatever else runs beside it."""


@dataclass(frozen=True)
class Generation:
    """What a policy returns. `logprobs[i]` is the natural logarithm of the probability of `output_ids[i]`
    under the softmax of `logits / temperature` (of `logits` when greedy), before top-p and top-k cut it."""

    output_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    policy_version: int
    finish_reason: FinishReason


class Policy(Protocol):
    """The only thing a rollout needs from a backbone."""

    @property
    def context_length(self) -> int:
        """Most tokens a prompt and its answer may have together."""

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling) -> Generation: ...


@dataclass(frozen=True)
class Turn:
    """One call to the policy: the exact tokens it saw and the exact tokens it sampled.

    `exact=False` says that the ids were not reported by the engine; such a turn is never trainable.
    `messages`, `tools` and `response` (OpenAI's shape) are for people to read; nothing is computed from them.
    """

    agent: str
    prompt_ids: tuple[int, ...]
    output_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    policy_version: int
    finish_reason: FinishReason
    temperature: float = 1.0
    trainable: bool = True
    exact: bool = True
    messages: tuple[Mapping[str, Any], ...] = ()
    tools: tuple[Mapping[str, Any], ...] = ()
    response: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if len(self.output_ids) != len(self.logprobs):
            raise ValueError(
                f"turn of {self.agent!r}: {len(self.output_ids)} sampled tokens but {len(self.logprobs)} logprobs"
            )
        if self.trainable and not self.exact:
            raise ValueError(f"turn of {self.agent!r}: token ids are not exact, so it cannot be trainable")


@dataclass(frozen=True)
class Span:
    """The range `[start, stop)` of a timeline that turn number `turn` of the episode sampled."""

    turn: int
    start: int
    stop: int
    policy_version: int
    temperature: float
    trainable: bool


@dataclass(frozen=True)
class Timeline:
    """A run of turns in which every prompt extends the tokens before it: one training row.

    All arrays are parallel to `token_ids`. `loss_mask` is True exactly on the tokens of trainable spans;
    `logprobs` is 0.0 wherever the policy did not sample. `fork` is the reason why the row does not
    continue an earlier one (None for an agent's first).
    """

    agent: str
    token_ids: tuple[int, ...]
    loss_mask: tuple[bool, ...]
    logprobs: tuple[float, ...]
    spans: tuple[Span, ...]
    fork: str | None = None

    def __post_init__(self) -> None:
        if not len(self.token_ids) == len(self.loss_mask) == len(self.logprobs):
            raise ValueError("timeline arrays must have one entry per token")

    @property
    def trained_tokens(self) -> int:
        return sum(self.loss_mask)


@dataclass(frozen=True)
class WorkflowOutput:
    """What a workflow returns. `reward=None` means: ask the judge.

    `response` is the name AgentScope 1.x's tuner has for `answer`; giving either sets both.
    """

    answer: Any = None
    reward: float | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    response: Any = None

    def __post_init__(self) -> None:
        if self.answer is None:
            object.__setattr__(self, "answer", self.response)
        elif self.response is None:
            object.__setattr__(self, "response", self.answer)


@dataclass(frozen=True)
class JudgeOutput:
    """What a judge function in the style of AgentScope 1.x's tuner returns."""

    reward: float
    metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Verdict:
    """What a judge says of an episode. A judge that cannot tell raises `JudgeError`."""

    reward: float
    passed: bool | None = None
    """None where the judge has no notion of success, only of more and less."""
    reason: str = ""
    metrics: Mapping[str, float] = field(default_factory=dict)
    judged_by: str = ""


@dataclass(frozen=True)
class EpisodeError:
    """What went wrong in an episode, as data."""

    stage: Literal["workflow", "judge", "policy", "environment"]
    kind: str
    """Name of the exception's class."""
    message: str
    traceback: str = ""


@dataclass(frozen=True)
class Episode:
    """One attempt at one task. `verdict is None` means that nobody judged it, never a reward of 0."""

    episode_id: str
    task: Task
    turns: tuple[Turn, ...]
    timelines: tuple[Timeline, ...]
    stop_reason: StopReason
    output: WorkflowOutput | None = None
    verdict: Verdict | None = None
    error: EpisodeError | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Figures of the episode, `seconds` among them."""

    @property
    def reward(self) -> float | None:
        return None if self.verdict is None else self.verdict.reward


@dataclass(frozen=True)
class Group:
    """All attempts at one task, side by side: the unit of advantage."""

    task: Task
    episodes: tuple[Episode, ...]


@dataclass(frozen=True)
class Sample:
    """One timeline with its credit: the only thing a `Learner` sees.

    `advantages` has one entry per span of the timeline. `weight` is what each trained token counts in the
    loss; over all samples of a step, trained tokens times weight sums to 1.
    """

    timeline: Timeline
    advantages: tuple[float, ...]
    weight: float
    task_id: str
    episode_id: str

    def __post_init__(self) -> None:
        if len(self.advantages) != len(self.timeline.spans):
            raise ValueError("a sample needs one advantage per span of its timeline")


class Learner(Protocol):
    """The only thing a training loop needs from the side that holds the weights."""

    def update(self, samples: Sequence[Sample]) -> dict[str, float]:
        """One optimizer step over `samples`; returns figures such as loss and gradient norm."""

    def publish(self) -> int:
        """Make the updated weights what the policy samples from; returns the new policy version."""

    def save(self, directory: Path) -> None: ...

    def load(self, directory: Path) -> None: ...


@dataclass(frozen=True)
class RunReport:
    """How a run ended. `summary` holds the figures of the final table."""

    run_dir: Path
    steps: int
    status: Literal["completed", "interrupted", "failed"]
    summary: Mapping[str, Any] = field(default_factory=dict)

"""The nouns of ASTune. Everything that crosses a package border is one of these.

    Task -> Turn* -> Timeline* -> Episode -> Group -> Sample* -> Learner

Standard library only, no input or output. All data types are frozen; lengths are checked at birth, so a
`Turn` or `Timeline` that exists is consistent. Token ids, logprobs and messages may be given as any sequence; they are
kept packed, and share what they begin with (see `token_ids` and `ropes`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, Literal, Protocol

from astune.ropes import Messages
from astune.sampling import ContextCut, is_greedy
from astune.sampling import Sampling as Sampling
from astune.token_ids import Logprobs, TokenIds

FinishReason = Literal["stop", "length"]


class StopReason(str, Enum):
    """Why an episode ended."""

    COMPLETED = "completed"
    """The workflow returned."""
    MAX_TURNS = "max_turns"
    """The workflow asked for more model calls than `astune.rollout.max_turns`."""
    CONTEXT_OVERFLOW = "context_overflow"
    """A prompt left no room for an answer in the model's context."""
    MAX_TOKENS = "max_tokens"
    """The episode has sampled `astune.rollout.max_episode_tokens` tokens and asked for more."""
    TIMEOUT = "timeout"
    """The episode ran longer than `astune.rollout.episode_timeout`."""
    LATE = "late"
    """Its step had its quorum, and went on without it (`astune.synchronizer.quorum`)."""
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
    """The type of environment that each attempt gets an instance of; None for tasks without one."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """The row as it was read, or the columns of it that `astune.task_reader.fields.metadata` names."""
    place: str = field(default="", compare=False)
    """The place where it was read, as `train.jsonl:17`, for messages; empty if it is not known."""


@dataclass(frozen=True)
class Generation:
    """The answer of a policy to a prompt. `logprobs[i]` is the natural logarithm of the probability of `output_ids[i]`
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

    `exact=False` says that the ids were not reported by the engine but made from text. `excluded` says why the sampled
    tokens carry no loss ("frozen", "greedy", "retried", "inexact", "no_logprobs", "forced", "edited"), None if they do:
    "greedy" and, where one is no finite number, "no_logprobs" are found out here, whoever made the turn.
    `fork` says why the prompt does not continue the agent's earlier calls, as far as its messages tell (see
    `context_tracker.forks`). `follows` is the number of the turn whose answer is the last sampled one in its history,
    also where the history was rewritten and the tokens do not go on from it. `call` is the number of the call in the
    order in which calls began; an episode's turns stand in the order in which they ended. `unread` says that the answer
    has marks of a tool call and no call could be read, though tools were offered. `cut` is what the run took out
    just before. `model` is the one of several that answered. `messages`, `tools` and `response` are for people.
    """

    agent: str
    prompt_ids: Sequence[int]
    output_ids: Sequence[int]
    logprobs: Sequence[float]
    policy_version: int
    finish_reason: FinishReason
    temperature: float = 1.0
    excluded: str | None = None
    exact: bool = True
    fork: str | None = None
    follows: int | None = None
    messages: Sequence[Mapping[str, Any]] = ()
    tools: tuple[Mapping[str, Any], ...] = ()
    response: Mapping[str, Any] = field(default_factory=dict)
    call: int = 0
    unread: bool = False
    cut: ContextCut | None = None
    model: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "messages", Messages.of(self.messages))
        object.__setattr__(self, "prompt_ids", TokenIds.of(self.prompt_ids))
        object.__setattr__(self, "output_ids", TokenIds.of(self.output_ids))
        object.__setattr__(self, "logprobs", Logprobs.of(self.logprobs))
        if len(self.output_ids) != len(self.logprobs):
            raise ValueError(
                f"turn of {self.agent!r}: {len(self.output_ids)} sampled tokens but {len(self.logprobs)} logprobs"
            )
        if self.excluded is None and is_greedy(self.temperature):
            object.__setattr__(self, "excluded", "greedy")
        elif self.excluded is None and not all(map(math.isfinite, self.logprobs)):
            object.__setattr__(self, "excluded", "no_logprobs")

    @property
    def trainable(self) -> bool:
        """True if the sampled tokens carry loss."""
        return self.excluded is None


@dataclass(frozen=True)
class Span:
    """The range `[start, stop)` of a timeline that turn number `turn` of the episode sampled, and its logprobs.

    `shared=True` says that an earlier timeline has the same turn: this one branches off after it.
    """

    turn: int
    start: int
    stop: int
    policy_version: int
    temperature: float
    trainable: bool
    logprobs: Sequence[float] = field(repr=False)
    shared: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "logprobs", Logprobs.of(self.logprobs))
        if len(self.logprobs) != self.stop - self.start:
            raise ValueError(f"span of {self.stop - self.start} tokens with {len(self.logprobs)} logprobs")

    def __len__(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True)
class Timeline:
    """A path of turns of one agent in which every prompt extends the tokens before it: one training row.

    `spans` are in order and do not overlap. Every turn has exactly one span that is not shared, so a learner that
    trains the trainable spans that are not shared trains every sampled token once. `fork` is the reason why the row
    does not continue an earlier one (None for an agent's first).
    """

    agent: str
    token_ids: Sequence[int]
    spans: tuple[Span, ...]
    fork: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "token_ids", TokenIds.of(self.token_ids))
        stops = [0, *(span.stop for span in self.spans)]
        starts = [*(span.start for span in self.spans), len(self.token_ids)]
        if any(stop > start for stop, start in zip(stops, starts, strict=True)):
            raise ValueError(f"spans of a timeline must be in order, apart and within its {len(self.token_ids)} tokens")

    @property
    def loss_mask(self) -> tuple[bool, ...]:
        """One entry per token: True on the tokens of trainable spans that are not shared."""
        mask = [False] * len(self.token_ids)
        for span in self.spans:
            mask[span.start : span.stop] = [span.trainable and not span.shared] * len(span)
        return tuple(mask)

    @property
    def logprobs(self) -> tuple[float, ...]:
        """One entry per token, 0.0 wherever nothing was sampled."""
        logprobs = [0.0] * len(self.token_ids)
        for span in self.spans:
            logprobs[span.start : span.stop] = span.logprobs
        return tuple(logprobs)

    @property
    def trained_tokens(self) -> int:
        return sum(len(span) for span in self.spans if span.trainable and not span.shared)


@dataclass(frozen=True)
class WorkflowOutput:
    """The result of a workflow. `reward=None` means: ask the judge. `response` is AgentScope 1.x's name for `answer`;
    giving either sets both. `events` tell people what happened: `text`, and any of `who`, `heading` and `known_to`.
    """

    answer: Any = None
    reward: float | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    response: Any = None
    events: Sequence[Mapping[str, Any]] = ()

    def __post_init__(self) -> None:
        if self.answer is None:
            object.__setattr__(self, "answer", self.response)
        elif self.response is None:
            object.__setattr__(self, "response", self.answer)


@dataclass(frozen=True)
class JudgeOutput:
    """The result of a judge function in the style of AgentScope 1.x's tuner."""

    reward: float
    metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Verdict:
    """The judgement of an episode. A judge that cannot tell raises `JudgeError`."""

    reward: float
    passed: bool | None = None
    """None where the judge has no notion of success, only of more and less, and where it is `undecided`."""
    reason: str = ""
    metrics: Mapping[str, float] = field(default_factory=dict)
    judged_by: str = ""
    undecided: bool = False
    """True if the judge could not tell success from failure: it contradicted itself."""


@dataclass(frozen=True)
class EpisodeError:
    """The error of an episode, as data."""

    stage: Literal["workflow", "judge", "policy", "environment"]
    kind: str
    """Name of the exception's class."""
    message: str
    traceback: str = ""


UNKNOWN_TOOL = "(no such tool)"
"""Stands for tools that a model calls and nobody offered: their names are the model's, and without end."""


ToolCause = Literal["said_no", "malformed", "unknown", "repeated", "time_limit", "cut_short", "broke", "sandbox"]
"""Why a call of a tool brought less than it might. `repeated` and `cut_short` are no failures."""


@dataclass(frozen=True)
class ToolUse:
    """The calls of one tool in an episode: how many, how many failed, what the first failure said, and the causes with
    the number of calls that have each."""

    calls: int = 0
    errors: int = 0
    message: str = ""
    causes: Mapping[ToolCause, int] = field(default_factory=dict)

    def __add__(self, other: ToolUse) -> ToolUse:
        causes = dict(Counter(self.causes) + Counter(other.causes))
        return ToolUse(self.calls + other.calls, self.errors + other.errors, self.message or other.message, causes)


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
    unique_tokens: int = 0
    """Distinct (context, token) pairs of its turns: what must be computed if all prefixes are shared."""
    agent_rewards: Mapping[str, float] = field(default_factory=dict)
    """Rewards of single agents, in place of the verdict's, as the workflow gave them (`tuner.reward`)."""
    turn_rewards: Mapping[int, float] = field(default_factory=dict)
    """Rewards of single turns by their number, on top (`tuner.reward_turn`)."""
    tools: Mapping[str, ToolUse] = field(default_factory=dict)
    """The calls whose results the model was shown, by tool, and those that `tuner.tools` made beside them."""
    no_credit: frozenset[int] = frozenset()
    """The numbers of turns that earn no advantage above 0, for what their tool calls were (`astune.tools`)."""
    env_score: float | None = None
    """The score that the episode's environment gives it: the task's, or the one named with `tuner.use_environment`."""
    env_error: str = ""
    """Why that environment gave no score, if it was asked for one."""
    artifacts: bytes | None = field(default=None, repr=False)
    """The files of its workspace at its end, for its judge (`astune.workspaces.open_box`). Records do not keep them."""

    @property
    def reward(self) -> float | None:
        return None if self.verdict is None else self.verdict.reward

    @property
    def offered(self) -> set[str]:
        """The names of the tools that a model was offered."""
        sets = {id(turn.tools): turn.tools for turn in self.turns}  # turns share them
        return {tool["function"]["name"] for tools in sets.values() for tool in tools}

    def reward_of(self, agent: str) -> float | None:
        """The agent's own reward, else the episode's. None if nobody judged the episode."""
        return self.reward if self.verdict is None else self.agent_rewards.get(agent, self.verdict.reward)


@dataclass(frozen=True)
class Group:
    """All attempts at one task, side by side: the unit of advantage."""

    task: Task
    episodes: tuple[Episode, ...]


@dataclass(frozen=True)
class Sample:
    """One timeline with its credit: the only thing a `Learner` sees.

    `advantages` and `weights` have one entry per span of the timeline. A weight is what each token of the span
    counts in the loss, 0 where it is context. Over all samples of a step, tokens times weight sums to 1 (to
    any number with `loss_aggregation: constant`).

    `rewards` are for a learner with a critic, else empty: what each span is paid at its last token. The advantages are
    then their sums from each span to the end, and the learner makes its own.

    The loss of the tokens of an `imitated` sample is minus log-probability times advantage, whatever loss is configured
    and whoever said them: an example, or an answer that people preferred to another.
    """

    timeline: Timeline
    advantages: tuple[float, ...]
    weights: tuple[float, ...]
    task_id: str
    episode_id: str
    rewards: tuple[float, ...] = ()
    imitated: bool = False

    def __post_init__(self) -> None:
        if not len(self.advantages) == len(self.weights) == len(self.timeline.spans):
            raise ValueError("a sample needs one advantage and one weight per span of its timeline")
        if self.rewards and len(self.rewards) != len(self.timeline.spans):
            raise ValueError("a sample needs one reward per span of its timeline, or none at all")

    @property
    def trained_tokens(self) -> int:
        return sum(len(span) for span, weight in zip(self.timeline.spans, self.weights, strict=True) if weight)

    @property
    def weight_sum(self) -> float:
        """Tokens times weight."""
        return math.fsum(len(span) * weight for span, weight in zip(self.timeline.spans, self.weights, strict=True))


@dataclass(frozen=True)
class Update:
    """The result of one optimizer step. A `skipped` one was thrown away, as its loss or its gradient was no finite
    number: weights and optimizer are what they were."""

    metrics: Mapping[str, float]
    """Figures such as loss and gradient norm, under the same names every time."""
    skipped: bool = False
    splits: int = 0
    """Micro-batches that did not fit into memory and were split in two."""
    left_out: tuple[Sample, ...] = ()
    """The samples that a teacher did not weigh, and that nothing was learned from."""


@dataclass(frozen=True)
class RunReport:
    """The end of a run. `summary` has the figures of the final table. After `learned_nothing` no model is changed."""

    run_dir: Path
    steps: int
    status: Literal["completed", "interrupted", "failed", "learned_nothing"]
    summary: Mapping[str, Any] = field(default_factory=dict)
    error: Exception | None = None
    """The error that ended a failed run, unless it was reported already."""

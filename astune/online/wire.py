"""The bodies of requests between an agent and the online service, besides those of OpenAI's API.

Both sides read and write them with these classes. A body is strict: an unknown key, a number that is none, a thought or
tool result without its message are errors that name the key. Null is as good as absent, everywhere.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import ErrorDetails

from astune.errors import OnlineError, nearest

TASK_HEADER = "X-ASTune-Task"
RUN_HEADER = "X-ASTune-Run"
CONVERSATION_HEADER = "X-ASTune-Conversation"

CHAT_PATH = "/v1/chat/completions"
FEEDBACK_PATH = "/feedback"
COMMIT_PATH = "/commit"
RECORDS_PATH = "/v1/astune/records"
COMPARISONS_PATH = "/v1/astune/comparisons"
COMPARE_PATH = "/compare"
HEALTH_PATH = "/health"
READY_PATH = "/ready"

_MOST_NAME = 255
_MOST_TEXT = 100_000
_MOST_IDS = 1_000
_MOST_SAID = 10
"""Most faults of a body that an error names."""


class WireError(OnlineError):
    """A body that is not what this module says. `param` is the key at fault, as `messages[2].role`; empty where it is
    the body as a whole."""

    def __init__(self, message: str, param: str = "") -> None:
        super().__init__(message)
        self.param = param


def _as_text(value: object) -> object:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _text_or_parts(value: object) -> object:
    parts = isinstance(value, list) and all(isinstance(part, Mapping) for part in value)
    if value is not None and not isinstance(value, str) and not parts:
        raise ValueError(f"expected a text or a list of objects, got {value!r:.200}")
    return value


def _without_nul(value: str) -> str:
    if "\x00" in value:
        raise ValueError("holds a character that is none (NUL)")
    return value


Name = Annotated[str, Field(min_length=1, max_length=_MOST_NAME), AfterValidator(_without_nul)]
"""An id or a user: of this many characters."""
RunId = Annotated[Name, BeforeValidator(_as_text)]
"""Clients send "0" or 0."""
Text = Annotated[str, Field(max_length=_MOST_TEXT)]
Content = Annotated[Any, BeforeValidator(_text_or_parts)]
"""A text, or a list of parts as `{"type": "text", "text": "..."}`."""
Rewards = Annotated[dict[Name, float], Field(min_length=1, max_length=100)]
"""Rewards by name; they add up."""


class Body(BaseModel):
    """Base of all bodies."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    def to_json(self) -> dict[str, Any]:
        """The body to send: what is not given is left out."""
        return self.model_dump(mode="json", exclude_none=True)


class OpinionFields(Body):
    """Feedback on an answer as a thumb, a rating of 1 to 5, a comment or a correction."""

    thumb: Literal["up", "down"] | None = None
    rating: Annotated[int, Field(ge=1, le=5)] | None = None
    comment: Text | None = None
    correction: Annotated[Text, Field(min_length=1)] | None = None
    """The right answer, in the user's words."""


class Feedback(OpinionFields):
    """`POST /feedback`: what the answers `msg_ids`, which belong together, were worth.

        {"msg_ids": ["chatcmpl-1", "chatcmpl-2"], "reward": 0.8, "task_id": "task-7", "run_id": "0"}
        {"msg_ids": ["chatcmpl-1"], "rewards": {"task_completion": 0.8, "efficiency": 0.6}}
        {"msg_ids": ["chatcmpl-1"], "rating": 4, "comment": "right, but long", "user": "ana"}
        {"better": "chatcmpl-1", "worse": "chatcmpl-2"}

    One of `reward`, `rewards`, `thumb` and `rating` says how good; `correction` and the pair `better`, `worse` may
    stand alone. A comment goes with one of them. `msg_ids` may be left out only where a pair stands alone.
    """

    msg_ids: Annotated[list[Name], Field(max_length=_MOST_IDS)] = []
    reward: float | None = None
    rewards: Rewards | None = None
    better: Name | None = None
    worse: Name | None = None
    task_id: Name | None = None
    run_id: RunId | None = None
    user: Name | None = None

    @property
    def total(self) -> float | None:
        """The reward: the number, or the sum of the named ones; None if neither is given.

        >>> Feedback(msg_ids=["a"], rewards={"task_completion": 0.5, "efficiency": 0.25}).total
        0.75
        """
        return math.fsum(self.rewards.values()) if self.rewards is not None else self.reward

    @model_validator(mode="after")
    def _says_one_thing(self) -> Feedback:
        scores = [name for name in ("reward", "rewards", "thumb", "rating") if getattr(self, name) is not None]
        pair = [name for name in ("better", "worse") if getattr(self, name) is not None]
        if len(scores) > 1:
            raise ValueError(f"{scores[0]!r} and {scores[1]!r} are given; say once how good the answer was")
        if len(pair) == 1:
            raise ValueError(f"{pair[0]!r} is given alone; a comparison has 'better' and 'worse'")
        if pair and self.better == self.worse:
            raise ValueError("'better' and 'worse' are the same answer")
        if not (scores or pair or self.correction is not None):
            raise ValueError(
                "nothing that can be learned from: give 'reward', 'rewards', 'thumb', 'rating', 'correction', or "
                "'better' and 'worse'"
            )
        if not self.msg_ids and (scores or self.correction is not None):
            raise ValueError("'msg_ids' is missing or empty: the ids of the replies that this is about")
        return self


class UnknownReward(WireError):
    """A named reward to which the service gives no weight."""


class Commit(Body):
    """`POST /commit`: train on what there is. No body and null are as good as `{}`."""

    task_id: Name | None = None
    """Only answers of this task."""
    run_id: RunId | None = None
    time_threshold: Annotated[int, Field(ge=0, lt=2**63)] | None = None
    """Only answers older than so many milliseconds since the epoch, as the Java client's Long."""


class OutOfBounds(WireError):
    """A reward that is not between those that the service takes."""


class Status(Body):
    """The reply to feedback, commits and records. The Java client refuses any further key in one that is a success; an
    error has OpenAI's `error` beside it."""

    status: Literal["success", "error"]
    message: str


Rater = Annotated[Name, Field(max_length=100)]
ShownChoice = Literal["1", "2", "tie", "both_bad", "skip"]


class NextPair(Body):
    """The query of `GET /v1/astune/comparisons`: the next two answers for a rater."""

    rater: Rater
    versions: Text | None = None
    """Two versions, as v7,v9: only answers by these, which are sampled where there are none."""
    task: Name | None = None
    """Only attempts at this task."""


class PairVote(Body):
    """`POST /v1/astune/comparisons`: which of the two answers, in the order in which the rater saw them, is better.

    {"id": 7, "rater": "ana", "choice": "1", "comment": "the other one invents a price"}
    """

    id: int
    rater: Rater
    choice: ShownChoice
    comment: Annotated[Text, Field(max_length=10_000)] | None = None


class CalledFunction(Body):
    name: Text
    arguments: Text
    """The arguments as the model wrote them: JSON, or what it took for JSON."""


class RecordedCall(Body):
    id: Name
    type: Literal["function"] = "function"
    function: CalledFunction


class RecordedMessage(Body):
    """A message in OpenAI's shape."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Content | None = None
    name: Name | None = None
    tool_calls: Annotated[list[RecordedCall], Field(min_length=1)] | None = None
    tool_call_id: Name | None = None

    @model_validator(mode="after")
    def _fits_its_role(self) -> RecordedMessage:
        if self.tool_calls is not None and self.role != "assistant":
            raise ValueError(f"'tool_calls' in a message of role {self.role!r}; only the assistant calls tools")
        if (self.tool_call_id is not None) != (self.role == "tool"):
            raise ValueError("a tool's message has a 'tool_call_id', no other has one")
        if self.content is None and self.tool_calls is None:
            raise ValueError("'content' is missing; only the assistant may do without, where it calls tools")
        return self


class Thought(Body):
    """A thought of the agent before it wrote assistant message number `step`, counted from 1."""

    step: Annotated[int, Field(ge=1)]
    content: Text


class ConversationRecord(Body):
    """`POST /v1/astune/records`: one conversation of an agent with any model.

    Sent again with the same `conversation_id` and `run_id`, it takes the place of what was sent before.
    """

    conversation_id: Name
    messages: Annotated[list[RecordedMessage], Field(min_length=1)]
    tools: list[dict[str, Any]] = []
    """The tools that were offered to the model, in OpenAI's shape."""
    thoughts: list[Thought] = []
    model: Name | None = None
    rewards: Rewards | None = None
    feedback: OpinionFields | None = None
    user: Name | None = None
    task_id: Name | None = None
    run_id: RunId | None = None

    @model_validator(mode="after")
    def _is_whole(self) -> ConversationRecord:
        called: set[str] = set()
        for number, message in enumerate(self.messages):
            if message.tool_call_id is not None and message.tool_call_id not in called:
                raise ValueError(f"messages[{number}].tool_call_id {message.tool_call_id!r} answers no call before it")
            called.update(call.id for call in message.tool_calls or ())
        answers = sum(message.role == "assistant" for message in self.messages)
        for thought in self.thoughts:
            if thought.step > answers:
                raise ValueError(f"a thought of step {thought.step}, but the assistant has {answers} messages")
        return self


_Any = TypeVar("_Any", bound=Body)


def read_wire(kind: type[_Any], value: object) -> _Any:
    """The body `value`, a JSON value, as a `kind`.

    >>> read_wire(Feedback, {"msg_ids": ["a"], "rewrd": 1})
    Traceback (most recent call last):
    astune.online.wire.WireError: 'rewrd' is no key of Feedback. Did you mean 'reward'?

    Raises:
        WireError: it is none; all that is wrong with it, the first key as `param`.
    """
    if value is None and kind is Commit:
        value = {}
    if not isinstance(value, Mapping):
        raise WireError(f"the body must be a JSON object, got {value!r:.200}")
    try:
        return kind.model_validate({key: item for key, item in value.items() if item is not None})
    except ValidationError as error:
        found = error.errors()
        said = "; ".join(dict.fromkeys(_describe(one, kind) for one in found[:_MOST_SAID]))
        said += f"; and {len(found) - _MOST_SAID} more" if len(found) > _MOST_SAID else ""
        raise WireError(said, next((path for one in found if (path := _path(one["loc"]))), "")) from None


def _path(location: Sequence[int | str]) -> str:
    """`messages[2].content`."""
    keys = (part for part in location if part != "[key]")  # pydantic's word for a key that is wrong itself
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part:.80}" for part in keys).removeprefix(".")


def _describe(error: ErrorDetails, kind: type[Body]) -> str:
    path = _path(error["loc"])
    if error["type"] == "extra_forbidden":
        known = set(_keys(kind))
        return f"{path!r} is no key of {kind.__name__}.{nearest(str(error['loc'][-1]), sorted(known))}"
    said = error["msg"].removeprefix("Value error, ")
    if error["type"] == "missing":
        return f"{path!r} is missing"
    if error["type"] == "value_error":
        return f"{path}: {said}" if path else said
    return f"{path!r}: {said[:1].lower()}{said[1:]}, got {error['input']!r:.200}"


def _keys(kind: type[Body]) -> Iterator[str]:
    """Keys of the body and of the bodies in it, for hints."""
    yield from kind.model_fields
    if kind is ConversationRecord:
        for part in (RecordedMessage, RecordedCall, CalledFunction, Thought, OpinionFields):
            yield from part.model_fields

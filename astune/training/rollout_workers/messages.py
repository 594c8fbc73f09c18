"""What the engine's process and a worker tell each other, and how an episode crosses the border."""

from __future__ import annotations

import asyncio
import io
import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from astune import errors
from astune.config.schema import AstuneConfig
from astune.context_tracker.prompt.chat_format import ChatFormat
from astune.errors import PolicyError, WorkflowError, name_error
from astune.rollout.rounds import Ticket
from astune.rollout.setup import Attempt
from astune.ropes import Messages, Rope
from astune.token_ids import TokenIds
from astune.types import Episode, EpisodeError, Generation, Sampling, StopReason


@dataclass(frozen=True)
class Start:
    """First of all: what to make the workflow's parts from. `levels` are those of loggers by name."""

    config: AstuneConfig
    chat_format: ChatFormat
    context_length: int
    import_path: list[str]
    levels: Mapping[str, int]


@dataclass(frozen=True)
class EngineFailure:
    """An exception of the engine, as data."""

    kind: str
    message: str

    @classmethod
    def of(cls, error: Exception) -> EngineFailure:
        """Keep the class of an error that ASTune tells apart."""
        if type(error).__module__ == errors.__name__:
            return cls(type(error).__name__, str(error))
        return cls(PolicyError.__name__, name_error(error))

    def make_error(self) -> Exception:
        error: Exception = getattr(errors, self.kind)(self.message)
        return error


@dataclass(frozen=True)
class Work:
    """New attempts and answers to calls, by their numbers, and the message's ticket of `Rounds`: there is a reply with
    it when every agent waits again. None if nobody keeps rounds."""

    ticket: Ticket | None
    attempts: tuple[tuple[int, Attempt], ...]
    answers: tuple[tuple[int, Generation | EngineFailure], ...]


@dataclass(frozen=True)
class StopAttempt:
    """Cancel an attempt. Its end is told as of any other."""

    attempt: int


@dataclass(frozen=True)
class CutOff:
    """End an attempt that is late for its step, with what it got to."""

    attempt: int


@dataclass(frozen=True)
class Leave:
    """Tear the workflow down and end."""


@dataclass(frozen=True)
class Ready:
    """The workflow is set up, or `error` says why it is not."""

    error: str = ""


@dataclass(frozen=True)
class ModelCall:
    """A call to the policy, `prompt` as packed token ids."""

    number: int
    prompt: bytes
    sampling: Sampling


@dataclass(frozen=True)
class WorkerReply:
    """What agents did: on their own, or all that came of the message with that ticket. A cancelled episode has no data,
    one that met a fault of ASTune's has that."""

    ticket: Ticket | None
    calls: tuple[ModelCall, ...]
    given_up: tuple[int, ...]
    ended: tuple[tuple[int, bytes | EngineFailure | None], ...]


@dataclass(frozen=True)
class LogLine:
    """A log record, its text made."""

    record: Mapping[str, Any]


@dataclass(frozen=True)
class Noted:
    """A warning that is given once per run."""

    subject: str
    text: str


@dataclass(frozen=True)
class Printed:
    """A line that the user's code printed."""

    line: str
    to_stderr: bool


ToWorker: TypeAlias = Start | Work | StopAttempt | CutOff | Leave
Said: TypeAlias = LogLine | Noted | Printed
FromWorker: TypeAlias = Ready | WorkerReply | Said
Send: TypeAlias = Callable[[FromWorker], None]
HEAD = 4
"""Bytes in front of each message that say how long it is."""


def frame(message: ToWorker | FromWorker) -> bytes:
    """Write a message as it goes into a pipe."""
    data = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
    return len(data).to_bytes(HEAD, "big") + data


class FrameReader(asyncio.Protocol):
    """Gives the messages that come through a pipe to `receive`, one by one, and calls `close` when it is closed."""

    def __init__(self, receive: Callable[[Any], None], close: Callable[[], None] = lambda: None) -> None:
        self._receive, self._close = receive, close
        self._unread = bytearray()

    def data_received(self, data: bytes) -> None:
        self._unread += data
        found, place = [], 0
        while len(self._unread) - place >= HEAD:
            end = place + HEAD + int.from_bytes(self._unread[place : place + HEAD], "big")
            if len(self._unread) < end:
                break
            found.append(pickle.loads(memoryview(self._unread)[place + HEAD : end].tobytes()))
            place = end
        del self._unread[:place]
        for message in found:
            self._receive(message)

    def connection_lost(self, exc: Exception | None) -> None:
        self._close()


def pack_episode(episode: Episode) -> bytes:
    """Pack the episode, with token ids and messages that share what they extend, as they do in memory. Raises whatever
    the answer of a workflow raises that cannot be pickled."""
    links: dict[int, Rope[Any]] = {}
    for turn in episode.turns:
        for rope in (TokenIds.of(turn.prompt_ids), Messages.of(turn.messages)):
            for link, _ in rope.links():
                if id(link) in links:
                    break
                links[id(link)] = link
    written = io.BytesIO()
    # The shorter ones first, so that none is met within another, however many turns there are.
    _EpisodePickler(written, pickle.HIGHEST_PROTOCOL).dump((sorted(links.values(), key=len), episode))
    return written.getvalue()


def unpack_episode(data: bytes) -> Episode:
    _, episode = pickle.loads(data)
    assert isinstance(episode, Episode)
    return episode


def read_episode(data: bytes, attempt: Attempt) -> Episode:
    """The episode as it was packed where it was played. One whose answer cannot be read here has failed."""
    try:
        return unpack_episode(data)
    except Exception as error:
        message = (
            "the workflow's answer cannot be read where it is judged: "
            f"{name_error(error)}; with astune.rollout.workers its class must be one that can be imported"
        )
        return make_unplayed(attempt, EpisodeError("workflow", WorkflowError.__name__, message))


def make_unplayed(attempt: Attempt, error: EpisodeError) -> Episode:
    """Make the episode of an attempt of which nothing came back."""
    return Episode(attempt.episode_id, attempt.task, (), (), StopReason.ERROR, error=error)


class _EpisodePickler(pickle.Pickler):
    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, Rope):
            return type(value).make, (value.own, value.before)
        return NotImplemented

"""The steps of a method of learning that plays no episodes and reads examples."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from astune.algorithm.method import Method, method_of
from astune.config.schema import AstuneConfig
from astune.context_tracker.prompt.chat_format import ChatFormat
from astune.errors import PluginError, TaskError, WorkflowError
from astune.examples.conversation import conversation_rows, is_learned
from astune.examples.episodes import JudgedAttempts
from astune.examples.example import TrainingExample
from astune.examples.fields import check_names, conversation, tools_of
from astune.monitor.episodes import EpisodeRecord
from astune.types import Sample, Timeline

Seen = Callable[[str, Sequence[Mapping[str, Any]], Sequence[Mapping[str, Any]]], None]
"""Is told of each line that is read: its place, its messages up to an answer, and its tools."""


class UnwritableExample(Exception):
    """Raised for a line that is right, and that this model's template cannot write."""

    def __init__(self, cause: str, detail: str) -> None:
        super().__init__(detail)
        self.cause = cause


@dataclass(frozen=True)
class ExampleLine:
    """The fields of a line. `place` is `file:line`; every error begins with it."""

    place: str
    row: Mapping[str, Any]
    chat_format: ChatFormat
    seen: Seen | None = None

    def check_names(self, *known: str) -> None:
        """Raises TaskError where a field of `known`, all of which are needed, is missing, or there is another beside
        `tools`."""
        check_names(self.row, known, self.place)

    def answers(self, name: str) -> tuple[Timeline, ...]:
        """The rows of the conversation in field `name`, of which every answer is learned."""
        return self._rows(name, conversation(self.row, name, self.place), 0)

    def answer(self, name: str) -> tuple[Timeline, ...]:
        """The rows of the answer in field `name`, which goes on from the conversation in `messages`."""
        context = conversation(self.row, "messages", self.place)
        return self._rows(name, [*context, *conversation(self.row, name, self.place)], len(context))

    def _rows(self, name: str, messages: Sequence[Mapping[str, Any]], start: int) -> tuple[Timeline, ...]:
        tools = tools_of(self.row, self.place)
        if not any(map(is_learned, messages[start:])):
            is_said = any(message["role"] == "assistant" for message in messages[start:])
            missing = "no message of role 'assistant' has a weight" if is_said else "no message of role 'assistant'"
            raise TaskError(f"{self.place}: {name}: {missing}, so there is nothing to learn")
        if self.seen is not None:
            self.seen(self.place, messages, tools)
        try:
            return conversation_rows(self.chat_format, messages, tools, start)
        except WorkflowError as error:
            raise UnwritableExample("that the model's chat template cannot write", f"{name}: {error}") from error


class ExampleMethod(Method, ABC):
    """A method that learns from the file `astune.trainer.examples`. A line of it is an example in the method's own
    form, or an episode that a run recorded."""

    plays = False
    loss = "likelihood"

    @abstractmethod
    def read_line(self, line: ExampleLine) -> list[TrainingExample]:
        """Read a line that is no episode. Raises TaskError for one that is wrong."""

    @abstractmethod
    def read_episode(self, record: EpisodeRecord, place: str, attempts: JudgedAttempts) -> Iterator[TrainingExample]:
        """Read a recorded episode, or let `attempts` remember it until all are read."""

    def read_attempts(self, attempts: JudgedAttempts) -> Iterator[TrainingExample]:
        """Make examples of everything that `attempts` remembers."""
        yield from ()

    @abstractmethod
    def samples(self, examples: Sequence[TrainingExample], config: AstuneConfig) -> list[Sample]:
        """Make the samples of a step that learns from `examples`."""


def example_method_of(config: AstuneConfig) -> ExampleMethod:
    """The method of a configuration. Raises PluginError for one that reads no examples."""
    found = method_of(config.algorithm)
    if not isinstance(found, ExampleMethod):
        raise PluginError(
            f"method {config.algorithm.method!r} reads no examples: it does not derive from "
            "astune.examples.method.ExampleMethod"
        )
    return found

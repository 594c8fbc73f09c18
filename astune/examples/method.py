"""The steps of a method of learning that plays no episodes and reads examples."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from astune.algorithm.method import Method, method_of
from astune.config.schema import AstuneConfig
from astune.context_tracker.prompt.chat_format import ChatFormat
from astune.errors import PluginError, TaskError, WorkflowError, nearest
from astune.examples.conversation import conversation_rows, is_learned
from astune.examples.episodes import JudgedAttempts
from astune.examples.example import TrainingExample
from astune.monitor.episodes import EpisodeRecord
from astune.support.file_kinds import instead, kind_of
from astune.types import Sample, Timeline

ROLES = ("system", "developer", "user", "assistant", "tool")
BESIDE = ("tools", "lineage")
"""What may be there of any example: the tools that the model is offered, and where the example came from."""
Message = Mapping[str, Any]
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
        """Raises TaskError where a field of `known`, all of which are needed, is missing, or there is another that is
        not of `BESIDE`."""
        row, kind = self.row, kind_of(self.row)
        if kind is not None and row.keys() - {*BESIDE} != {*known}:
            raise TaskError(f"{self.place}: {instead(kind, 'examples with ' + ', '.join(known))}")
        there = (*known, *BESIDE)
        for name in row:
            if name not in there:
                hint = f"{nearest(name, there)} There are: {', '.join(there)}"
                raise TaskError(f"{self.place}: unknown field {name!r}.{hint}")
        for name in known:
            if name not in row:
                raise TaskError(f"{self.place}: no field {name!r}; there are: {', '.join(row) or 'none'}")

    def answers(self, name: str) -> tuple[Timeline, ...]:
        """The rows of the conversation in field `name`, of which every answer is learned."""
        return self._rows(name, self._conversation(name), 0)

    def answer(self, name: str) -> tuple[Timeline, ...]:
        """The rows of the answer in field `name`, which goes on from the conversation in `messages`."""
        context = self._conversation("messages")
        return self._rows(name, [*context, *self._conversation(name)], len(context))

    def _rows(self, name: str, messages: Sequence[Mapping[str, Any]], start: int) -> tuple[Timeline, ...]:
        tools = self._tools()
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

    def _conversation(self, name: str) -> list[Message]:
        """The messages of field `name`, in OpenAI's shape; a single message may stand without a list."""
        value = self.row[name]
        messages = [value] if isinstance(value, dict) and name != "messages" else value
        if not isinstance(messages, list) or not messages:
            raise TaskError(f"{self.place}: {name}: expected a list of messages, got {value!r:.60}")
        for number, message in enumerate(messages):
            _check_message(message, f"{self.place}: {name}[{number}]")
        return messages

    def _tools(self) -> list[Message]:
        """The tools that the model is offered, in OpenAI's shape; none where there is no such field."""
        tools = self.row.get("tools") or []
        if not isinstance(tools, list):
            raise TaskError(f"{self.place}: tools: expected a list, got {tools!r:.60}")
        for number, tool in enumerate(tools):
            function = tool.get("function") if isinstance(tool, dict) else None
            if not isinstance(function, dict) or "name" not in function:
                expected = '{"type": "function", "function": {"name": ..., ...}}'
                raise TaskError(f"{self.place}: tools[{number}]: expected {expected}, got {tool!r:.60}")
        return tools


def _check_message(message: Any, place: str) -> None:
    if not isinstance(message, dict):
        raise TaskError(f'{place}: expected {{"role": ..., "content": ...}}, got {message!r:.60}')
    role, content = message.get("role"), message.get("content")
    if role not in ROLES:
        raise TaskError(f"{place}.role: expected one of {', '.join(ROLES)}, got {role!r}.{nearest(str(role), ROLES)}")
    if "weight" in message and (role != "assistant" or message["weight"] not in (0, 1)):
        raise TaskError(
            f"{place}.weight: expected 0 or 1, of the assistant's messages alone, got {message['weight']!r}"
        )
    calls = message.get("tool_calls") or []
    if not isinstance(content, str | list | None) or (content is None and not calls and "content" not in message):
        raise TaskError(f"{place}.content: expected text or a list of text parts, got {content!r:.60}")
    for number, call in enumerate(calls if isinstance(calls, list) else [calls]):
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str) or "arguments" not in function:
            raise TaskError(
                f'{place}.tool_calls[{number}]: expected {{"function": {{"name": ..., "arguments": "<JSON>"}}}}, '
                f"got {call!r:.60}"
            )


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

"""The base of all answer formats: how a family of models shows reasoning, calls tools, and ends an answer."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from astune.context_tracker.prompt.tool_calls import Found, ParsedMessage, Tools, WrittenCall, take_out
from astune.errors import WorkflowError


@dataclass(frozen=True)
class ReasoningMarks:
    """The texts around reasoning. `empty_rest` is what follows `opening` in a block that holds none."""

    opening: str
    closing: str
    empty_rest: str


THINK = ReasoningMarks("<think>", "</think>", "\n</think>\n\n")


class AnswerFormat(ABC):
    """One way to write an answer. A subclass says what differs; it holds no state.

    Reading takes out what is well-formed and leaves everything else in the content: nothing is guessed or lost.
    """

    name: ClassVar[str]
    """The value of `astune.model.tool_call_format`."""
    reasoning: ClassVar[tuple[ReasoningMarks, ...]] = (THINK,)
    stops: ClassVar[tuple[str, ...]] = ()
    """Special tokens that end an answer, beside the template's closing token and the model's end-of-text tokens."""
    next_openings: ClassVar[tuple[str, ...]] = ()
    """Special tokens that open the next message right where an answer ends."""
    closing_pattern: ClassVar[str] = ""
    """Regular expression of further ends of an answer in a rendering."""
    call_marks: ClassVar[tuple[str, ...]] = ()
    """Texts whose presence in an answer says that the model meant to call a tool."""
    text_start: ClassVar[str] = ""
    """The text that an answer in plain text begins with."""
    signs: ClassVar[tuple[str, ...]] = ()
    """Texts in a prompt that offers tools, or special tokens of a tokenizer, that show that the model writes calls this
    way. They count only for a template that writes no calls itself, and for a format with `write_calls`."""

    @abstractmethod
    def call_start(self, tool: str | None) -> str:
        """The text that a call begins with: up to the arguments of `tool`, or up to the name if that is None.

        Without the space before the arguments, which is part of their first token (Qwen writes ` {"` as one).
        """

    @abstractmethod
    def read(self, text: str, tools: Tools | None = None, opened: ReasoningMarks | None = None) -> ParsedMessage:
        """Take an answer apart. `opened` are the marks that the prompt has already opened.

        With no tools offered (an empty sequence, not None), what looks like a call is content.
        """

    def write_calls(self, calls: Sequence[WrittenCall]) -> str | None:
        """The calls as text, for templates that write none and leave that to whoever sends the message; None for a
        family that has no such template."""
        return None

    def find_opened(self, prompt: str) -> ReasoningMarks | None:
        """The marks that a prompt ends inside of, right after opening them."""
        end = prompt.rstrip()
        return next((marks for marks in self.reasoning if end.endswith(marks.opening)), None)

    def for_template(self, message: Mapping[str, Any]) -> Mapping[str, Any]:
        """The message as this family's templates can write it; raises WorkflowError if they cannot."""
        return message


class TextFormat(AnswerFormat):
    """An answer is reasoning, if there is any, and then text with calls in it."""

    @abstractmethod
    def find_calls(self, text: str, tools: Tools) -> Iterable[Found]:
        """The well-formed calls in the text, in their order."""

    def read(self, text: str, tools: Tools | None = None, opened: ReasoningMarks | None = None) -> ParsedMessage:
        reasoning, rest = split_reasoning(text, self.reasoning, opened)
        may_call = tools is None or len(tools) > 0
        content, calls = take_out(rest, self.find_calls(rest, tools or ()) if may_call else ())
        return ParsedMessage(content or None, reasoning, calls)


class MarkedCalls(TextFormat):
    """A mark says where calls begin, and what they are does not depend on the tools."""

    opening: re.Pattern[str]

    @abstractmethod
    def read_calls(self, text: str, mark: re.Match[str]) -> tuple[int, Sequence[WrittenCall]] | None:
        """The end of what begins with a mark, and its calls; None if it is malformed."""

    def find_calls(self, text: str, tools: Tools) -> Iterator[Found]:
        for mark in self.opening.finditer(text):
            read = self.read_calls(text, mark)
            if read is not None:
                yield mark.start(), read[0], tuple(read[1])


def split_reasoning(
    text: str, marks: Sequence[ReasoningMarks] = (THINK,), opened: ReasoningMarks | None = None
) -> tuple[str | None, str]:
    """The reasoning and the text after it. `opened` says that the prompt already ends inside such marks.

    >>> split_reasoning("<think>\\nHm.\\n</think>\\n\\nYes.")
    ('Hm.', 'Yes.')
    """
    start = text.lstrip()
    written = next((mark for mark in marks if start.startswith(mark.opening)), None)
    mark = written or opened
    if mark is None:
        return None, text
    inside = text if written is None else start.removeprefix(written.opening)
    reasoning, _, after = inside.partition(mark.closing)
    return reasoning.strip("\n"), after.lstrip("\n")


def any_of(tokens: Sequence[str]) -> str:
    """A regular expression that matches each of the tokens; one that matches nothing if there are none."""
    return "|".join(map(re.escape, sorted(tokens, key=len, reverse=True))) or r"(?!)"


class Plain(TextFormat):
    """No call is read."""

    name = "none"

    def find_calls(self, text: str, tools: Tools) -> Iterable[Found]:
        return ()

    def call_start(self, tool: str | None) -> str:
        raise WorkflowError(
            "the model cannot be made to call a tool: how it writes calls is not known. Set "
            "astune.model.tool_call_format if its answers follow one of the known formats"
        )

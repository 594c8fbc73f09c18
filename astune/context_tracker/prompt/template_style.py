"""Find out by trying in what shape a chat template takes messages, and how it writes a call of a tool.

Templates differ in what they take, and writing the wrong thing does not always fail: GLM's writes "None" for a
content that is none, DeepSeek's adds the arguments to a string. Nor does a template's source tell which calls it
writes: many teach one notation and write another. Many know no `developer` message and write nothing for it; some write
system messages at the start only, or only the last of them. Some refuse answers with calls that were sampled, or lose
the calls without a word: Mistral's refuse ids that are not of nine characters, its oldest text beside a call, R1's
distills lose calls beside text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from typing import Any, Protocol

from astune.context_tracker.prompt.answer_formats import AnswerFormat
from astune.context_tracker.prompt.messages import SYSTEM_ROLES, Message, for_template, parse_arguments, same_arguments
from astune.context_tracker.prompt.tool_calls import ParsedMessage, WrittenCall
from astune.errors import WorkflowError

NAME, VALUE = "look_up_probe", "VALUE-PROBE"
TOOL: Message = {
    "type": "function",
    "function": {
        "name": NAME,
        "description": "Look something up.",
        "parameters": {
            "type": "object",
            "properties": {
                "word": {"type": "string", "description": "A word."},
                "count": {"type": "integer", "description": "A number."},
                "more": {"type": "object", "description": "More.", "additionalProperties": {"type": "string"}},
            },
            "required": ["word", "count"],
        },
    },
}
_ARGUMENTS = {"word": f'{VALUE} "ü"', "count": 3, "more": {"key": ["value"]}}
QUESTION: Message = {"role": "user", "content": "QUESTION-PROBE"}
CALL: Message = {
    "role": "assistant",
    "content": None,
    "tool_calls": [
        {
            "id": "probe0000",
            "type": "function",
            "function": {"name": NAME, "arguments": json.dumps(_ARGUMENTS, ensure_ascii=False)},
        }
    ],
}
_PREPARED_CALL = for_template(CALL)
RESULT: Message = {"role": "tool", "tool_call_id": "probe0000", "name": NAME, "content": "RESULT-PROBE"}
_GOES_ON = (RESULT, {"role": "assistant", "content": "ANSWER-PROBE"}, QUESTION)


class Render(Protocol):
    """A chat template."""

    def __call__(
        self, messages: Sequence[Message], tools: Sequence[Message], *, add_generation_prompt: bool = True
    ) -> str:
        """The conversation; raises WorkflowError where the template refuses it."""


@dataclass(frozen=True)
class CallStyle:
    """`arguments_as_text`: JSON text, not an object. `empty_content`: no content is "", not None. `writer`: what writes
    calls into the content, for a template that writes none itself."""

    arguments_as_text: bool = False
    empty_content: bool = False
    writer: AnswerFormat | None = None

    def apply(self, prepared: Message, sent: Message) -> Message:
        """`prepared`, which `messages.for_template` made of `sent`, in this style. Text stays as it was sent."""
        if not prepared.get("tool_calls"):
            return prepared
        if self.writer is not None:
            parts = (prepared["content"], self.writer.write_calls([_read_call(call) for call in sent["tool_calls"]]))
            others = {key: value for key, value in prepared.items() if key != "tool_calls"}
            return {**others, "content": "\n".join(part for part in parts if part)}
        content = prepared["content"]
        return {
            **prepared,
            "content": "" if content is None and self.empty_content else content,
            "tool_calls": [_with_text(call) for call in sent["tool_calls"]]
            if self.arguments_as_text
            else prepared["tool_calls"],
        }


def find_call_style(
    render: Render, formats: Iterable[AnswerFormat], *, tokens: Sequence[str], closings: Sequence[str | None]
) -> tuple[CallStyle, AnswerFormat | None]:
    """Find the style in which the template writes a call that one of `formats` reads, and that format.

    Of several styles one in which a conversation may go on after the call, of several formats the one whose
    `call_start` is written. Where no format reads it: the first style in which the template writes a call at all, and
    None. Where it writes none in any style, the calls may be part of the content (`CallStyle.writer`): the prompt, or
    `tokens`, the tokenizer's special tokens, have to show which format's. `closings` are tokens that may end an answer
    beside a format's own.
    """
    formats = [*formats]
    styles = [CallStyle(text, empty) for text in (False, True) for empty in (False, True)]
    prompt = _try(render, [QUESTION])
    if prompt is None:
        return styles[0], None
    found: list[tuple[CallStyle, AnswerFormat | None]] = []
    for style in styles:
        message = style.apply(_PREPARED_CALL, CALL)
        written = _probe(render, message, prompt, closings)
        if written is None or not written.shows_call():
            continue
        readers = [form for form in formats if written.is_read_by(form)]
        best = max(readers, key=lambda form: _bare(form.call_start(NAME)) in _bare(written.text), default=None)
        if best is not None and "None" not in (_try(render, [QUESTION, message, *_GOES_ON]) or "None"):
            return style, best
        found.append((style, best))
    if found:
        return next((pair for pair in found if pair[1] is not None), found[0])
    return _find_writer(render, formats, prompt, tokens, closings) or (styles[0], None)


def _find_writer(
    render: Render, formats: Sequence[AnswerFormat], prompt: str, tokens: Sequence[str], closings: Sequence[str | None]
) -> tuple[CallStyle, AnswerFormat] | None:
    if NAME not in prompt:
        return None
    shown = (_bare(prompt), *tokens)
    for form in formats:
        # Where only one is asked about, it was set: nothing has to show that it is this one.
        taught = len(formats) == 1 or any(_bare(sign) in place for sign in form.signs for place in shown)
        if taught and form.write_calls([]) is not None:
            style = CallStyle(writer=form)
            written = _probe(render, style.apply(_PREPARED_CALL, CALL), prompt, closings)
            if written is not None and written.is_read_by(form):
                return style, form
    return None


@dataclass(frozen=True)
class WrittenProbe:
    """The text that a template wrote for `CALL`. `follows`: it goes on from `prompt`; else it begins after the
    question, and stands among other things."""

    text: str
    prompt: str
    follows: bool
    closings: Sequence[str | None] = ()

    @classmethod
    def of(cls, written: str, prompt: str, closings: Sequence[str | None] = ()) -> WrittenProbe:
        follows = written.startswith(prompt)
        text = written[len(prompt) :] if follows else written.rpartition(QUESTION["content"])[2]
        return cls(text, prompt, follows, closings)

    def shows_call(self) -> bool:
        """True if the call is written, and no None beside it."""
        return NAME in self.text and VALUE in self.text and "None" not in self.text

    def is_read_by(self, form: AnswerFormat) -> bool:
        """True if the format reads the call: its name and all arguments."""
        text = self.text
        if self.follows:
            ends = (text.find(mark) for mark in (*form.stops, *form.next_openings, *self.closings) if mark)
            text = text[: min((end for end in ends if end >= 0), default=len(text))]
        calls = form.read(text, [TOOL], form.find_opened(self.prompt) if self.follows else None).tool_calls
        wanted = CALL["tool_calls"][0]["function"]["arguments"]
        return len(calls) == 1 and calls[0].name == NAME and same_arguments(calls[0].arguments, wanted)


def _probe(render: Render, message: Message, prompt: str, closings: Sequence[str | None]) -> WrittenProbe | None:
    written = _try(render, [QUESTION, message], add_generation_prompt=False)
    return None if written is None else WrittenProbe.of(written, prompt, closings)


def _try(render: Render, messages: Sequence[Message], *, add_generation_prompt: bool = True) -> str | None:
    try:
        return render(messages, [TOOL], add_generation_prompt=add_generation_prompt)
    except WorkflowError:
        return None


def _bare(text: str) -> str:
    return "".join(text.split())


def _with_text(call: Message) -> Message:
    function = call["function"]
    arguments = function.get("arguments")
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return {**call, "function": {**function, "arguments": text}}


def _read_call(call: Message) -> WrittenCall:
    """The call as a model writes it. Raises WorkflowError where its arguments are no object."""
    function: Any = _with_text(call)["function"]
    if parse_arguments(function["arguments"]) is None:
        raise WorkflowError(
            f"the arguments of a call of {function['name']!r} are not the JSON text of an object: "
            f"{function['arguments'][:60]!r}. The chat template writes no calls, so they must be written for it"
        )
    return WrittenCall(function["name"], function["arguments"], call.get("id"))


@dataclass(frozen=True)
class SystemStyle:
    """`developer_as_system`: a developer message is a system message. `joined`: all of them are one message at the
    start, with an empty line between, as mistral-common and DeepSeek's templates join them.

    >>> style = SystemStyle(developer_as_system=True)
    >>> style.apply([{"role": "developer", "content": "Be brief."}])
    [{'role': 'system', 'content': 'Be brief.'}]
    """

    developer_as_system: bool = False
    joined: bool = False

    def apply(self, messages: Sequence[Message]) -> Sequence[Message]:
        """`messages`, prepared for the template, in this style; those that need no change are the same objects."""
        if self.developer_as_system:
            messages = [
                {**message, "role": "system"} if message.get("role") == "developer" else message for message in messages
            ]
        if not self.joined or all(message.get("role") not in SYSTEM_ROLES for message in messages[1:]):
            return messages
        system = [message for message in messages if message.get("role") in SYSTEM_ROLES]
        text = "\n\n".join(message["content"] for message in system)
        return [
            {**system[0], "content": text},
            *(message for message in messages if message.get("role") not in SYSTEM_ROLES),
        ]


def find_system_style(render: Render) -> SystemStyle:
    """The style with the fewest changes in which the template writes every message of instructions.

    A template that does so in no style is given the one that fixes most; what it still drops is found in the prompt.
    """
    as_system = not _writes(render, SystemStyle(), ["developer"]) and _writes(render, SystemStyle(), ["system"])
    plain = SystemStyle(developer_as_system=as_system)
    roles = ["system"] if as_system else [role for role in SYSTEM_ROLES if _writes(render, plain, [role])]
    pairs = [list(pair) for pair in product(roles, repeat=2)]
    if all(_writes(render, plain, pair) for pair in pairs):
        return plain
    joined = SystemStyle(developer_as_system=as_system, joined=True)
    return joined if all(_writes(render, joined, pair) for pair in pairs) else plain


def _writes(render: Render, style: SystemStyle, roles: Sequence[str]) -> bool:
    """True if the template writes messages of these roles at the start, and one more of the last role later."""
    said = [f"INSTRUCTION-PROBE-{place}" for place in range(len(roles) + 1)]
    start: list[dict[str, Any]] = [{"role": role, "content": text} for role, text in zip(roles, said, strict=False)]
    exchange = [{"role": "user", "content": "?"}, {"role": "assistant", "content": "!"}]
    later = [{"role": roles[-1], "content": said[-1]}] if len(roles) > 1 else []
    conversation = [*start, *exchange, *later, {"role": "user", "content": "?"}]
    try:
        written = render(style.apply(conversation), ())
    except WorkflowError:
        return False
    return all(text in written for text in said[: len(start) + len(later)])


RenderHistory = Callable[[Sequence[Mapping[str, Any]]], str]
Shape = tuple[bool, bool, tuple[str, ...]]
"""A flag for text, a flag for reasoning, and the ids of the calls with `a` for letters and `0` for digits."""
_OUR_ID = "a00000000"
_KNOWN_SHAPES = 1024


class AnswersTakenBack:
    """Finds out which answers with tool calls the template writes back as history. `render` writes a conversation and
    raises WorkflowError where the template refuses it."""

    def __init__(self, render: RenderHistory) -> None:
        self._render = render
        self._takes = lru_cache(_KNOWN_SHAPES)(self._try)

    def take(self, answer: ParsedMessage) -> bool:
        """True if the template writes an answer like this one with its calls, or it has none. Also True if it writes no
        call at all, as then nothing can be told of the answer."""
        if not answer.tool_calls:
            return True
        ids = tuple(_OUR_ID if call.call_id is None else _shape_of(call.call_id) for call in answer.tool_calls)
        return self._takes((bool(answer.content), bool(answer.reasoning), ids)) or not self._takes(
            (False, False, (_OUR_ID,))
        )

    def _try(self, shape: Shape) -> bool:
        has_text, has_reasoning, ids = shape
        names = [f"call_probe_{number}." for number in range(len(ids))]
        message: dict[str, Any] = {"role": "assistant", "content": "Text." if has_text else None}
        if has_reasoning:
            message["reasoning_content"] = "Reasoning."
        message["tool_calls"] = [
            {"id": call_id, "type": "function", "function": {"name": name, "arguments": '{"x": "1"}'}}
            for call_id, name in zip(ids, names, strict=True)
        ]
        try:
            written = self._render([{"role": "user", "content": "?"}, message])
        except WorkflowError:
            return False
        places = [written.find(name) for name in names]
        return -1 not in places and places == sorted(places)


def _shape_of(call_id: str) -> str:
    return re.sub("[0-9]", "0", re.sub("[A-Za-z]", "a", call_id))

"""Find what messages and tools say and a prompt does not: what the model would never see.

Chat templates drop what they do not know, and no error tells. Text counts as written where it stands as it is, escaped
as in JSON, Python or HTML, or in other white space.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from astune.context_tracker.prompt.messages import SYSTEM_ROLES, Message, content_text, parse_arguments

_NOT_COUNTED = re.compile(r"\s+|/(?:no_)?think")
"""Besides white space the words that switch reasoning, which templates take out of texts."""


def find_unsaid(
    written: str,
    messages: Sequence[Message],
    tools: Sequence[Message] = (),
    *,
    places: Iterable[int] | None = None,
    reasoning_ends: Sequence[str] = (),
) -> Iterator[str]:
    """Yield a sentence for each part of `messages` and `tools` that is not in the text `written`.

    `places` are the indices of the messages to look for, all if None. What comes before one of `reasoning_ends` in an
    assistant message is reasoning, which templates may leave out; some know other marks of it than these.

    >>> list(find_unsaid("<user>Hi", [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]))
    ["drops messages[0] (system): 'Be brief.'. Send it in the first system message, or in a user message"]
    """
    text = _Text(written)
    looked_for = range(len(messages)) if places is None else sorted(places)
    said = {place: _text_of(messages[place], reasoning_ends) for place in looked_for}
    for place in text.find_missing(said):
        message = messages[place]
        if message.get("role") == "assistant" and "\n" in said[place] and text.has(said[place].splitlines()[-1]):
            continue  # what went before was reasoning to the template
        shown = said[place] if len(said[place]) <= 60 else f"{said[place][:60]}..."
        yield f"drops messages[{place}] ({message.get('role')}): {shown!r}. {_advise(message)}"
    for place in looked_for:
        for call in messages[place].get("tool_calls") or ():
            yield from text.find_missing_part("call", call["function"], _parts_of_call, f" in messages[{place}]")
    for tool in tools:
        yield from text.find_missing_part("tool", tool["function"], _parts_of_tool)


_ADVICE_FOR_TOOLS = "Use a model that was made for tools, or its template for tools"


def _advise(message: Message) -> str:
    if message.get("role") in SYSTEM_ROLES:
        return "Send it in the first system message, or in a user message"
    if message.get("tool_calls"):
        return "Send the text beside its tool calls in an assistant message of its own before them"
    return _ADVICE_FOR_TOOLS if message.get("role") == "tool" else "Send it in a message of another role"


def _text_of(message: Message, reasoning_ends: Sequence[str]) -> str:
    text = content_text(message)
    if message.get("role") == "assistant":
        for end in reasoning_ends:
            text = text.rpartition(end)[2]
    return text.strip()


def _parts_of_call(function: Mapping[str, Any]) -> Iterator[str]:
    """The name, and of the arguments all keys and texts; numbers may be laid out anew."""
    yield function.get("name") or ""
    arguments = function.get("arguments")
    read = arguments if isinstance(arguments, Mapping) else parse_arguments(arguments)
    yield from (arguments or "",) if read is None and isinstance(arguments, str) else _texts_in(read)


def _texts_in(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield str(key)
            yield from _texts_in(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _texts_in(inner)


def _parts_of_tool(function: Mapping[str, Any]) -> Iterator[str]:
    yield function.get("name") or ""
    yield function.get("description") or ""
    yield from (function.get("parameters") or {}).get("properties") or ()


@dataclass(frozen=True)
class _Text:
    """A text that others are looked for in."""

    text: str

    def find_missing(self, said: Mapping[int, str]) -> list[int]:
        """The keys of the texts that are not there, each in a place of its own.

        In their order they are found in one pass. Where one is not, the longest is looked for first, so that a short
        one that was dropped is not found within a longer one.
        """
        position = 0
        for text in said.values():
            start, stop = self._span(self.text, text, position)
            if start < 0:
                break
            position = stop
        else:
            return []
        left, missing = self.text, []
        for key, text in sorted(said.items(), key=lambda item: -len(item[1])):
            start, stop = self._span(left, text, 0)
            if start >= 0:
                left = f"{left[:start]}\0{left[stop:]}"
            elif not _stands_loosely(text, _loosen(left)):
                missing.append(key)
        return sorted(missing)

    def has(self, text: str) -> bool:
        return self._span(self.text, text, 0)[0] >= 0 or _stands_loosely(text, self._loose)

    def find_missing_part(
        self,
        kind: str,
        function: Mapping[str, Any],
        parts_of: Callable[[Mapping[str, Any]], Iterator[str]],
        where: str = "",
    ) -> Iterator[str]:
        """Yield a sentence if a part of a call or of a tool is not there. Its first part is its name."""
        for part in parts_of(function):
            if not self.has(part):
                name = function.get("name")
                what = f"the {kind} {name!r}" if part == name else f"{part!r:.80} of the {kind} {name!r}"
                yield f"drops {what}{where}. {_ADVICE_FOR_TOOLS}"
                return

    @staticmethod
    def _span(within: str, text: str, start: int) -> tuple[int, int]:
        for form in _forms(text):
            place = within.find(form, start)
            if place >= 0:
                return place, place + len(form)
        return -1, -1

    @cached_property
    def _loose(self) -> str:
        return _loosen(self.text)


def _forms(text: str) -> Iterator[str]:
    """The text as it is, and escaped. All of them are made only where the first are not found."""
    text = text.strip()
    yield text
    yield json.dumps(text, ensure_ascii=False)[1:-1]
    yield json.dumps(text)[1:-1]
    yield repr(text)[1:-1]
    yield html.escape(text)


def _stands_loosely(text: str, loosened: str) -> bool:
    """True if `text` is there in other white space, or line by line with something between."""
    lines = [text, *text.splitlines()] if "\n" in text else [text]
    whole, *each = [any(_loosen(form) in loosened for form in _forms(line)) for line in lines]
    return whole or (bool(each) and all(each))


def _loosen(text: str) -> str:
    return _NOT_COUNTED.sub("", text)

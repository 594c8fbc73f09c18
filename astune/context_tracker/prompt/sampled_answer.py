"""Sampled answers, and where a chat template's text of a conversation still has them as they were sampled."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice

from astune.context_tracker.prompt.chat_format import ChatFormat
from astune.context_tracker.prompt.messages import Message, content_text, same_arguments
from astune.context_tracker.prompt.tool_calls import ParsedMessage
from astune.ropes import Rope
from astune.token_ids import TokenIds

ENDING = 200
"""Characters of a prompt's end that tell where an answer begins, and whether reasoning was opened before it."""
_OPENINGS_TRIED = 4
"""Answers may stand side by side without a message of the agent between them; so many are looked at."""
_CLOSINGS_TRIED = 4
"""An answer may itself hold the text of a closing token; so many are looked at for its end."""
_FIRST_MARK = 0xF0000
"""Marks are characters of a private plane of Unicode, one for each message."""
_MARKS = re.compile("[\U000f0000-\U000ffffd]")


class TextRope(Rope[str]):
    """A text that shares the beginning with the one it goes on from, as `TokenIds` does."""

    __slots__ = ()

    @classmethod
    def of(cls, text: str, known: Iterable[TextRope]) -> TextRope:
        """`text`, sharing the longest beginning that one of the `known` has of it."""
        size, best = 0, None
        for rope in dict.fromkeys(known):
            if best is None or len(rope) > size:
                same = _same_start(str(rope), text)
                size, best = (same, rope) if best is None or same > size else (size, best)
        return cls(text[size:], best.start(size) if best is not None and size else None)

    def __str__(self) -> str:
        return "".join(self.parts())


def _same_start(left: str, right: str) -> int:
    """Count the characters that both begin with, by bisection."""
    if right.startswith(left):  # the usual case
        return len(left)
    low, high = 0, min(len(left), len(right))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if right.startswith(left[low:middle], low) else (low, middle - 1)
    return low


class Beginnings:
    """Tells which texts a rendering begins with. What they share is compared once."""

    def __init__(self, rendering: str) -> None:
        self._rendering = rendering
        self._found: dict[int, bool] = {}

    def has(self, text: TextRope) -> bool:
        links = []
        good = True
        for link, own in text.links():
            if id(link) in self._found:
                good = self._found[id(link)]
                break
            links.append((link, own))
        links.reverse()
        if links and good:
            first, own = links[0]
            if self._rendering.startswith("".join([own for _, own in links]), len(first) - len(own)):
                self._found |= {id(link): True for link, _ in links}
                return True
        for link, own in links:
            good = good and self._rendering.startswith(own, len(link) - len(own))
            self._found[id(link)] = good
        return good


@dataclass(frozen=True, eq=False)
class SampledAnswer:
    """An answer that was sampled: the template's text of its prompt, and the tokens of both.

    `ending` are the last characters of that text. `ids` is the prompt's rope and the sampled ids: what later prompts
    extend. `sampled` are the sampled ids alone, packed: where the rope is cut changes when forests share it.
    `start_ids` are the tokens at the end of the prompt that the answer was made to begin with.
    """

    rendering: TextRope
    ending: str
    tools: tuple[Message, ...]
    ids: TokenIds
    sampled: bytes
    start_ids: tuple[int, ...] = ()

    def answer_ids(self) -> tuple[int, ...]:
        """The forced start and the sampled ids."""
        return (*self.start_ids, *memoryview(self.sampled).cast("i").tolist())


class AnswerText:
    """A sampled answer as text, to compare it with what the template writes. Made when it is needed, not kept."""

    def __init__(self, chat_format: ChatFormat, sampled: SampledAnswer) -> None:
        self._format = chat_format
        self.sampled = sampled
        ids = sampled.answer_ids()
        self.text = chat_format.decode(ids)
        ended = len(ids) > len(sampled.start_ids) and ids[-1] in chat_format.stop_token_ids
        self.stop = chat_format.decode(ids[-1:]) if ended else None
        """The text of the token that ended it, None if it was cut."""
        self._prompt = sampled.ending

    @cached_property
    def said(self) -> ParsedMessage:
        """The parsed answer."""
        return self._parse(self.text.removesuffix(self.stop or ""))

    def _parse(self, text: str) -> ParsedMessage:
        return self._format.parse_text(text, self.sampled.tools, prompt=self._prompt)

    def place_in(self, rendering: str, start: int, stop: int) -> tuple[int, int] | None:
        """Find the answer as it was sampled within `rendering[start:stop]`, the template's text of its message. None if
        it is not there.

        It stands after what it was sampled after, or after something else (a template that ends its prompts with an
        empty block of reasoning has none in the history) but then letter for letter.
        """
        for begin in islice(self._starts_in(rendering, start, stop), _OPENINGS_TRIED):
            end = self.end_in(rendering, begin, stop)
            if end is not None:
                return begin, end
        exact = -1 if self.stop in (None, self.text) else rendering.find(self.text, start, stop)
        return None if exact < 0 else (exact, exact + len(self.text))

    def _starts_in(self, rendering: str, start: int, stop: int) -> Iterator[int]:
        """The places in `rendering[start:stop]` at which an answer may begin: after the text that it was sampled after,
        which is the template's generation prompt, or the prompt's end where a template has none."""
        opening = self._format.generation_prompt
        if opening and self._prompt.endswith(opening):
            place = rendering.find(opening, start, stop)
            while place >= 0:
                yield place + len(opening)
                place = rendering.find(opening, place + 1, stop)
            return
        place = rendering.rfind(self._prompt[-1], start, stop)
        while place >= 0:
            if self._prompt.endswith(rendering[max(start, place + 1 - ENDING) : place + 1]):
                yield place + 1
            place = rendering.rfind(self._prompt[-1], start, place)

    def end_in(self, rendering: str, start: int, stop: int) -> int | None:
        """The end of the answer that `rendering` has at `start`; None if it is not written there as it was sampled.

        Written as sampled is the exact text, or the template's own of it that reads the same: arguments in another
        JSON layout, white space trimmed. The token that ended the answer stands for the template's closing token.
        """
        if rendering.startswith(self.text, start):
            return start + len(self.text)
        search = start
        for _ in range(_CLOSINGS_TRIED):
            found = self._format.find_closing(rendering, search)
            if found is None or found[0] > stop:
                break
            # A closing token may stand in the answer itself, so what is before it has to say all that was sampled.
            place, mark = found
            if self._says_all(self._parse(rendering[start:place])):
                return self._after(place, mark)
            search = place + len(mark)
        return None

    def _says_all(self, written: ParsedMessage) -> bool:
        text_dropped = bool(self.said.tool_calls and self.said.content) and not self._format.writes_text_beside_calls
        return _same(written, self.said, text_dropped=text_dropped)

    def _after(self, place: int, mark: str) -> int | None:
        """The beginning of the text after the answer, which the template ends at `place` with the token `mark`.
        None if the model began another message than the one that follows."""
        opens_next = self._format.next_openings
        if self.stop is None:
            return place
        if self.stop != mark and self.stop in opens_next:
            return None
        return place if self.stop != mark and mark in opens_next else place + len(mark)

    def has_lost_reasoning(self, written: str) -> bool:
        """True if `written`, the template's text in the answer's place, has lost its reasoning."""
        if self.said.reasoning is None:
            return False
        openings = self._format.reasoning_openings
        return self.said.reasoning.strip() not in written or not any(opening in written for opening in openings)


def _same(written: ParsedMessage, sampled: ParsedMessage, *, text_dropped: bool) -> bool:
    """True if the template's text of an answer says what was sampled; an empty reasoning block counts as one.
    `text_dropped`: the template writes no text beside calls. The tokens that were sampled have it."""
    if (written.reasoning is None) != (sampled.reasoning is None) or len(written.tool_calls) != len(sampled.tool_calls):
        return False
    calls = zip(written.tool_calls, sampled.tool_calls, strict=True)
    return (
        ((written.content or "").strip() == (sampled.content or "").strip() or (text_dropped and not written.content))
        and (written.reasoning or "").strip() == (sampled.reasoning or "").strip()
        and all(left.name == right.name and same_arguments(left.arguments, right.arguments) for left, right in calls)
    )


def windows(
    chat_format: ChatFormat, messages: Sequence[Message], tools: Sequence[Message], rendering: str
) -> dict[int, tuple[int, int]]:
    """For each assistant message, the stretch of `rendering` between the texts of the messages around it.

    Found by rendering once more with marks around the text of every user and tool message, or of those that no
    template looks into. Empty where the template does not simply write these texts: then it cannot be said what of the
    rendering is whose.
    """
    for sparing in (False, True):  # some templates look into texts, and write another prompt for one with marks
        marked = [_mark(message, index, sparing) for index, message in enumerate(messages)]
        with_marks = chat_format.render(marked, tools)
        if _MARKS.sub("", with_marks) == rendering:
            break
    else:
        return {}
    places: dict[int, list[int]] = {}
    for count, mark in enumerate(_MARKS.finditer(with_marks)):  # less the marks before it: its place without any
        places.setdefault(ord(mark.group()) - _FIRST_MARK, []).append(mark.start() - count)
    around = {index: found for index, found in places.items() if len(found) == 2}
    stops = _next_ones(range(len(messages) - 1, -1, -1), {i: found[0] for i, found in around.items()}, len(rendering))
    starts = _next_ones(range(len(messages)), {i: found[1] for i, found in around.items()}, 0)
    assistants = [i for i, message in enumerate(messages) if message.get("role") == "assistant"]
    return {i: (starts[i], stops[i]) for i in assistants if starts[i] <= stops[i]}


def _mark(message: Message, index: int, sparing: bool) -> Message:
    """Put marks around the text of a message. White space at its ends stays outside of them, as templates trim it.
    `sparing` leaves out texts that some templates look into (Mistral's at JSON, Qwen's at `<tool_response>`): the
    stretches beside such a text are one."""
    text = content_text(message)
    inner = text.strip()
    looked_into = sparing and (inner.startswith("<tool_response>") or _is_json(inner))
    if message.get("role") not in ("user", "tool") or not inner or looked_into:
        return message
    before, _, after = text.partition(inner)
    mark = chr(_FIRST_MARK + index)
    return {**message, "content": f"{before}{mark}{inner}{mark}{after}"}


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _next_ones(order: Iterable[int], places: Mapping[int, int], default: int) -> dict[int, int]:
    """For every index, the latest place in this order, its own included."""
    found = {}
    for index in order:
        default = places.get(index, default)
        found[index] = default
    return found

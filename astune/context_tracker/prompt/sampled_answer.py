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


class TextRope:
    """A text that shares the beginning with the one it goes on from, as `TokenIds` does."""

    __slots__ = ("before", "own", "start")

    def __init__(self, own: str, before: TextRope | None = None) -> None:
        self.before = before
        self.own = own
        self.start = 0 if before is None else len(before)

    def __len__(self) -> int:
        return self.start + len(self.own)

    def __str__(self) -> str:
        links = []
        link: TextRope | None = self
        while link is not None:
            links.append(link.own)
            link = link.before
        return "".join(reversed(links))

    def tail(self, size: int) -> str:
        """The last `size` characters, or all there are."""
        text, link = self.own, self.before
        while link is not None and len(text) < size:
            text, link = link.own + text, link.before
        return text[-size:]


class Beginnings:
    """Tells which texts a rendering begins with. What they share is compared once."""

    def __init__(self, rendering: str) -> None:
        self._rendering = rendering
        self._found: dict[int, bool] = {}

    def has(self, text: TextRope) -> bool:
        links = []
        link: TextRope | None = text
        while link is not None and id(link) not in self._found:
            links.append(link)
            link = link.before
        links.reverse()
        good = link is None or self._found[id(link)]
        if links and good and self._rendering.startswith("".join([link.own for link in links]), links[0].start):
            self._found |= dict.fromkeys(map(id, links), True)
            return True
        for link in links:
            good = good and self._rendering.startswith(link.own, link.start)
            self._found[id(link)] = good
        return good


@dataclass(frozen=True, eq=False)
class SampledAnswer:
    """An answer that was sampled: the template's text of its prompt, and the tokens of both.

    `ids` is the prompt's rope and the sampled ids: what later prompts extend. `sampled` are the sampled ids alone,
    packed: where the rope is cut changes when forests share it. `start_ids` are the tokens at the end of the prompt
    that the answer was made to begin with.
    """

    rendering: TextRope
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
        self._prompt = sampled.rendering.tail(ENDING)

    @cached_property
    def said(self) -> ParsedMessage:
        """The answer taken apart."""
        return self._parsed(self.text.removesuffix(self.stop or ""))

    def _parsed(self, text: str) -> ParsedMessage:
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
            if _same(self._parsed(rendering[start:place]), self.said):
                return self._after(place, mark)
            search = place + len(mark)
        return None

    def _after(self, place: int, mark: str) -> int | None:
        """The beginning of the text after the answer, which the template ends at `place` with the token `mark`.
        None if the model began another message than the one that follows."""
        opens_next = self._format.next_openings
        if self.stop is None:
            return place
        if self.stop != mark and self.stop in opens_next:
            return None
        return place if self.stop != mark and mark in opens_next else place + len(mark)

    def lost_reasoning(self, written: str) -> bool:
        """Whether `written`, the template's text in the answer's place, has lost its reasoning."""
        if self.said.reasoning is None:
            return False
        openings = self._format.reasoning_openings
        return self.said.reasoning.strip() not in written or not any(opening in written for opening in openings)


def _same(written: ParsedMessage, sampled: ParsedMessage) -> bool:
    """Whether the template's text of an answer says what was sampled; an empty reasoning block counts as one."""
    if (written.reasoning is None) != (sampled.reasoning is None) or len(written.tool_calls) != len(sampled.tool_calls):
        return False
    calls = zip(written.tool_calls, sampled.tool_calls, strict=True)
    return (
        (written.content or "").strip() == (sampled.content or "").strip()
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
        marked = [_marked(message, index, sparing) for index, message in enumerate(messages)]
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


def _marked(message: Message, index: int, sparing: bool) -> Message:
    """White space at the ends stays outside of the marks, where templates trim it. `sparing` leaves text without marks
    that some templates look into (Mistral's at JSON, Qwen's at `<tool_response>`): the stretches beside it are one."""
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
    """For every index the place of the one that came last in this order."""
    found = {}
    for index in order:
        default = places.get(index, default)
        found[index] = default
    return found

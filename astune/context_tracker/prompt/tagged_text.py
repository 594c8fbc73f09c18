"""Calls whose arguments are text between tags, which may itself hold the tags: which of them are the call's own?

    <tool_call>
    <function=write>
    <parameter=text>
    Close it with </parameter> and </function>.         text: what follows is no next argument and no end
    </parameter>
    </function>
    </tool_call>

A closing tag counts if the rest reads as well: an argument that the call has not had, or the end of the call and no
closing tag after that. Of those that count it is the one that matches the opening tag, as a value is most likely whole
(an example of a call), and else the first. At first only tags in a layout that templates write are looked at, so all
that a template writes reads back, unless two calls are the same text for it: then fewest arguments hold tags.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import product, takewhile
from typing import NamedTuple

from astune.context_tracker.prompt.argument_types import ANY, ToolSchema, Types, read_value
from astune.context_tracker.prompt.tool_calls import Found, Tools, make_call, parameters_of

_KINDS = ("start", "argument", "closing", "end", "stray")
_STRING: Types = frozenset({"string"})
_SAID = {"true": _STRING, "false": ANY - _STRING}
_CDATA, _CDATA_END = "<![CDATA[", "]]>"


class TagLayout(NamedTuple):
    """The white space that a template writes `within` the tags, for each `\\s*` of their patterns, at the `edges` of a
    call, after its name and before its end, `between` two arguments, and at least `before` a call. Where white space
    does not tell layouts apart, the pattern has `[\\s]*`."""

    within: str
    edges: str
    between: str
    before: str


LAYOUTS = (TagLayout("\n", "\n", "\n", "\n"), TagLayout("\n", "\n", "\n", ""), TagLayout("", "", "", ""))


class Tag(NamedTuple):
    """One tag of a text; `name` is that of the tool or the argument, `types` are those that it says the value has."""

    kind: str
    start: int
    stop: int
    name: str
    types: Types | None


@dataclass(frozen=True)
class Tags:
    """The tags of a format, as regular expressions; white space may stand between them.

    `start` goes up to and with the name of the tool, which is its group `name`; `argument` up to the value, with the
    group `key`, and with `string` (true or false) where the tag says what the value is, and one that is no string is
    JSON; `closing` ends a value, `end` a call. `stray` are marks that belong to a call and are none of these.
    A template writes one of `layouts`, with `own_lines` a line break around the values, too. With `cdata` a value may
    stand in a CDATA block, which only its own end closes. `apart` may stand between two calls.
    """

    start: str
    argument: str
    closing: str
    end: str
    stray: str
    own_lines: bool = False
    cdata: bool = False
    apart: str = "\n"
    layouts: tuple[TagLayout, ...] = LAYOUTS

    def scan(self, text: str, layout: TagLayout | None = None) -> list[Tag]:
        """The tags of the text in their order; with a `layout` those that are written in it."""
        tags, inside, last_end = list[Tag](), 0, text.rfind(_CDATA_END) if self.cdata else -1
        for one in _pattern(self, layout).finditer(text):
            if one.start() >= inside:
                types = _SAID.get(one["string"] or "")
                tags.append(Tag(one.lastgroup or "", *one.span(), one["name"] or one["key"] or "", types))
                if one["key"] and one.end() <= last_end and self.opens_block(text, one.end()):
                    inside = text.find(_CDATA_END, one.end())
        return tags

    def opens_block(self, text: str, start: int) -> bool:
        """Tell whether a value that begins at `start` stands in a CDATA block."""
        return self.cdata and text.startswith(_CDATA, start)

    def value(self, text: str) -> str:
        """The value that stands in `text` between the tags."""
        if self.opens_block(text, 0):
            return text.removeprefix(_CDATA).removesuffix(_CDATA_END)
        return text.removeprefix("\n").removesuffix("\n") if self.own_lines else text


@cache
def _pattern(tags: Tags, layout: TagLayout | None) -> re.Pattern[str]:
    patterns = {kind: getattr(tags, kind) for kind in _KINDS}
    if layout is not None:
        patterns = {kind: patterns[kind].replace(r"\s*", layout.within) for kind in _KINDS if kind != "stray"}
        patterns["start"] = f"(?<![^\n]){patterns['start']}" if layout.before else patterns["start"]
    if layout is not None and tags.own_lines:
        patterns |= {"argument": f"{patterns['argument']}(?=\n)", "closing": f"(?<=\n){patterns['closing']}"}
    known = "|".join(f"(?P<{kind}>{pattern})" for kind, pattern in patterns.items())
    return re.compile(known if "(?P<string>" in known else f"{known}|(?P<string>(?!))")


def find_tagged_calls(text: str, tags: Tags, tools: Tools) -> Iterator[Found]:
    """The calls in `text`, in their order."""
    if re.search(tags.start, text) is None:
        return
    starts = [tag for tag in tags.scan(text) if tag.kind == "start"]
    offered = {tool["function"]["name"] for tool in tools} or {tag.name for tag in starts}
    schemas = {tag.name: ToolSchema(parameters_of(tag.name, tools)) for tag in starts}

    @cache
    def reading(layout: TagLayout | None, closers_may_follow: bool) -> _Reading:
        return _Reading(text, tags, schemas, offered, layout, closers_may_follow=closers_may_follow)

    plain = next((layout for layout in tags.layouts if reading(layout, False).is_plain), tags.layouts[0])
    ways = ((plain, False), *((layout, False) for layout in tags.layouts), (None, False), (None, True))
    position = 0
    for tag in starts:
        if tag.start < position:
            continue
        read = next((found for way in ways if (found := reading(*way).call_at(tag)) is not None), None)
        if read is None:
            continue
        arguments = {name: read_value(value, types) for name, (value, types) in read.arguments.items()}
        call = make_call(tag.name, json.dumps(arguments, ensure_ascii=False))
        if call is not None:
            position = read.stop
            yield tag.start, position, (call,)


class _Call(NamedTuple):
    """The texts of a call's arguments, the types they may have, and where it ends. `with_tags` is the number of
    arguments that hold tags; `plain` says that each closing tag closes what was opened last."""

    arguments: dict[str, tuple[str, Types]]
    stop: int
    with_tags: int
    plain: bool


class _Reading:
    """One way to look at the tags of a text: which of them may close an argument, as far as what follows tells.

    With a `layout` nothing but what it says stands between the tags of a call. `closers_may_follow` the end of one, as
    text.
    """

    def __init__(
        self,
        text: str,
        tags: Tags,
        schemas: Mapping[str, ToolSchema],
        offered: set[str],
        layout: TagLayout | None,
        *,
        closers_may_follow: bool,
    ) -> None:
        self._text, self._tags, self._schemas = text, tags, schemas
        self._places = places = tags.scan(text, layout)
        self._layout, self._closers_may_follow = layout, closers_may_follow
        self._matching = _matching(places)
        self._of_kind = {kind: [n for n, tag in enumerate(places) if tag.kind == kind] for kind in _KINDS}
        self._closings: list[int] = []
        """The numbers of closing tags that count, as negative numbers: the last comes first."""
        self._calls: list[int] = []
        """The places of tags at which a plain call of an offered tool begins. A value that is not whole ends before
        it."""
        self._read: dict[int, _Call] = {}
        reachable = False
        for number in range(len(places) - 1, -1, -1):
            tag = places[number]
            if tag.kind == "start" and (call := self._call(number)) is not None:
                self._read[tag.start] = call
                if call.plain and tag.name in offered:
                    self._calls.append(-number)
                    reachable = False
            elif tag.kind == "closing" and self._counts(number, reachable):
                self._closings.append(-number)
                reachable = True

    @property
    def is_plain(self) -> bool:
        """Tell whether the tags of the text are those of calls in this layout, and no value holds any."""
        number = 0
        while number < len(self._places) and (call := self._read.get(self._places[number].start)) is not None:
            if call.with_tags:
                return False
            number += 2 * len(call.arguments) + len(("start", "end"))
        return 0 < number == len(self._places)

    def _counts(self, closing: int, reachable: bool) -> bool:
        """True if the rest reads after a closing tag. `reachable`: a later one counts, and no other call is between."""
        follower = self._follower(closing)
        if follower is None:
            return False
        if follower.kind == "end":
            return self._closers_may_follow or self._may_follow(closing + 2)
        matching = self._matching.get(closing + 1)
        return reachable or (matching is not None and self._is_good(matching))

    def call_at(self, start: Tag) -> _Call | None:
        """The call that begins with this tag; None if it is malformed."""
        return self._read.get(start.start)

    def _call(self, start: int) -> _Call | None:
        """The reading with the fewest arguments that hold tags; of those the first that has no strange argument."""
        known = self._schemas[self._places[start].name].arguments.keys()
        best: _Call | None = None
        for names, whole in product([known, None] if known else [None], (True, False)):
            read = self._arguments(start, names, whole=whole)
            if read is not None and (best is None or read.with_tags < best.with_tags):
                best = read
            if best is not None and not best.with_tags:
                break
        return best

    def _arguments(self, start: int, names: Container[str] | None, *, whole: bool) -> _Call | None:
        """The call, with arguments of these names, or of any. `whole`: values hold pairs of tags as far as can be."""
        schema, number, pairs = self._schemas[self._places[start].name], start, dict[str, tuple[str, Types]]()
        with_tags, plain = 0, True
        while (follower := self._follower(number)) is not None and follower.kind == "argument":
            closing = self._closing(number + 1, partial(_is_new, {*pairs, follower.name}, names), whole)
            if closing is None:
                return None
            plain = plain and closing == self._matching.get(number + 1)
            value = self._tags.value(self._text[follower.stop : self._places[closing].start])
            types = follower.types or schema.types(follower.name)
            holds_tags = closing > number + 2
            if (holds_tags or follower.types) and not _is_of(types, value):
                return None
            pairs[follower.name] = value, types
            with_tags += holds_tags
            number = closing
        if follower is None or (with_tags and not schema.required <= pairs.keys()):
            return None
        return _Call(pairs, follower.stop, with_tags, plain)

    def _closing(self, argument: int, may_follow: Callable[[str], bool], whole: bool) -> int | None:
        """The number of the tag that closes the argument, so that the end or an argument of such a name follows."""
        matching = self._matching.get(argument)
        if whole and matching is not None and self._is_good(matching) and self._closes(argument, matching, may_follow):
            return matching
        barrier = -self._calls[-1] if self._calls else len(self._places)
        barrier = barrier if self._layout else self._next_argument(argument, barrier)
        later = range(bisect_left(self._closings, -argument) - 1, -1, -1)
        candidates = takewhile(barrier.__gt__, (-self._closings[place] for place in later))
        return next((number for number in candidates if self._closes(argument, number, may_follow)), None)

    def _is_good(self, closing: int) -> bool:
        place = bisect_left(self._closings, -closing)
        return place < len(self._closings) and self._closings[place] == -closing

    def _closes(self, argument: int, closing: int, may_follow: Callable[[str], bool]) -> bool:
        follower = self._follower(closing)
        start, stop = self._places[argument].stop, self._places[closing].start
        cramped = self._layout is not None and self._tags.own_lines and stop - start < len("\n\n")
        cut = self._tags.opens_block(self._text, start) and not self._text.endswith(_CDATA_END, start, stop)
        return (
            follower is not None and not cramped and not cut and (follower.kind == "end" or may_follow(follower.name))
        )

    def _next_argument(self, argument: int, barrier: int) -> int:
        """The number of the first tag that opens an argument after one was closed, `barrier` if there is none."""
        closed = bisect_right(self._of_kind["closing"], argument)
        if closed == len(self._of_kind["closing"]):
            return barrier
        opened = bisect_right(self._of_kind["argument"], self._of_kind["closing"][closed])
        return min([barrier, *self._of_kind["argument"][opened : opened + 1]])

    def _follower(self, number: int) -> Tag | None:
        """The tag that follows with nothing between, if it opens an argument or ends the call."""
        if number + 1 >= len(self._places):
            return None
        tag, follower = self._places[number], self._places[number + 1]
        between = self._text[tag.stop : follower.start]
        if self._layout is None:
            apart = bool(between.strip())
        else:
            inner = tag.kind == "closing" and follower.kind == "argument"
            apart = between != (self._layout.between if inner else self._layout.edges)
        return None if apart or follower.kind not in ("argument", "end") else follower

    def _may_follow(self, number: int) -> bool:
        """True if the tag may come after the end of a call: it opens another one, however malformed. A template writes
        at most a line break between the two."""
        if number >= len(self._places):
            return True
        end, tag = self._places[number - 1 : number + 1]
        if tag.kind == "start":
            between = self._text[end.stop : tag.start]
            return self._layout is None or between in ("\n", self._layout.before, self._tags.apart)
        return tag.kind == "stray" and not self._text.startswith("</", tag.start)


def _is_new(seen: Container[str], names: Container[str] | None, name: str) -> bool:
    return name not in seen and (names is None or name in names)


def _is_of(types: Types, text: str) -> bool:
    """Tell whether the text is a value of one of the types: any is a string."""
    return "string" in types or read_value(text, types) is not text


def _matching(places: Sequence[Tag]) -> dict[int, int]:
    """Map the number of each argument to that of its closing tag, where every argument within has its own."""
    opened: list[int] = []
    matching = {}
    for number, tag in enumerate(places):
        if tag.kind == "argument":
            opened.append(number)
        elif tag.kind == "closing" and opened:
            matching[opened.pop()] = number
    return matching

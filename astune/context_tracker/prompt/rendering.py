"""What a chat template wrote of a conversation, so that the next rendering of it writes only what is new."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import is_
from typing import Any

from jinja2 import Undefined
from jinja2.runtime import Macro
from jinja2.utils import Namespace

from astune.context_tracker.prompt.resumable import AFTER, BEFORE, RESUME, Resumable

Attributes = dict[str, dict[str, Any]]
"""Of namespaces, by the name of the namespace."""
_PLAIN = frozenset((str, int, bool, type(None)))


@dataclass(frozen=True, eq=False)
class _Loop:
    """A loop as it ran: its items, the values it began with, and where in the text, and with which attributes, each
    round began; one mark more for the end. `turns_round`: its first round looked at the last item."""

    items: list[Any]
    entry: Mapping[str, Any]
    start: int
    marks: list[tuple[int, Attributes]]
    turns_round: bool


@dataclass(frozen=True, eq=False)
class Rendering:
    """A conversation as the template `name` wrote it. `messages` must not change; `prepared` is what the template was
    given for them."""

    text: str
    name: str = ""
    messages: Sequence[Mapping[str, Any]] = ()
    prepared: Sequence[Mapping[str, Any]] = ()
    loops: Mapping[int, _Loop] = field(default_factory=dict, repr=False)


def same_start(left: Sequence[object], right: Sequence[object]) -> int:
    """How many entries at the start are the same objects."""
    size = min(len(left), len(right))
    if all(map(is_, left, right)):
        return size
    return next(place for place in range(size) if left[place] is not right[place])


class TemplateRun:
    """One rendering of a template. Invariant: `text` is what the template writes without any `before`, which is an
    earlier rendering by the same template."""

    def __init__(self, resumable: Resumable, before: Rendering | None) -> None:
        self._resumable = resumable
        self._environment = resumable.template.environment
        self._before = before
        self._pieces: list[str] = []
        self._length = 0
        self.loops: dict[int, _Loop] = {}

    def text(self, variables: Mapping[str, Any]) -> str:
        template = self._resumable.template
        for piece in template.root_render_func(template.new_context({**variables, RESUME: self.resume})):
            self._write(piece)
        return "".join(self._pieces)

    def _write(self, piece: str) -> None:
        self._pieces.append(piece)
        self._length += len(piece)

    def resume(self, number: int, items: Any, values: dict[str, Any]) -> Iterator[tuple[Any, Any]]:
        """The items of loop `number` that have to be run, and what each round asks for. The rounds before are written,
        and the namespaces among `values` are as those left them."""
        spaces = {name: value for name, value in values.items() if isinstance(value, Namespace)}
        attributes = {name: space._Namespace__attrs for name, space in spaces.items()}
        entry = values | {name: dict(each) for name, each in attributes.items()}
        given = items if type(items) is list else list(items)
        start, marks, turns_round = self._length, [], False
        loop = None if self._before is None else self._before.loops.get(number)
        if loop is not None and self._same_values(loop.entry, entry):
            known = _known_rounds(loop, given)
            if known:
                assert self._before is not None
                end, left = loop.marks[known]
                self._write(self._before.text[loop.start : loop.start + end])
                for name, each in left.items():
                    attributes[name].clear()
                    attributes[name].update(each)
                marks, turns_round = loop.marks[:known], loop.turns_round
        asked = self._resumable.rounds[number]
        first = _First(self._environment, given)
        for place in range(len(marks), len(given)):
            marks.append((self._length - start, {name: dict(each) for name, each in attributes.items()}))
            told = self._round(first, asked, given, place) if asked else None
            yield given[place], told
        marks.append((self._length - start, {name: dict(each) for name, each in attributes.items()}))
        self.loops[number] = _Loop(given, entry, start, marks, turns_round or first.looked_back)

    def _round(self, first: _First, asked: frozenset[str], items: list[Any], place: int) -> dict[str, Any]:
        last = place == len(items) - 1
        told: dict[str, Any] = {"index": place + 1, "index0": place, "first": not place, "last": last}
        if AFTER in asked:
            told[AFTER] = self._environment.getitem(items, place + 1)
        if "nextitem" in asked:
            told["nextitem"] = self._environment.undefined("there is no next item") if last else items[place + 1]
        if place:
            told["previtem"] = told[BEFORE] = items[place - 1]
            return told
        told["previtem"] = self._environment.undefined("there is no previous item")
        first.update(told)
        return first

    def _same_values(self, old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
        macros = self._resumable.macros
        return all(
            _same(value, new[name]) or (name in macros and isinstance(value, Macro) and isinstance(new[name], Macro))
            for name, value in old.items()
        )


class _First(dict[str, Any]):
    """The first round: the item before it is the last one, for those who ask."""

    def __init__(self, environment: Any, items: list[Any]) -> None:
        self._environment = environment
        self._items = items
        self.looked_back = False

    def __missing__(self, name: str) -> Any:
        if name != BEFORE:
            raise KeyError(name)
        self.looked_back = True
        return self._environment.getitem(self._items, -1)


def _known_rounds(loop: _Loop, items: list[Any]) -> int:
    """How many rounds of `loop` are those of `items`. A round knows the item after it, and whether there is one."""
    same = same_start(loop.items, items)
    if same == len(items) == len(loop.items):
        return same
    return 0 if loop.turns_round else max(0, same - 1)


def _same(old: Any, new: Any) -> bool:
    """Whether no template can tell the two apart. Templates cannot change lists and dictionaries."""
    if old is new:
        return True
    kind = type(old)
    if kind is not type(new):
        return False
    if kind in _PLAIN:
        return bool(old == new)
    if kind is list or kind is tuple:
        return len(old) == len(new) and all(map(_same, old, new))
    if kind is dict:
        return list(old) == list(new) and all(_same(value, new[name]) for name, value in old.items())
    return isinstance(old, Undefined)

"""Renderings that go on from an earlier one: the loops of a chat template write only the messages that are new.

A template writes a conversation in a loop over its messages. What a round of the loop writes and leaves behind follows
from what it can read, so rounds of an earlier rendering can be taken over while all of that is the same. Read off the
template's syntax, a round may read

- its own item, how many were before it, the one before and the one after, and whether there is one after;
- names from outside, macros, and what these read: their values are compared whenever the loop begins;
- attributes of namespaces, the only thing that outlives a round: compared too, and put back as the round left them.

`resumable` rewrites a template so, and `TemplateRun` runs it. A loop that could read anything else, such as random
words, stays as it is and runs from its first item.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import is_
from typing import Any

from jinja2 import Environment, Template, Undefined, nodes
from jinja2.runtime import Macro
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

RESUME = "__resume__"
"""The variable that a rewritten loop takes its items from."""
BEFORE, AFTER = "item_before", "item_after"
_ROUND = frozenset(("index", "index0", "first", "last", "previtem", "nextitem"))
_NEVER_THE_SAME = frozenset(("lipsum", "varargs", "kwargs", "caller", "self", "super"))
_UNKNOWN = (
    *(nodes.Block, nodes.Extends, nodes.Include, nodes.Import, nodes.FromImport, nodes.CallBlock, nodes.FilterBlock),
    *(nodes.EvalContextModifier, nodes.OverlayScope, nodes.EnvironmentAttribute, nodes.ExtensionAttribute),
    *(nodes.ImportedName, nodes.InternalName, nodes.ContextReference, nodes.DerivedContextReference),
)
"""Syntax that no chat template is known to use: one that has it is left as it is."""


@dataclass(frozen=True)
class Resumable:
    """A template whose loops go on; `macros` are its macros' names, `rounds` what a round of each loop asks for."""

    template: Template
    macros: frozenset[str]
    rounds: tuple[frozenset[str], ...]


class _LeftAsItIs(Exception):
    """Raised for a loop that reads something which may change."""


def resumable(environment: Environment, source: str) -> Resumable | None:
    """The template `source` with its loops rewritten; None if none of them can go on."""
    left: set[int] = set()
    while True:
        tree = environment.parse(source)
        loops = [(place, loop) for place, loop in enumerate(_outer_loops(tree.body)) if place not in left]
        if not loops or any(tree.find_all(_UNKNOWN)):
            return None
        macros = _macros(tree)
        rounds: list[frozenset[str]] = []
        for place, loop in loops:
            try:
                rounds.append(_rewrite(loop, len(rounds), macros))
            except _LeftAsItIs:
                left.add(place)  # it may be half rewritten, so all begins anew without it
                break
        else:
            tree.set_environment(environment)
            template = Template.from_code(environment, environment.compile(tree), environment.make_globals(None))
            return Resumable(template, frozenset(macros), tuple(rounds))


def _macros(tree: nodes.Template) -> dict[str, nodes.Macro]:
    """The macros that are defined once, for the whole template, and whose names are nothing else anywhere."""
    stored = [name.name for name in tree.find_all(nodes.Name) if name.ctx != "load"]
    stored += [macro.name for macro in tree.find_all(nodes.Macro)]
    return {node.name: node for node in tree.body if isinstance(node, nodes.Macro) and stored.count(node.name) == 1}


def _outer_loops(body: Iterable[nodes.Node]) -> Iterator[nodes.For]:
    """Loops that run at most once in a rendering, and write straight into it."""
    for node in body:
        if isinstance(node, nodes.For):
            yield node
        elif isinstance(node, nodes.If):
            yield from _outer_loops([*node.body, *node.elif_, *node.else_])


def _rewrite(loop: nodes.For, number: int, macros: dict[str, nodes.Macro]) -> frozenset[str]:
    """Let the loop take its items, and the facts about its rounds, from `RESUME`. Returns the names of those facts."""
    items = loop.iter
    if loop.recursive or loop.test or loop.else_ or not _from_the_front(items):
        raise _LeftAsItIs
    names = [node for node in _all(loop.body) if isinstance(node, nodes.Name)]
    its_own = {node.name for node in _all([loop.target]) if isinstance(node, nodes.Name)}
    if any(isinstance(node, (nodes.Macro, nodes.Break)) for node in _all(loop.body)) or "loop" in its_own:
        raise _LeftAsItIs
    kept = (
        items.name
        if isinstance(items, nodes.Name) and all(n.name != items.name for n in names if n.ctx != "load")
        else None
    )
    told = f"__round{number}__"
    rounds = _Rounds(None if kept in its_own else kept, told)
    loop.body = [rounds.visit(node) for node in loop.body]
    read = _read(loop.body, macros) - {"loop", told} - its_own
    if read & _NEVER_THE_SAME:
        raise _LeftAsItIs
    pairs = [nodes.Pair(nodes.Const(name), nodes.Name(name, "load")) for name in sorted(read)]
    arguments = [nodes.Const(number), items, nodes.Dict(pairs)]
    loop.target = nodes.Tuple([loop.target, nodes.Name(told, "store")], "store")
    loop.iter = nodes.Call(nodes.Name(RESUME, "load"), arguments, [], None, None)
    loop.set_lineno(loop.lineno)
    return frozenset(rounds.asked)


def _from_the_front(items: nodes.Node) -> bool:
    """A name, or all of it from a place on: `messages[1:]`. What is added to others is added at the end."""
    if isinstance(items, nodes.Name):
        return True
    if not isinstance(items, nodes.Getitem) or not isinstance(items.node, nodes.Name):
        return False
    return isinstance(items.arg, nodes.Slice) and items.arg.stop is None and items.arg.step is None


class _Rounds(NodeTransformer):
    """Reads what is asked of a round from the variable `told` instead of `loop`. `items` is the name of the list, None
    if it has none in the loop."""

    def __init__(self, items: str | None, told: str) -> None:
        self._items = items
        self._told = told
        self.asked: set[str] = set()

    def visit_For(self, node: nodes.For) -> nodes.Node:
        beside = [*([node.test] if node.test else []), *node.else_]
        if any(isinstance(inner, nodes.Name) and inner.name == "loop" for inner in _all(beside)):
            raise _LeftAsItIs
        node.iter = self.visit(node.iter)
        return node  # in its body, `loop` is its own

    def visit_Getattr(self, node: nodes.Getattr) -> nodes.Node:
        if not _is_loop(node.node):
            return self.generic_visit(node)
        if node.attr not in _ROUND:
            raise _LeftAsItIs
        return self._ask(node.attr)

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:
        beside = _beside(node.arg)
        if beside is None or not isinstance(node.node, nodes.Name) or node.node.name != self._items:
            return self.generic_visit(node)
        return self._ask(beside)

    def visit_Name(self, node: nodes.Name) -> nodes.Node:
        if node.name == "loop":
            raise _LeftAsItIs
        return node

    def _ask(self, what: str) -> nodes.Node:
        self.asked.add(what)
        return nodes.Getattr(nodes.Name(self._told, "load"), what, "load")


def _is_loop(node: nodes.Node) -> bool:
    return isinstance(node, nodes.Name) and node.name == "loop"


def _beside(index: nodes.Node) -> str | None:
    """True if an index is that of the item before or after this round's."""
    if not isinstance(index, (nodes.Add, nodes.Sub)) or not isinstance(index.right, nodes.Const):
        return None
    left = index.left
    here = isinstance(left, nodes.Getattr) and _is_loop(left.node) and left.attr == "index0"
    if not here or type(index.right.value) is not int or index.right.value != 1:
        return None
    return AFTER if isinstance(index, nodes.Add) else BEFORE


def _read(body: Iterable[nodes.Node], macros: dict[str, nodes.Macro]) -> set[str]:
    """The names that are read in `body`, and in the macros that it may call, whoever binds them."""
    found: set[str] = set()
    waiting: list[Iterable[nodes.Node]] = [body]
    while waiting:
        for node in _all(waiting.pop()):
            if isinstance(node, nodes.Filter) and node.name == "random":
                raise _LeftAsItIs
            if isinstance(node, (nodes.Name, nodes.NSRef)) and node.name not in found:
                found.add(node.name)
                if node.name in macros:
                    waiting.append([macros[node.name]])
    return found


def _all(body: Iterable[nodes.Node]) -> Iterator[nodes.Node]:
    for node in body:
        yield node
        yield from node.find_all(nodes.Node)


Attributes = dict[str, dict[str, Any]]
"""The attributes of namespaces, by the name of the namespace."""
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
    """Count the entries at the start that are the same objects."""
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
        self._loops: dict[int, _Loop] = {}

    def text(self, variables: Mapping[str, Any]) -> str:
        template = self._resumable.template
        try:
            for piece in template.root_render_func(template.new_context({**variables, RESUME: self.resume})):
                self._write(piece)
            return "".join(self._pieces)
        finally:  # jinja's macros hold their context, and with it this run, until the garbage collector comes
            self._before, self._pieces = None, []

    def take_loops(self) -> dict[int, _Loop]:
        """Hand over the loops of this run."""
        loops, self._loops = self._loops, {}
        return loops

    def _write(self, piece: str) -> None:
        self._pieces.append(piece)
        self._length += len(piece)

    def resume(self, number: int, items: Any, values: dict[str, Any]) -> Iterator[tuple[Any, Any]]:
        """The items of loop `number` that have to be run, and what each round asks for. The rounds before are written,
        and the namespaces among `values` are as those left them."""
        spaces = {name: value for name, value in values.items() if isinstance(value, Namespace)}
        attributes = {name: space._Namespace__attrs for name, space in spaces.items()}
        macros = {name for name in self._resumable.macros if isinstance(values.get(name), Macro)}
        # A macro holds all that its rendering knew, and one of this name is always the same: that it is there counts.
        entry = values | {name: dict(each) for name, each in attributes.items()} | dict.fromkeys(macros, Macro)
        given = items if type(items) is list else list(items)
        start, marks, turns_round = self._length, [], False
        loop = None if self._before is None else self._before.loops.get(number)
        if loop is not None and all(_same(value, entry[name]) for name, value in loop.entry.items()):
            known = _count_known_rounds(loop, given)
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
        self._loops[number] = _Loop(given, entry, start, marks, turns_round or first.looked_back)

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


class _First(dict[str, Any]):
    """The first round. Its previous item is the last of the list, for a template that reads it."""

    def __init__(self, environment: Any, items: list[Any]) -> None:
        self._environment = environment
        self._items = items
        self.looked_back = False

    def __missing__(self, name: str) -> Any:
        if name != BEFORE:
            raise KeyError(name)
        self.looked_back = True
        return self._environment.getitem(self._items, -1)


def _count_known_rounds(loop: _Loop, items: list[Any]) -> int:
    """Count the rounds of `loop` that are those of `items`. A round knows the item after it, and whether there is
    one."""
    same = same_start(loop.items, items)
    if same == len(items) == len(loop.items):
        return same
    return 0 if loop.turns_round else max(0, same - 1)


def _same(old: Any, new: Any) -> bool:
    """True if no template can tell the two apart. Templates cannot change lists and dictionaries."""
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

"""Finds the loops of a chat template that can go on where an earlier rendering stood, and rewrites them so.

A template writes a conversation in a loop over its messages. What a round of the loop writes and leaves behind follows
from what it can read, so rounds of an earlier rendering can be taken over while all of that is the same. Read off the
template's syntax, a round may read

- its own item, how many were before it, the one before and the one after, and whether there is one after;
- names from outside, macros, and what these read: their values are compared whenever the loop begins;
- attributes of namespaces, the only thing that outlives a round: compared too, and put back as the round left them.

A loop that could read anything else, such as the time, stays as it is and runs from its first item. `rendering` runs
the templates that are made here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from jinja2 import Environment, Template, nodes
from jinja2.visitor import NodeTransformer

RESUME = "__resume__"
"""The variable that a rewritten loop takes its items from."""
BEFORE, AFTER = "item_before", "item_after"
_ROUND = frozenset(("index", "index0", "first", "last", "previtem", "nextitem"))
_NEVER_THE_SAME = frozenset(("strftime_now", "lipsum", "varargs", "kwargs", "caller", "self", "super"))
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
    """The loop reads what is not known to be the same."""


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
    """Those that are defined once, for the whole template, and whose names are nothing else anywhere."""
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
    """Let the loop take its items, and what it asks of its rounds, from `RESUME`; what it asks for."""
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
    """Whether an index is that of the item before or after this round's."""
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

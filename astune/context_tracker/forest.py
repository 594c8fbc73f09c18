"""Token sequences stored as a forest: whatever two of them begin with is stored once.

a b c D E f G        a b c ─ D E ─ f G
a b c D E h I     ->           └── h I
a b X H              └─ a b splits where the third goes its own way: a b ─ c D E ... and a b ─ X H
"""

from __future__ import annotations

from collections.abc import Iterator

from astune.token_ids import TokenIds

WIDTH = 4
"""Bytes of a token id."""


class Node:
    """A run of tokens that is never left in its middle. `own` is packed; `stop` counts the tokens up to its end."""

    __slots__ = ("children", "own", "parent", "stop", "turns")

    def __init__(self, parent: Node | None, own: bytes, stop: int) -> None:
        self.parent = parent
        self.own = own
        self.stop = stop
        self.children: dict[bytes, Node] = {}
        self.turns: list[int] = []
        """Numbers of the turns that end exactly here."""


class PrefixForest:
    """A compressed trie over token ids, grown one sequence at a time.

        forest = PrefixForest()
        end = forest.insert(TokenIds([1, 2, 3]))
        forest.insert(TokenIds([1, 2, 4])).parent is end.parent     # both hang below 1, 2
        forest.unique_tokens                                        # 4

    Invariant: the path to the node that `insert` returned spells the inserted ids, and goes on doing so: a node that
    is split keeps its end. Cost: a sequence that extends one inserted before (the same `TokenIds` object among its
    links) is read from there on only; memory is the new tokens.
    """

    def __init__(self) -> None:
        self._root = Node(None, b"", 0)
        self._ends: dict[int, tuple[TokenIds, Node]] = {}  # by id(); the reference keeps the id taken
        self.unique_tokens = 0
        """Tokens stored."""

    def insert(self, ids: TokenIds) -> Node:
        """The node that `ids` end at, made if there is none."""
        links = []
        link: TokenIds | None = ids
        while link is not None and id(link) not in self._ends:
            links.append(link)
            link = link.before
        node = self._root if link is None else self._ends[id(link)][1]
        for link in reversed(links):
            node = self._descend(node, link.own)
            self._ends[id(link)] = (link, node)
        return node

    def _descend(self, node: Node, data: bytes) -> Node:
        """The node that is `data` further than `node`."""
        place = 0
        while place < len(data):
            child = node.children.get(data[place : place + WIDTH])
            if child is None:
                own = data[place:]
                child = Node(node, own, node.stop + len(own) // WIDTH)
                node.children[own[:WIDTH]] = child
                self.unique_tokens += len(own) // WIDTH
                return child
            if not data.startswith(child.own, place):
                child = _split(child, _shared_bytes(child.own, data[place : place + len(child.own)]))
            place += len(child.own)
            node = child
        return node

    def nodes(self) -> Iterator[Node]:
        """Every node after its parent; the children of a node in the order in which they came."""
        stack = [self._root]
        while stack:
            node = stack.pop()
            yield node
            stack.extend(reversed(node.children.values()))


def path(node: Node) -> Iterator[Node]:
    """`node` and what it hangs on, upwards."""
    current: Node | None = node
    while current is not None:
        yield current
        current = current.parent


def _split(node: Node, size: int) -> Node:
    """Cut `node` after `size` bytes; returns the new upper part. `node` stays the lower part, with its end."""
    parent = node.parent
    assert parent is not None, "the root is empty and never split"
    upper = Node(parent, node.own[:size], node.stop - (len(node.own) - size) // WIDTH)
    parent.children[upper.own[:WIDTH]] = upper
    node.parent = upper
    node.own = node.own[size:]
    upper.children[node.own[:WIDTH]] = node
    return upper


def _shared_bytes(left: bytes, right: bytes) -> int:
    """Bytes of the whole tokens that both begin with, by bisection."""
    low, high = 0, min(len(left), len(right)) // WIDTH
    while low < high:
        middle = (low + high + 1) // 2
        same = left[low * WIDTH : middle * WIDTH] == right[low * WIDTH : middle * WIDTH]
        low, high = (middle, high) if same else (low, middle - 1)
    return low * WIDTH

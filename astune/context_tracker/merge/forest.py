"""Token sequences stored as a forest: whatever two of them begin with is stored once.

a b c D E f G           a b ─ c D E ─ f G
a b c D E h I     ->        │       └ h I
a b X H                     └ X H
"""

from __future__ import annotations

from collections.abc import Iterator

from astune.token_ids import WIDTH, TokenIds, shared_bytes


class TokenNode:
    """A run of tokens that no inserted sequence leaves in its middle. `own` is the run, packed; `ids` spells the whole
    way to its end."""

    __slots__ = ("children", "ids", "own", "parent", "turns")

    def __init__(self, parent: TokenNode | None, ids: TokenIds) -> None:
        self.parent = parent
        self.ids = ids
        self.own = ids.own
        self.children: dict[bytes, TokenNode] = {}
        """By their first token, packed."""
        self.turns: tuple[int, ...] = ()
        """Numbers of the turns that end exactly here."""


class PrefixForest:
    """A compressed trie over token ids, grown one sequence at a time.

        forest = PrefixForest()
        end = forest.insert(TokenIds([1, 2, 3]))
        forest.insert(TokenIds([1, 2, 4])).parent is end.parent     # both hang below 1, 2
        forest.unique_tokens                                        # 4

    Invariant: the path to the node that `insert` returned spells the inserted ids, and goes on doing so: a node that
    is split keeps its end. Cost: a sequence that extends one inserted before (the same `TokenIds` object among its
    links) is read from there on only. Memory: the inserted objects afterwards share what they have in common
    (`TokenIds.share`), so a token is held once however many sequences have it.
    """

    def __init__(self) -> None:
        self._root = TokenNode(None, TokenIds())
        self._nodes = {id(self._root.ids): self._root}  # by id() of their ids, which they keep alive
        self.unique_tokens = 0
        """Tokens stored."""

    def insert(self, ids: TokenIds) -> TokenNode:
        """The node that `ids` end at, made if there is none."""
        links = []
        link: TokenIds | None = ids
        while link is not None and id(link) not in self._nodes:
            links.append(link)
            link = link.before
        node = self._root if link is None else self._nodes[id(link)]
        for link in reversed(links):
            node = self._descend(node, link)
        return node

    def nodes(self) -> Iterator[TokenNode]:
        """Every node after its parent; the children of a node in the order in which they came."""
        stack = [self._root]
        while stack:
            node = stack.pop()
            yield node
            stack.extend(reversed(node.children.values()))

    def _descend(self, node: TokenNode, link: TokenIds) -> TokenNode:
        """The node at which `link` ends, whose own ids begin at `node`."""
        data = link.own
        place = 0
        while place < len(data):
            child = node.children.get(data[place : place + WIDTH])
            if child is None:
                # From here on `link` holds only what is new: the prompts of a turn get small by being inserted.
                link.share(node.ids, data[place:])
                self.unique_tokens += len(link.own) // WIDTH
                return self._hang(node, link)
            if not data.startswith(child.own, place):  # leaves the run in its middle, or ends there
                child = self._split(child, shared_bytes(child.own, data[place : place + len(child.own)]))
            place += len(child.own)
            node = child
        link.share(node.parent.ids if node.parent else None, node.own)
        return node

    def _hang(self, parent: TokenNode, ids: TokenIds) -> TokenNode:
        """A new node below `parent`."""
        node = TokenNode(parent, ids)
        parent.children[node.own[:WIDTH]] = node
        self._nodes[id(ids)] = node
        return node

    def _split(self, node: TokenNode, size: int) -> TokenNode:
        """Cut `node` after `size` bytes; returns the new upper part. `node` stays the lower part, with its end."""
        assert node.parent is not None, "the root is empty and never split"
        upper = self._hang(node.parent, TokenIds.from_packed(node.own[:size], node.parent.ids))
        node.parent = upper
        node.own = node.own[size:]
        node.ids.share(upper.ids, node.own)
        upper.children[node.own[:WIDTH]] = node
        return upper


def path(node: TokenNode) -> Iterator[TokenNode]:
    """`node` and what it hangs on, upwards."""
    current: TokenNode | None = node
    while current is not None:
        yield current
        current = current.parent

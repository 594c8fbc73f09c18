"""Turns merged into timelines: one training row per end of the tree that exact prefixes make of the turns.

turn 0: prompt abc, sampled DE
turn 1: prompt abcDEf, sampled G      continues turn 0
turn 2: prompt abcDEh, sampled I      continues turn 0 too: a fork
turn 3: prompt abX, sampled J         continues none: a fork
-> timelines abcDEfG (turns 0, 1), abcDEhI (turn 0 shared, turn 2) and abXJ (turn 3)

The tokens are stored as a forest: whatever two sequences begin with is stored once.

a b c D E f G           a b ─ c D E ─ f G
a b c D E h I     ->        │       └ h I
a b X H                     └ X H
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from astune.context_tracker import forks
from astune.token_ids import WIDTH, TokenIds, count_shared_bytes
from astune.types import Span, Timeline, Turn


@dataclass(slots=True, eq=False)
class TokenNode:
    """A run of tokens that no inserted sequence leaves in its middle. `own` is the run, packed; `ids` spells the whole
    way to its end."""

    parent: TokenNode | None
    ids: TokenIds
    own: bytes
    children: dict[bytes, TokenNode] = field(default_factory=dict)
    """By their first token, packed."""
    turns: tuple[int, ...] = ()
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
        self._root = TokenNode(None, TokenIds(), b"")
        self._nodes = {id(self._root.ids): self._root}  # by id() of their ids, which they keep alive
        self.unique_tokens = 0
        """Tokens stored."""

    def insert(self, ids: TokenIds) -> TokenNode:
        """Find the node at which `ids` end, or make it."""
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
        """Every node after its parent; the children of a node in the order of their insertion."""
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
                child = self._split(child, count_shared_bytes(child.own, data[place : place + len(child.own)]))
            place += len(child.own)
            node = child
        link.share(node.parent.ids if node.parent else None, node.own)
        return node

    def _hang(self, parent: TokenNode, ids: TokenIds) -> TokenNode:
        """A new node below `parent`."""
        node = TokenNode(parent, ids, ids.own)
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
    """`node` and its ancestors, upwards."""
    current: TokenNode | None = node
    while current is not None:
        yield current
        current = current.parent


@dataclass(slots=True)
class _Place:
    """The place of a turn among the others: its tokens, the turn of the same agent that it continues, and the first
    turn that continues it."""

    token_ids: TokenIds
    before: int | None
    fork: str | None
    after: int | None = None


class TurnForest:
    """The turns of an episode, merged by the tokens that they have in common.

        forest = TurnForest()
        forest.add(turn)                # as each call ends
        forest.timelines()              # or TurnForest(turns).timelines()

    A turn continues the earlier turn of its agent whose tokens, prompt and output, are the longest prefix of its
    prompt; so its context is exactly what the engine saw. Of several with the same tokens it is the latest that
    none continues yet, so that each answer goes on in a timeline of its own. Adding a turn costs time linear in the
    tokens that its prompt does not share by identity with an earlier one (`TokenIds.before`), at most one pass over
    the prompt.
    """

    def __init__(self, turns: Iterable[Turn] = ()) -> None:
        self.turns: list[Turn] = []
        self._tokens = PrefixForest()
        self._places: list[_Place] = []
        self._agents: set[str] = set()
        for turn in turns:
            self.add(turn)

    @property
    def unique_tokens(self) -> int:
        """Distinct (context, token) pairs of all turns: what a trainer that shares all prefixes computes."""
        return self._tokens.unique_tokens

    def add(self, turn: Turn) -> None:
        """Put the turn that ended last in its place."""
        number = len(self.turns)
        prompt_end = self._tokens.insert(TokenIds.of(turn.prompt_ids))
        before = self._find_continued(prompt_end, turn)
        fork = None
        if before is None or self._places[before].after is not None:
            fork = forks.of_timeline(
                turn.fork,
                agent_known=turn.agent in self._agents,
                tokens_known=any(node.turns for node in path(prompt_end)),
            )
        else:
            self._places[before].after = number
        whole = TokenIds.of(turn.prompt_ids) + turn.output_ids
        self._tokens.insert(whole).turns += (number,)
        self.turns.append(turn)
        self._places.append(_Place(whole, before, fork))
        self._agents.add(turn.agent)

    def exclude_repeated(self, agent: str, prompt_ids: TokenIds, n: int, reason: str) -> None:
        """Take the last `n` answers of `agent` to this prompt out of training, unless something continues them."""
        same = [i for i, turn in enumerate(self.turns) if turn.agent == agent and turn.prompt_ids == prompt_ids]
        for number in same[-n:]:
            if self._places[number].after is None:
                turn = self.turns[number]
                self.turns[number] = replace(turn, excluded=turn.excluded or reason)

    def _find_continued(self, end: TokenNode, turn: Turn) -> int | None:
        """The turn that `turn`, whose prompt ends at `end`, continues. Ids made from text never go on from an
        engine's, nor an engine's from them, nor one model's from another's."""
        if turn.agent not in self._agents:
            return None
        for node in path(end):
            mine = [number for number in node.turns if _of_one_kind(self.turns[number], turn)]
            if mine:
                return self._newest_free(mine)
        return None

    def _newest_free(self, numbers: Sequence[int]) -> int:
        """The latest of these turns that none continues yet, or else the latest."""
        return ([number for number in numbers if self._places[number].after is None] or numbers)[-1]

    def timelines(self) -> tuple[Timeline, ...]:
        """One per turn that nothing continues, in the order of the first turn that each does not share."""
        owned: list[list[int]] = []  # for each timeline, the turns that none before it has
        timeline_of: list[int] = []
        for number, place in enumerate(self._places):
            if place.before is not None and self._is_first_after(place.before, number):
                timeline_of.append(timeline_of[place.before])
                owned[timeline_of[number]].append(number)
            else:
                timeline_of.append(len(owned))
                owned.append([number])
        shared: dict[int, Span] = {}
        return tuple(self._timeline(own, shared) for own in owned)

    def _is_first_after(self, before: int, number: int) -> bool:
        """True if turn `number` was the first to continue turn `before`, so it goes on with that one's timeline."""
        return self._places[before].after == number

    def _timeline(self, own: Sequence[int], shared: dict[int, Span]) -> Timeline:
        """The turns `own` after those that the first of them continues. `shared` keeps spans for other timelines."""
        first = self._places[own[0]]
        spans: list[Span] = []
        before = first.before
        while before is not None:
            if before not in shared:
                shared[before] = self._span(before, shared=True)
            spans.append(shared[before])
            before = self._places[before].before
        spans.reverse()  # they were found from the end of the branch upwards
        spans += [self._span(number, shared=False) for number in own]
        return Timeline(self.turns[own[0]].agent, self._places[own[-1]].token_ids, tuple(spans), first.fork)

    def _span(self, number: int, *, shared: bool) -> Span:
        turn = self.turns[number]
        start = len(turn.prompt_ids)
        return Span(
            turn=number,
            start=start,
            stop=start + len(turn.output_ids),
            policy_version=turn.policy_version,
            temperature=turn.temperature,
            trainable=turn.trainable,
            logprobs=turn.logprobs,
            shared=shared,
        )


def _of_one_kind(earlier: Turn, turn: Turn) -> bool:
    """True if `turn` may continue `earlier` at all, whatever their tokens."""
    return (earlier.agent, earlier.exact, earlier.model) == (turn.agent, turn.exact, turn.model)

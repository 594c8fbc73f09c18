"""The conversations of one agent as a tree of messages. It tells what a request repeats, and what in it is new.

system ─ user ─ answer 0 ─ tool ─ answer 1        an answer's node holds its tokens
             └─ answer 2                          the same request, asked again
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from astune.context_tracker.prompt.messages import (
    CallPlaces,
    Meaning,
    Message,
    meaning,
    same_reasoning,
    without_system,
)
from astune.context_tracker.prompt.sampled_answer import SampledAnswer, TextRope
from astune.ropes import Messages, common_start

_MOST_OPEN = 64
"""Requests remembered as they were sent: what goes on from one of them costs only what is new."""


@dataclass(eq=False)
class MessageNode:
    """A message in its place. `tools` were offered with the request of the last answer up to here. `sampled` has the
    message's tokens; None for one that the agent wrote. `moved`: it was sampled in another place, and a changed history
    still holds it."""

    message: Message
    meaning: Meaning
    parent: MessageNode | None
    number: int
    tools: tuple[Message, ...] = ()
    sampled: SampledAnswer | None = None
    moved: bool = False
    children: dict[Meaning, list[MessageNode]] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class AnsweredRequest:
    """A request that was answered: its messages as they were sent, their nodes, and its answer's."""

    sent: Messages
    tools: tuple[Message, ...]
    path: tuple[MessageNode, ...]
    answer: MessageNode
    rendering: TextRope

    def meanings(self) -> list[Meaning]:
        return [*(node.meaning for node in self.path), self.answer.meaning]


@dataclass(frozen=True, eq=False)
class Match:
    """A request, matched with what is known of the agent's earlier ones.

    `path` are the nodes of its first messages, as far as they were seen in this order before. `messages` are those
    to render: sampled answers as they were sampled, with the reasoning that the agent dropped. `sampled` has the
    tokens of those messages that were sampled, by their index. `changed_from` is the closest earlier request if this
    one changes its history; None if it only goes on from a point that was reached before. `request` is the earlier one
    that it begins as.
    """

    sent: Messages
    tools: tuple[Message, ...]
    meanings: list[Meaning]
    path: tuple[MessageNode, ...]
    messages: list[Message]
    sampled: dict[int, SampledAnswer]
    changed_from: AnsweredRequest | None
    request: AnsweredRequest | None

    def find_answers(self) -> Iterator[SampledAnswer]:
        """The answers that were given to the known part of it before, with the same tools, of equal ones the newest
        first."""
        for same in list(self.path[-1].children.values()) if self.path else ():
            for node in reversed(same):
                if node.sampled is not None and node.sampled.tools == self.tools:
                    yield node.sampled


class Conversations:
    """All answered requests of one agent. Memory is linear in the distinct messages.

    A request is compared with the one before by plain equality; only for what is new its meaning is worked out.
    """

    def __init__(self) -> None:
        self._root = MessageNode({}, (), None, 0)
        self._open: list[AnsweredRequest] = []
        self._count = 0

    def match(self, messages: Sequence[Message], tools: Sequence[Message]) -> Match:
        """Find what is known of a request. Messages are copied where they are new: the caller may change its own
        later."""
        known, request = self._longest_start(messages)
        start = () if request is None else request.path[:known]
        before = Messages() if request is None else request.sent.start(known)
        whole = before.and_then(*copy.deepcopy(list(messages[known:])))
        sent = tuple(whole)
        offered = copy.deepcopy(tuple(tools)) if request is None or request.tools != tuple(tools) else request.tools
        meanings = [node.meaning for node in start]
        calls = CallPlaces(sent)
        for index in range(known, len(sent)):
            if request is not None and index < len(request.sent) and request.sent[index] == sent[index]:
                meanings.append((*request.path[index].meaning[:-1], calls.find_call(index)))
            else:
                meanings.append(meaning(sent, index, calls))
        path = self._follow(start, sent, meanings, offered)
        taken_over: dict[int, MessageNode] = {}
        closest = None
        beyond, conversation = meanings[len(path) :], without_system(meanings)
        begun = len(path) > len(meanings) - len(conversation)
        goes_on = not beyond or (begun and all(said[0] != "assistant" for said in beyond))
        if self._open and not goes_on:
            closest = self._closest(conversation)
            taken_over = _take_over(closest, sent, meanings, len(path))
        nodes = dict(enumerate(path)) | taken_over
        return Match(
            whole,
            offered,
            meanings,
            path,
            _to_render(sent, path, taken_over, calls),
            {index: node.sampled for index, node in nodes.items() if node.sampled is not None},
            closest,
            request,
        )

    def add(self, match: Match, answer: Message, sampled: SampledAnswer) -> None:
        """Remember that the request `match` got the answer `answer`, with the tokens `sampled`. An earlier request of
        which it has all messages, and the answer unless it is the same request, is open no longer."""
        node = match.path[-1] if match.path else self._root
        path = list(match.path)
        for index in range(len(path), len(match.sent)):
            # Not as sent but as rendered: with the reasoning that the agent dropped, which later requests then find.
            before = match.sampled.get(index)
            node = self._child(node, match.messages[index], match.meanings[index], before, moved=before is not None)
            path.append(node)
        end = self._child(node, answer, meaning([answer], 0), sampled)
        still_open = []
        for request in self._open:
            size = len(request.path)
            repeated = path[:size] == list(request.path) and (len(path) == size or path[size] is request.answer)
            if not repeated:
                still_open.append(request)
        still_open.append(AnsweredRequest(match.sent, match.tools, tuple(path), end, sampled.rendering))
        self._open = still_open[-_MOST_OPEN:]

    def find_sent_up_to(self, match: Match, rendering: str, ends: Mapping[int, int]) -> int:
        """Find the last answer up to which an earlier request was written like `rendering`: one with the same tools
        that began with the same messages. -1 if there is none. `ends` are the ends of the answers."""
        whole = len(match.path) == len(match.sent)
        if whole and any(str(sampled.rendering) == rendering for sampled in match.find_answers()):
            return len(match.sent)
        for index, end in sorted(ends.items(), reverse=True):
            if not 0 <= index < len(match.path):
                continue
            node = match.path[index]
            for request in self._open:
                begins_so = index < len(request.path) and request.path[index] is node
                if begins_so and request.tools == match.tools and str(request.rendering).startswith(rendering[:end]):
                    return index
        return -1

    def _longest_start(self, messages: Sequence[Message]) -> tuple[int, AnsweredRequest | None]:
        """The open request that begins longest as `messages` do, of equals the newest, and for how many of them."""
        most, best = 0, self._open[-1] if self._open else None
        for request in reversed(self._open):
            pairs = enumerate(zip(request.sent, messages, strict=False))
            shorter = min(len(request.sent), len(messages))
            known = next((i for i, (old, new) in pairs if old is not new and old != new), shorter)
            if known > most:
                most, best = known, request
            if known == len(request.sent):
                break  # the usual case: the agent added to its last request, so no other can share more
        return most, best

    def _follow(
        self,
        start: tuple[MessageNode, ...],
        sent: Sequence[Message],
        meanings: Sequence[Meaning],
        tools: Sequence[Message],
    ) -> tuple[MessageNode, ...]:
        """`start` and the nodes after it, as far as the messages were seen; of equals those with the same tools, then
        the newest."""
        reached = [start[-1] if start else self._root]
        for index in range(len(start), len(sent)):
            children = (child for node in reached for child in node.children.get(meanings[index], ()))
            further = [child for child in children if same_reasoning(sent[index], child.message)]
            if not further:
                break
            reached = further
        node: MessageNode | None = max(reached, key=lambda node: (node.tools == tools, node.number))
        path = []
        while node is not None and node is not self._root:
            path.append(node)
            node = node.parent
        return tuple(reversed(path))

    def _closest(self, now: Sequence[Meaning]) -> AnsweredRequest:
        """The open request to compare with: the longest common start, then the most messages in common, then the
        newest. System messages at the start do not count."""
        said = set(now)

        def closeness(request: AnsweredRequest) -> tuple[int, int]:
            before = without_system(request.meanings())
            return common_start(before, now), len(said.intersection(before))

        return max(reversed(self._open), key=closeness)

    def _child(
        self,
        parent: MessageNode,
        message: Message,
        said: Meaning,
        sampled: SampledAnswer | None,
        *,
        moved: bool = False,
    ) -> MessageNode:
        """Find the node of a message after `parent`, or make it."""
        for child in parent.children.get(said, ()):
            if child.sampled is sampled and same_reasoning(message, child.message):
                return child
        self._count += 1
        tools = parent.tools if sampled is None else sampled.tools
        child = MessageNode(message, said, parent, self._count, tools, sampled, moved)
        parent.children.setdefault(said, []).append(child)
        return child


def _take_over(
    closest: AnsweredRequest, sent: Sequence[Message], meanings: Sequence[Meaning], known: int
) -> dict[int, MessageNode]:
    """The answers of an earlier request that a changed history still holds, by their new index.

    Answers that say the same stand for each other in order: from the start as far as the histories agree, then from
    the end backwards.
    """
    unused: dict[Meaning, list[MessageNode]] = {}
    for node in (*closest.path, closest.answer):
        if node.sampled is not None:
            unused.setdefault(node.meaning, []).append(node)
    after = without_system(meanings)
    head = len(meanings) - len(after) + common_start(without_system(closest.meanings()), after)
    found = {}
    for index in (*range(head), *range(len(meanings) - 1, head - 1, -1)):
        nodes = unused.get(meanings[index])
        if nodes:
            node = nodes.pop(0 if index < head else -1)
            if index >= known and same_reasoning(sent[index], node.message):
                found[index] = node
    return found


def _to_render(
    sent: Sequence[Message], path: Sequence[MessageNode], taken_over: dict[int, MessageNode], calls: CallPlaces
) -> list[Message]:
    """The messages of a request as they were known before; the others as sent, but for ids of calls that the agent
    wrote anew: a result has the id that its call has."""
    messages = [node.message for node in path]
    for index in range(len(path), len(sent)):
        message = taken_over[index].message if index in taken_over else sent[index]
        place = calls.find_call(index)
        if isinstance(place, tuple):
            distance, number = place
            own = messages[index - distance]["tool_calls"][number].get("id")
            message = message if own == message["tool_call_id"] else {**message, "tool_call_id": own}
        messages.append(message)
    return messages

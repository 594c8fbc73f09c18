"""Make tasks about documents: several kinds of questions, each with evidence that stands there word for word."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from astune.data.checks import Checks, add_check
from astune.data.documents import Document, Passage
from astune.data.grow import PER_CALL, Parent
from astune.data.made import Dropped, Made
from astune.data.prompts import ASK_FOR, NOT_IN_DOCUMENTS, Message, ProposedTask, ask_messages
from astune.data.screen import form_of
from astune.support.words import Words, features, holds, words_of

OF_TWO = ("two", "computed")
"""Kinds of questions that take two passages."""
NEAREST = 3
"""Passages in which an answer is looked for that the documents are not to have."""


@dataclass(frozen=True)
class Spot(Parent):
    """A passage to ask about, for some kinds with the one beside it."""

    passages: Sequence[Passage]
    features: Sequence[frozenset[Words]]
    """Of each passage."""

    def ask(self, kind: str, visit: int) -> list[Message]:
        return ask_messages([passage.text for passage in self._passages(kind)], kind, PER_CALL, visit)

    def _passages(self, kind: str) -> list[Passage]:
        """The passage, and for a question of two the next; after the last the first."""
        numbers = range(self.number, self.number + 1 + (kind in OF_TWO))
        return [self.passages[number % len(self.passages)] for number in numbers]

    def make(self, proposed: ProposedTask, lineage: dict[str, Any]) -> Made:
        passages, absent = self._passages(lineage["kind"]), lineage["kind"] == "absent"
        where = [{"file": one.file, "place": one.place, "start": one.start} for one in passages]
        lineage = {"documents": where, **lineage, "evidence": [] if absent else proposed.evidence}
        answer = NOT_IN_DOCUMENTS if absent else proposed.answer.strip()
        columns = {"context": "\n\n".join(passage.text for passage in passages)}
        return Made(proposed.question.strip(), answer, lineage, columns)

    async def prove(self, made: Made) -> Made | Dropped:
        """The evidence costs nothing. Then the answer must come from the documents, and not without them."""
        kind = made.lineage["kind"]
        if kind == "absent":
            return await self._look_everywhere(made)
        texts = [passage.text for passage in self._passages(kind)]
        if problem := find_problem(made, texts):
            return Dropped(made, "evidence", problem)
        if kind == "computed" and (form := form_of(made.task)) != "a number":
            return Dropped(made, "format", f"{form}, expected a number")
        proved = await self.checks.prove(made, texts, ("agree",) if kind != "computed" else self.checks.config.checks)
        if isinstance(proved, Dropped):
            return proved
        known = await self.checks.solve(made.query, None)
        if not known:
            return Dropped(made, "unchecked", "no answer without the document could be read")
        if any([await self.checks.same(made, answer) for answer in known]):
            return Dropped(made, "known", f"without the document: {', '.join(dict.fromkeys(known))!r:.200}")
        return await self.checks.finish(add_check(proved, "evidence", {"closed_book": len(known)}))

    async def _look_everywhere(self, made: Made) -> Made | Dropped:
        """Readers of the nearest passages must all find no answer."""
        asked, numbers = features(made.query), range(len(self.passages))
        nearest = sorted(numbers, key=lambda number: -len(asked & self.features[number]))[:NEAREST]
        texts = [self.passages[number].text for number in dict.fromkeys([self.number, *nearest])]
        proved = await self.checks.prove(made, texts, ("agree",))
        if isinstance(proved, Dropped):
            return replace(proved, reason="found" if proved.reason != "unchecked" else "unchecked")
        return await self.checks.finish(proved)


def spots_of(documents: Sequence[Document], checks: Checks) -> list[Spot]:
    """The passages of the documents of one split. One that is alone is asked about in no question of two."""
    passages = [passage for document in documents for passage in document.passages]
    found = [features(passage.text) for passage in passages]
    kinds = [kind for kind in ASK_FOR if len(passages) > 1 or kind not in OF_TWO]
    names = [f"{one.file} {one.place} {one.start}" for one in passages]
    return [Spot(names[n], one.text, n, kinds, checks, passages, found) for n, one in enumerate(passages)]


def find_problem(made: Made, texts: Sequence[str]) -> str:
    """The reason why the evidence of a task is none; empty if it is. White space aside it stands in the texts word for
    word: in each of two, and of one fact it holds the answer."""
    spans = [_squeeze(span) for span in made.lineage["evidence"] if span.strip()]
    documents = [_squeeze(text) for text in texts]
    if not spans:
        return "no evidence was given"
    for span in spans:
        if not any(span in document for document in documents):
            return f"not in the document: {span!r:.200}"
    if not all(any(span in document for span in spans) for document in documents):
        return "the evidence is in one of the two documents alone"
    if made.lineage["kind"] == "fact" and not holds(words_of(" ".join(spans)), words_of(made.answer)):
        return f"the evidence does not hold the answer {made.answer!r:.80}"
    return ""


def split_documents(documents: Sequence[Document], share: float) -> tuple[list[Document], list[Document]]:
    """The documents to ask about, and those whose questions are held out: at least one of each where there are two that
    do not say the same. Which is which depends on their texts alone."""
    groups = group_editions(sorted(documents, key=lambda document: document.digest))
    count = min(max(1, round(share * len(groups))), len(groups) - 1) if share else 0
    held_out = [document for group in groups[:count] for document in group]
    return [document for document in documents if document not in held_out], held_out


def group_editions(documents: Sequence[Document]) -> list[list[Document]]:
    """Put documents together of which one has half of the sentences of the other, as two editions have."""
    said, owners = [document.sentences for document in documents], defaultdict[Words, list[int]](list)
    group_of = list(range(len(documents)))
    for number, own in enumerate(said):
        shared = Counter(other for sentence in own for other in owners[sentence])
        for other, count in shared.items():
            if 2 * count >= min(len(own), len(said[other])):
                group_of = [group_of[other] if group == group_of[number] else group for group in group_of]
        for sentence in own:
            owners[sentence].append(number)
    places = dict.fromkeys(group_of)
    return [[documents[n] for n, group in enumerate(group_of) if group == place] for place in places]


def _squeeze(text: str) -> str:
    return " ".join(text.split())

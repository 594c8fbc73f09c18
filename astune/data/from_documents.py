"""Make tasks about documents: several kinds of questions, each with evidence that stands there word for word."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from astune.data.checks import Checks, add_check
from astune.data.documents import Document, Passage
from astune.data.expand import digest
from astune.data.grow import PER_CALL
from astune.data.made import Dropped, Made
from astune.data.prompts import ASK_FOR, NOT_IN_DOCUMENTS, Proposals, ask_messages
from astune.support.words import features, holds, words_of

KINDS = tuple(ASK_FOR)
OF_TWO = ("two", "computed")
"""Kinds of questions that take two passages."""
NEAREST = 3
"""Passages in which an answer is looked for that the documents are not to have."""


class Library:
    """The passages of the documents of one split."""

    def __init__(self, documents: Sequence[Document]) -> None:
        self.passages = [passage for document in documents for passage in document.passages]
        self._features = [features(passage.text) for passage in self.passages]

    def beside(self, number: int) -> Passage | None:
        """The passage after it, of the same document or the next; the first after the last. None where it is alone."""
        return self.passages[(number + 1) % len(self.passages)] if len(self.passages) > 1 else None

    def nearest(self, question: str) -> list[Passage]:
        """The passages that share most with a question."""
        asked = features(question)
        order = sorted(range(len(self.passages)), key=lambda number: -len(asked & self._features[number]))
        return [self.passages[number] for number in order[:NEAREST]]


@dataclass(frozen=True)
class Spot:
    """A passage to ask about, for some kinds with the one beside it."""

    library: Library
    number: int
    checks: Checks

    @property
    def passage(self) -> Passage:
        return self.library.passages[self.number]

    @property
    def name(self) -> str:
        return f"{self.passage.file} {self.passage.place} {self.passage.start}"

    @property
    def text(self) -> str:
        return self.passage.text

    def ask(self, visit: int) -> tuple[str, list[dict[str, str]]]:
        """The kind of questions of a visit, and the question to the model."""
        kind = KINDS[(self.number + visit) % len(KINDS)]
        if kind in OF_TWO and self.library.beside(self.number) is None:
            kind = "fact"
        return kind, ask_messages([passage.text for passage in self._passages(kind)], kind, PER_CALL, visit)

    def _passages(self, kind: str) -> list[Passage]:
        beside = self.library.beside(self.number) if kind in OF_TWO else None
        return [self.passage] if beside is None else [self.passage, beside]

    async def propose(self, visit: int) -> list[Made]:
        kind, messages = self.ask(visit)
        reply = await self.checks.asking.reply(messages, Proposals)
        if reply is None:
            return []
        passages = self._passages(kind)
        lineage = {"documents": [passage.where() for passage in passages], "kind": kind}
        lineage |= {"model": reply.model, "prompt": digest(messages)}
        columns = {"context": "\n\n".join(passage.text for passage in passages)}
        return [
            Made(
                one.question.strip(),
                NOT_IN_DOCUMENTS if kind == "absent" else one.answer.strip(),
                {**lineage, "evidence": [] if kind == "absent" else one.evidence},
                columns,
            )
            for one in reply.value.tasks
        ]

    async def prove(self, made: Made) -> Made | Dropped:
        """The evidence is looked for first, which costs nothing. Then the answer must come from the documents, and not
        without them."""
        kind = made.lineage["kind"]
        if kind == "absent":
            return await self._look_everywhere(made)
        texts = [passage.text for passage in self._passages(kind)]
        if problem := find_problem(made, texts):
            return Dropped(made, "evidence", problem)
        proved = await self.checks.prove(made, texts, ("agree",) if kind != "computed" else self.checks.config.checks)
        if isinstance(proved, Dropped):
            return proved
        known = await self.checks.solve(self.checks.asking, made.query, None, self.checks.config.solutions)
        if any([await self.checks.same(made, answer) for answer in known]):
            return Dropped(made, "known", f"without the document: {', '.join(dict.fromkeys(known))!r:.200}")
        return await self.checks.try_policy(add_check(proved, "evidence", {"closed_book": len(known)}), texts)

    async def _look_everywhere(self, made: Made) -> Made | Dropped:
        """Readers of the nearest passages must all find no answer."""
        passages = dict.fromkeys([self.passage, *self.library.nearest(made.query)])
        texts = [passage.text for passage in passages]
        proved = await self.checks.prove(made, texts, ("agree",))
        if isinstance(proved, Dropped):
            return replace(proved, reason="found" if proved.reason != "unchecked" else "unchecked")
        return await self.checks.try_policy(proved, texts)


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
    """The documents to ask about, and those whose questions are held out: at least one of each where there are two.
    Which is which depends on their texts alone."""
    count = min(max(1, round(share * len(documents))), len(documents) - 1) if share else 0
    held_out = set(sorted(document.digest for document in documents)[:count])
    return (
        [document for document in documents if document.digest not in held_out],
        [document for document in documents if document.digest in held_out],
    )


def _squeeze(text: str) -> str:
    return " ".join(text.split())

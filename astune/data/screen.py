"""What a proposed task must pass before anything is paid to check its answer, and what it must pass after that."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from astune.check_tasks.wordings import options
from astune.data.made import Dropped, Made
from astune.data.near import Copies, Leaks, name_task
from astune.support.words import words_of
from astune.task_judge.math.final_answer import reference_answer
from astune.task_judge.math.normalise import normalise
from astune.task_judge.math.quantity import read_quantity
from astune.types import Task

_BLANK = re.compile(
    r"\{\w*\}|\[(?:[A-Z_ ]{2,}|name|number|insert[^\]]*|\.\.\.)\]|_{3,}|<(?:name|number|answer|question)>|\bTODO\b"
)
"""A place of a template that nobody filled in."""
FEWEST = 2
"""Frequent words that a text must have before a language in Latin script is told."""
FREQUENT = {
    "en": "the of and to in is was that it for with as are his her this by from have has how many much what which who "
    "when does did do each if at on be or an",
    "de": "der die das und ist nicht ein eine zu den dem des mit von wie viele viel was welche welcher wer wann hat im "
    "auf für sind wird aus bei am",
    "fr": "le la les et est une des du que qui dans pour pas sur avec il elle combien quel quelle quels sont au aux ce "
    "cette chaque ont",
    "es": "el la los las y es una un del que en por para con no su cuántos cuántas cuánto cuál qué quién son al cada "
    "tiene cuando",
    "it": "il lo la i gli le e è un una di che in per con non quanti quante quanto quale chi sono del della ogni ha",
    "pt": "o a os as e é um uma do da que em por para com não quantos quantas quanto qual quem são dos das cada tem",
    "nl": "de het een en is niet van in op te dat voor met hoeveel wat welke wie wanneer zijn aan heeft er",
}


@dataclass(frozen=True)
class Lengths:
    """Words that a question may have."""

    fewest: int
    most: int

    @classmethod
    def around(cls, questions: Sequence[str]) -> Lengths:
        """Half of the shortest question to twice the longest."""
        counts = [len(words_of(question)) for question in questions]
        return cls(max(2, min(counts) // 2), 2 * max(counts) + 2)


def language_of(text: str) -> str | None:
    """The language or script of a text; None where it cannot be told.

    >>> [language_of(text) for text in ("How many apples are left?", "Wie viele Äpfel sind es?", "还剩多少?", "6 * 7")]
    ['en', 'de', 'Cjk', None]
    """
    letters = Counter(unicodedata.name(letter, "?").split()[0] for letter in text if letter.isalpha())
    latin = letters.pop("LATIN", 0)
    kana = letters["HIRAGANA"] + letters["KATAKANA"]
    if kana and kana * 4 >= letters["CJK"]:  # Japanese has Chinese signs too
        return "Japanese"
    script, count = max(letters.items(), key=lambda one: one[1], default=("", 0))
    if count * 3 > latin:  # a sign of Chinese says as much as a few letters
        return script.capitalize()
    words = words_of(text)
    found = Counter({name: sum(word in frequent.split() for word in words) for name, frequent in FREQUENT.items()})
    (first, most), (_, second) = found.most_common(2)
    return first if most >= FEWEST and most > second else None


def form_of(task: Task) -> str:
    """The form of its answer, "an answer" where it has none.

    >>> [form_of(Task("1", "...", answer=answer)) for answer in ("So it is 6.\\n#### 6", "$7.50", "Yes", "Ada")]
    ['a number', 'a number', 'yes or no', 'words']
    """
    answer = reference_answer(task.answer or "").strip()
    if not answer:
        return "an answer"
    if options(task):
        return "one of the options that the question gives"
    if answer.rstrip(".").casefold() in ("yes", "no", "true", "false"):
        return "yes or no"
    return "a number" if read_quantity(normalise(answer)) else "several lines" if "\n" in answer else "words"


class TaskScreen:
    """Looks at proposals in turn. `originals` are tasks that are there; to `held_out` nothing may be close. `forms` are
    those of `form_of` that answers may have; none: any. `of_kind` says that those held out are of the kind of
    the proposals."""

    def __init__(
        self,
        originals: Sequence[Task],
        held_out: Sequence[Task],
        lengths: Lengths,
        forms: Collection[str] = (),
        *,
        of_kind: bool = False,
    ) -> None:
        self._lengths, self._forms = lengths, forms
        self._leaks = Leaks(held_out, originals, of_kind=of_kind)
        self._copies = Copies()
        for task in originals:
            self._copies.add(task)

    def look(self, made: Made, source: str) -> Dropped | None:
        """The reason against a proposal, before its answer is checked; `source` is the text that it was made from."""
        found = self._look(made, source) or self._find_there(made)
        return None if found is None else Dropped(made, *found)

    def look_at_asked(self, made: Made) -> Dropped | None:
        """The reason against a question that a person asked, who may write as they like."""
        found = ("empty", "no question") if not made.query.strip() else self._find_there(made)
        return None if found is None else Dropped(made, *found)

    def _look(self, made: Made, source: str) -> tuple[str, str] | None:
        task = made.task
        if not made.query.strip() or (task.env_type is None and not made.answer.strip()):
            return "empty", "no question" if not made.query.strip() else "no answer"
        if blank := _BLANK.search(f"{made.query}\n{made.answer}"):
            return "empty", f"a blank: {blank[0]!r}"
        count, lengths = len(words_of(made.query)), self._lengths
        if not lengths.fewest <= count <= lengths.most:
            return "length", f"{count} words, expected {lengths.fewest} to {lengths.most}"
        if self._forms and (form := form_of(task)) not in self._forms:
            return "format", f"{form}, expected {' or '.join(sorted(self._forms))}"
        ours, theirs = language_of(made.query), language_of(source)
        if ours is not None and theirs is not None and ours != theirs:
            return "language", f"{ours}, expected {theirs}"
        return None

    def _find_there(self, made: Made) -> tuple[str, str] | None:
        task = made.task
        if leak := self._leaks.find(task):
            return "leak", f"holds {leak[1]:.0%} of {name_task(leak[0])}"
        if same := self._copies.find_same(task):
            return "copy", f"of {name_task(same)}"
        return None

    def admit(self, made: Made) -> Dropped | None:
        """The reason against a task whose answer was checked; without one it is there from now on."""
        if same := self._copies.find_same(made.task):
            return Dropped(made, "copy", f"of {name_task(same)}")
        if near := self._copies.find_near(made.task):
            return Dropped(made, "near copy", f"{near[1]:.0%} of {name_task(near[0])}")
        self._copies.add(made.task)
        return None

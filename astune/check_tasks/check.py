"""Find the answers that a judge takes for right and that must be wrong, or the other way round, task by task."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from astune.check_tasks.judged_tasks import JudgedTasks
from astune.check_tasks.near_misses import NEAR_MISSES, OF_NUMBERS, near_misses
from astune.check_tasks.try_answers import OnTried, TriedAnswer, in_best_words, try_answers
from astune.check_tasks.wordings import EMPTY, MATH_JUDGE, NO_ANSWER, UNKNOWN, all_at_once, as_answer, right_answer
from astune.task_judge import MathAnswerAsJudge
from astune.task_judge.math.compare import Relation, compare
from astune.task_judge.math.final_answer import reference_answer
from astune.task_judge.math.normalise import normalise
from astune.task_judge.math.quantity import read_quantity
from astune.types import Task, Verdict

TO_FIND_THE_WORDS = 20
"""Reference answers that are written in one way after the other, until a judge takes them."""

GOLD, READ, REPEATED, ALL, OTHER = (
    "the reference answer",
    "a readable reference",
    "the question repeated",
    "all options at once",
    "another task's answer",
)
MUST_PASS = (GOLD, READ)
ALWAYS = (GOLD, EMPTY, UNKNOWN, REPEATED, ALL)
"""Answers that `check_tasks` gives to every task."""
KINDS = (GOLD, READ, EMPTY, UNKNOWN, REPEATED, ALL, OTHER, *NEAR_MISSES)
"""All of them. The first must be right, of the second an answer in other words must be able to be; the others must be
wrong."""


@dataclass(frozen=True)
class CheckedTask:
    """The answers to one task that were tried on its judge, by kind."""

    task: Task
    tried: Mapping[str, TriedAnswer]

    @property
    def misjudged(self) -> list[str]:
        """Kinds of answers of which the judge says the wrong thing. An answer that it cannot judge does not pass."""
        right = self.tried[GOLD]
        return [
            kind
            for kind, one in self.tried.items()
            if (not one.right if kind in MUST_PASS else one.passes_beside(right))
        ]


NEARLY = Fraction(1, 100)
"""By less may numbers differ of which a judge may take one for the other rounded."""
OTHERS = 20
"""References of other tasks, following and first ones, among which one of another value is looked for."""
WrongAnswers = Sequence[Mapping[str, str]]
"""For each task of a judge, wrong answers by kind: those of `KINDS` that suit it, beside those that suit all."""


def wrong_answers(judged: JudgedTasks) -> WrongAnswers:
    """Near misses of each reference, and the answer of another task. A model is asked about two of them for each
    task, in turn."""
    references = _references(judged)
    found: list[Mapping[str, str]] = []
    for number, task in enumerate(judged.tasks):
        near = near_misses(task)
        if "ReasoningGymJudge" in judged.names:  # which often takes several answers
            found.append({kind: text for kind, text in near.items() if kind in OF_NUMBERS})
            continue
        if judged.asks_models and near:
            kind = [*near][number % len(near)]
            near = {kind: near[kind]}
        other = _another(references[number], _others(references, number))
        found.append(({} if other is None else {OTHER: other}) | near)
    return found


def _references(judged: JudgedTasks) -> list[str]:
    return [reference_answer(task.answer or "") for task in judged.tasks]


def _others(references: Sequence[str], number: int) -> list[str]:
    return [*references[number + 1 : number + OTHERS], *references[:OTHERS]]


def _another(reference: str, others: Sequence[str]) -> str | None:
    """The first that certainly is another answer: another number, else words that share none."""
    own = normalise(reference)
    normal = {other: normalise(other) for other in dict.fromkeys(others)}
    number = read_quantity(own)
    for other, text in normal.items():
        given = read_quantity(text) if number else None
        if number and given and number.equals(given) is not True and abs(number.value - given.value) > NEARLY:
            return other
    words = {*own.lower().split()}
    for other, text in normal.items():
        if text and not words & {*text.lower().split()} and compare(own, text) in (Relation.UNREAD, Relation.DIFFERENT):
            return other
    return None


async def check_judged(
    judged: JudgedTasks, on_tried: OnTried = lambda: None, wrong: WrongAnswers | None = None
) -> tuple[list[CheckedTask], str]:
    """All tasks of a judge, with the words in which the reference answers were written. `wrong` is what `wrong_answers`
    found."""
    first, wording = await in_best_words(judged, judged.tasks[:TO_FIND_THE_WORDS])
    for _ in first:
        on_tried()
    rest = judged.tasks[len(first) :]
    gold = [*first, *await try_answers(judged, [(task, right_answer(task, wording)) for task in rest], on_tried)]
    references = _references(judged)
    to_try: list[tuple[Task, str, str | None]] = []
    by_task = zip(judged.tasks, wrong_answers(judged) if wrong is None else wrong, strict=True)
    for number, (task, suiting) in enumerate(by_task):
        at_once = all_at_once(task, _others(references, number), wording, place=number)
        always = (NO_ANSWER[EMPTY], NO_ANSWER[UNKNOWN], task.query, at_once)
        to_try += [(task, kind, text) for kind, text in zip(ALWAYS[1:], always, strict=True)]
        whole = not judged.asks_models  # a model would be confused by a solution that ends with another answer
        to_try += [(task, kind, as_answer(task, text, wording, whole)) for kind, text in suiting.items()]
    tried = await try_answers(judged, [(task, text) for task, _, text in to_try], on_tried)
    found = [{GOLD: right} for right in gold]
    for of_task, reading in zip(found, await _readings(judged), strict=False):
        of_task[READ] = reading
    found_of = {id(task): of_task for task, of_task in zip(judged.tasks, found, strict=True)}
    for (task, kind, _), one in zip(to_try, tried, strict=True):
        found_of[id(task)][kind] = one
    return [CheckedTask(right.task, of_task) for right, of_task in zip(gold, found, strict=True)], wording


async def _readings(judged: JudgedTasks) -> list[TriedAnswer]:
    """Try whether an answer in other words than the reference can equal it; empty where no judge of mathematics is
    asked. A paragraph in a box equals itself."""
    if MATH_JUDGE not in judged.names:
        return []
    judge = MathAnswerAsJudge(judged.config)

    async def one(task: Task) -> TriedAnswer:
        why = await judge.unreadable(task.answer or "")
        return TriedAnswer(task, task.answer, Verdict(float(why is None), why is None, why or ""))

    return await asyncio.gather(*map(one, judged.tasks))

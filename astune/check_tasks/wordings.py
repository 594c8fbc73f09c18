"""Right and wrong answers to try on judges and workflows, in the words that they ask for."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any

from astune.config.judges import TaskJudgeConfig
from astune.task_judge.math.compare import Relation, compare
from astune.task_judge.math.final_answer import reference_answer
from astune.task_judge.math.normalise import normalise
from astune.types import Task

MATH_JUDGE = "MathAnswerAsJudge"
IN_A_FORMAT = {MATH_JUDGE, "MathAnswerAndLlmAsJudge"}
"""Judges that look for the answer where `astune.task_judge.answer_format` says."""
IN_ANY_WORDS = {"LlmAsJudge", "RubricsAsJudge"}
"""Judges that do so where it says anything but "auto"."""
BY_FORMAT: Mapping[str, str] = {
    "auto": "\\boxed{{{}}}",
    "boxed": "\\boxed{{{}}}",
    "answer_tag": "<answer>{}</answer>",
    "hashes": "#### {}",
    "the_answer_is": "The answer is {}.",
    "plain": "{}",
    "last_number": "So it is {}.",
}
"""The pattern (of `str.format`) of an answer in each `astune.task_judge.answer_format`."""

OTHERS = ("Answer: {}", '{{"answer": "{}"}}')
"""Further forms that judges of users ask for."""

EMPTY, UNKNOWN = "an empty answer", '"I don\'t know"'
NO_ANSWER: Mapping[str, str | None] = {
    EMPTY: "",
    UNKNOWN: "I don't know.",
    "an attempt that ran out of turns": None,
}
"""None is an episode without an output (`episode.output is None`)."""

LABELS = ("label", "labels", "key", "id", "letter")
TEXTS = ("text", "texts", "value", "content", "option")
_OPTION = re.compile(r"(?:(?<=^)|(?<=[\s,;:]))\(?([A-J])\)\s*(.*?)(?=[\s,;:]\(?[A-J]\)|\n|$)", re.DOTALL)


def wordings(config: TaskJudgeConfig) -> list[str]:
    """Patterns to try: the one of the format where it says where the answer stands, the answer alone for judges that
    read any, or for a judge of the user's own all there are."""
    names = {named.judge for named in config.judges}
    if names & IN_A_FORMAT or (names & IN_ANY_WORDS and config.answer_format != "auto"):
        return [BY_FORMAT[config.answer_format]]
    if names and names <= IN_ANY_WORDS:
        return ["{}"]
    return list(dict.fromkeys(["{}", *reversed(list(BY_FORMAT.values())), *OTHERS]))


def right_answer(task: Task, wording: str) -> str:
    """The reference answer in words: all of it where it stands alone, else what it says at its end.

    >>> right_answer(Task("1", "2 + 2?", answer="2 and 2 are 4\\n#### 4"), "The answer is {}.")
    'The answer is 4.'
    """
    answer = task.answer or ""
    return answer if wording == "{}" else wording.format(reference_answer(answer))


def as_answer(task: Task, text: str, wording: str, whole: bool) -> str:
    """`text` in the place of the reference answer: in the same words, and `whole` with the solution that stands before
    it.

    >>> as_answer(Task("1", "2 + 2?", answer="2 and 2 are 4\\n#### 4"), "5", "{}", whole=True)
    '2 and 2 are 4\\n#### 5'
    """
    before, found, after = (task.answer or "").rpartition(reference_answer(task.answer or "") or "####")
    return f"{before}{text}{after}" if whole and found and wording == "{}" else wording.format(text)


def wrong_answer(task: Task, others: Iterable[Task], wording: str) -> str:
    """The right answer of another task, in the same words; a number that hardly any task has if there is none."""
    own = normalise(reference_answer(task.answer or ""))
    for other in others:
        if other.answer is not None and normalise(reference_answer(other.answer)) != own:
            return right_answer(other, wording)
    return wording.format("-987654321")


def all_at_once(task: Task, others: Sequence[str], wording: str, place: int) -> str:
    """All options of the task in one answer; where it has none, its right answer at a `place` among two of `others`,
    reference answers of other tasks.

    >>> all_at_once(Task("1", "9 * 8?", answer="72"), ["72", "15", "9"], "The answer is {}.", place=0)
    'The answer is 72, 15 or 9.'
    """
    said = options(task)
    if not said:
        own = reference_answer(task.answer or "")
        same = normalise(own)
        differ = (each for each in dict.fromkeys(others) if compare(same, normalise(each)) is not Relation.EQUAL)
        said = [*islice(differ, 2)] or ["-987654321"]
        said.insert(place % (len(said) + 1), own)
    return wording.format(f"{', '.join(said[:-1])} or {said[-1]}")


def options(task: Task) -> list[str]:
    """The options that the task gives to choose from, in its field `options` or `choices` or in its question as
    "A) ... B) ...": the letters where the reference answer is one, else the texts. Empty if it gives no choice.

    >>> options(Task("1", "Which one? (A) red (B) blue", answer="B"))
    ['A', 'B']
    """
    found = _read_options(task.metadata.get("options")) or _read_options(task.metadata.get("choices"))
    if not found:
        found = [(label, text.strip(" ,;.")) for label, text in _OPTION.findall(task.query)]
        if [label for label, _ in found] != [chr(ord("A") + number) for number in range(len(found))]:
            return []
    if len(found) < 2:
        return []
    own = normalise(reference_answer(task.answer or "")).strip("()").casefold()
    labels, texts = ([str(pair[side]).strip() for pair in found] for side in (0, 1))
    return labels if own in {label.strip("()").casefold() for label in labels} or not all(texts) else texts


def _read_options(value: Any) -> list[tuple[str, str]]:
    """Pairs of label and text, of `["red", "blue"]`, `{"A": "red", "B": "blue"}`, `[{"label": "A", "text": "red"}]` and
    `{"label": ["A", "B"], "text": ["red", "blue"]}`."""
    if isinstance(value, Mapping):
        columns = [next((value[name] for name in names if name in value), None) for names in (LABELS, TEXTS)]
        if isinstance(columns[0], Sequence) and isinstance(columns[1], Sequence):
            return list(zip(map(str, columns[0]), map(str, columns[1]), strict=False))
        return [(str(label), str(text)) for label, text in value.items()]
    if not isinstance(value, Sequence) or isinstance(value, str):
        return []
    rows = [entry if isinstance(entry, Mapping) else {"text": entry} for entry in value]
    return [
        (
            str(next((row[name] for name in LABELS if name in row), chr(ord("A") + number))),
            str(next((row[name] for name in TEXTS if name in row), "")),
        )
        for number, row in enumerate(rows)
    ]

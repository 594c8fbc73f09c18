"""`MathAnswerAsJudge`: is the final answer of an episode mathematically equal to the reference answer?"""

from __future__ import annotations

import asyncio
import re
import threading
from concurrent.futures import Future
from dataclasses import dataclass
from enum import Enum
from fractions import Fraction
from pathlib import Path
from typing import Any

from astune.config.judges import TaskJudgeConfig
from astune.errors import JudgeError
from astune.task_judge.answer_text import answer_text, cut_off, quote
from astune.task_judge.judge_base import seconds_for_a_check
from astune.task_judge.math.compare import Relation, compare, for_algebra, is_known_kind, is_unfinished
from astune.task_judge.math.final_answer import FinalAnswer, extract_answer, reference_answer
from astune.task_judge.math.normalise import MAX_LENGTH, is_words, normalise
from astune.task_judge.math.quantity import read_quantity, without_label
from astune.types import Episode, Task, Verdict
from astune.workers.pool import RequestFailed, WorkerPool

WORKER_FILE = Path(__file__).with_name("worker.py")
MAX_KNOWN = 100_000
"""Results that are kept, some 100 bytes each."""


class AnswerAtFault(JudgeError):
    """The comparison took too long or failed, while the reference alone is quickly read."""


class MathPool:
    """`equal` from any number of episodes at once, see `WorkerPool`."""

    def __init__(self, workers: int, timeout: float) -> None:
        self._pool = WorkerPool([str(WORKER_FILE)], workers, timeout)
        self._known: dict[tuple[str, ...], Future[dict[str, Any]]] = {}
        self._lock = threading.Lock()

    @property
    def pids(self) -> list[int]:
        """Ids of the processes that are running."""
        return self._pool.pids

    async def equal(self, reference: str, answer: str, half: Fraction | None = None) -> bool | None:
        """None for an answer that is no mathematics. `half` is how far off the answer may be where the reference is
        rounded. Raises `AnswerAtFault` if the comparison took too long or failed but not that of the reference with
        itself, and `JudgeError` where nothing can be told of the answer.

        The attempts at one task often end with the same answer: it is compared once. Failures are not kept.
        """
        request = (reference, answer) if half is None else (reference, answer, str(half))
        try:
            reply = await self._reply(request)
        except RequestFailed as error:
            if await self.reads(reference):
                raise AnswerAtFault(str(error)) from error
            raise
        return None if reply["equal"] is None else bool(reply["equal"])

    async def reads(self, reference: str) -> bool:
        """True if `reference` is mathematics, and quickly found equal to itself."""
        try:
            return bool((await self._reply((reference, reference)))["equal"])
        except RequestFailed:
            return False

    async def _reply(self, request: tuple[str, ...]) -> dict[str, Any]:
        return await asyncio.shield(asyncio.wrap_future(self._future(request)))

    def _future(self, request: tuple[str, ...]) -> Future[dict[str, Any]]:
        with self._lock:
            future = self._known.get(request)
            if future is None or (future.done() and future.exception() is not None):
                if len(self._known) >= MAX_KNOWN:
                    self._known.clear()
                what = f"comparing {request[1]!r} with {request[0]!r}"
                future = self._known[request] = self._pool.submit(request, what)
        return future


NAME = "MathAnswerAsJudge"
MOST_WORDS = 6
"""A reference of more words is prose: nobody else writes just these."""
SIGNS = frozenset(("<", ">", "=", "+", "-", "/", "*"))
"""References that are compared as text."""
_NOTHING = re.compile(r"[\s.?!$_]*|.*(?:####|\\boxed|</?answer>).*", re.IGNORECASE | re.DOTALL)
_WITH_UNIT = re.compile(r"[-+]?[\d.,]+ (?:[A-ZΩµ]|[A-Za-zΩµ]{2,}|[A-Za-z] ?/|\\frac ?\{ ?[A-Za-z])[^+\-=<>]*")


class MathOutcome(Enum):
    RIGHT = "right"
    WRONG = "wrong"
    """Also an empty answer, and one that was cut off."""
    UNREAD = "unread"
    """There is a text, but no answer in an accepted format, or it or the reference is words, or it took too
    long to compare or made the comparison fail."""
    FAILED = "failed"
    """Nothing can be told of the answer: the reference looks like a formula and is none, or takes too long alone."""


@dataclass(frozen=True)
class MathResult:
    outcome: MathOutcome
    reason: str
    found: bool = True
    """True if the text has an answer where the format wants it."""

    def verdict(self) -> Verdict:
        right = self.outcome is MathOutcome.RIGHT
        return Verdict(float(right), right, self.reason, self.metrics, NAME)

    @property
    def metrics(self) -> dict[str, float]:
        read = self.found and self.outcome in (MathOutcome.RIGHT, MathOutcome.WRONG)
        return {"answer_found": float(self.found), "answer_read": float(read)}


class MathAnswerAsJudge:
    """Reward 1.0 for a right final answer, 0.0 for a wrong one, for one that cannot be read, and for none.

        verdict = await MathAnswerAsJudge(TaskJudgeConfig()).judge(task, episode)
        verdict.reason  # "'72' (boxed) equals the reference '72'"

    Only an answer that is marked as one counts (`astune.task_judge.answer_format`); the last number of a text does
    only if that is the format. A last message that ran into its token limit is no answer: rewarding it would teach
    the policy not to stop. Numbers are compared exactly and in this process, formulas by math-verify in `workers`
    processes. An answer that takes a tenth of `astune.task_judge.timeout` of computing, while its reference alone does
    not, is worth nothing: else it would pay to give such answers. The metrics say whether an answer was found and
    whether it could be read.
    Raises `JudgeError` for a task without reference, a reference that is no mathematics, an answer that is neither
    text nor number, an episode that broke off without output, and a reference that takes too long itself: none of them
    says anything about the answer.
    """

    def __init__(self, config: TaskJudgeConfig, workers: int = 2) -> None:
        self._answer_format = config.answer_format
        self._must_be_evaluated = config.must_be_evaluated
        self._pool = MathPool(workers, seconds_for_a_check(config))

    async def judge(self, task: Task, episode: Episode) -> Verdict:
        result = await self.result_of(task, episode)
        if result.outcome is MathOutcome.FAILED:
            raise JudgeError(f"task {task.task_id!r}: {result.reason}")
        return result.verdict()

    async def result_of(self, task: Task, episode: Episode) -> MathResult:
        """The outcome that mathematics can tell. Raises `JudgeError` for a task without reference, an answer
        that is neither text nor number, and an episode that broke off without output."""
        if task.answer is None or not (reference := reference_answer(task.answer)):
            raise JudgeError(
                f"task {task.task_id!r} has no reference answer, which {NAME} compares with; "
                "astune.task_reader.fields.answer names its column"
            )
        text = answer_text(task, episode)
        if cut_off(episode, text):
            return MathResult(MathOutcome.WRONG, "the answer was cut off before it ended", found=False)
        if not text.strip():
            return MathResult(MathOutcome.WRONG, "no answer", found=False)
        final = extract_answer(text, self._answer_format)
        if final is None:
            return MathResult(MathOutcome.UNREAD, f"no answer in the format {self._answer_format!r}", found=False)
        try:
            return await self._compare(task.query, reference, final)
        except AnswerAtFault as error:
            return MathResult(MathOutcome.UNREAD, f"{error}; the reference alone is read quickly")
        except JudgeError as error:
            return MathResult(MathOutcome.FAILED, str(error))

    async def unreadable(self, answer: str) -> str | None:
        """Why hardly any answer but its very text can equal the reference in `answer`; None if others can."""
        reference = reference_answer(answer)
        normal = normalise(reference)
        if _NOTHING.fullmatch(normal):
            return "the reference is empty"
        formula = without_label(normal)
        words = len(formula.split())
        if len(normal) > MAX_LENGTH or (is_words(formula) and words > MOST_WORDS and read_quantity(normal) is None):
            return f"the reference is prose, {words} words: no answer in other words equals it"
        if is_words(formula) or read_quantity(normal) is not None or is_known_kind(normal) or normal in SIGNS:
            return None
        if formula == normal and _WITH_UNIT.fullmatch(normal):
            return "the reference has a unit that is not known, so it is taken for a formula: write the number alone"
        if await self._pool.reads(for_algebra(normal)):
            return None
        return "the reference cannot be read as mathematics: no answer but its very text equals it"

    async def _compare(self, question: str, reference: str, final: FinalAnswer) -> MathResult:
        expected, given = normalise(reference), normalise(final.text)
        relation = compare(expected, given)
        answer = f"{quote(final.text)} ({final.found_in})"
        equal: bool | None = relation is Relation.EQUAL
        if relation is Relation.UNREAD:
            equal = None
        elif relation is Relation.ALGEBRA:
            if self._must_be_evaluated and is_unfinished(question, expected, given):
                why = "is still to be worked out (astune.task_judge.must_be_evaluated)"
                return MathResult(MathOutcome.WRONG, f"{answer} {why}; the reference is {quote(reference)}")
            number = read_quantity(expected)
            equal = await self._pool.equal(for_algebra(expected), for_algebra(given), number.half if number else None)
        if equal is None:
            return MathResult(MathOutcome.UNREAD, f"{answer} cannot be compared with the reference {quote(reference)}")
        says = "equals" if equal else "does not equal"
        return MathResult(
            MathOutcome.RIGHT if equal else MathOutcome.WRONG, f"{answer} {says} the reference {quote(reference)}"
        )

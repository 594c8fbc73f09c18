"""Answers compared two at a time, each pair in both orders.

LLM judges prefer an answer for its place (arXiv 2406.07791), so a win counts only if both orders agree on it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Literal

from pydantic import BaseModel

from astune.clients.chat_models import Usage
from astune.errors import JudgeError
from astune.support.concurrency import all_or_none
from astune.task_judge.llm.case import Case, Ruling, mean, short, spread, usage_metrics
from astune.task_judge.llm.comparison import ADVICE, comparison_messages
from astune.task_judge.llm.prompts import DATA
from astune.task_judge.llm.shown import Shown

SYSTEM = f"""Judge which answer is better.
Two agents answered the same task. You get the task, the reference answer if there is one, what counts, and the answers
A and B: each the agent's final answer, or a record of all that was said and done.

{DATA}

{ADVICE}

Reply with one JSON object and nothing behind it, the reason first:
{{"reason": "<one or two sentences>", "better": "A" or "B" or "tie"}}"""

SCORE_OF_A = {"A": 1.0, "B": 0.0, "tie": 0.5}


class PairReply(BaseModel):
    reason: str
    better: Literal["A", "B", "tie"]


@dataclass(frozen=True)
class Comparison:
    """Of a first with a second answer. Scores are those of the first: 1 for a win, 0.5 for a tie, one per vote."""

    scores: tuple[float, ...]
    consistent: float | None = None
    """Share of the votes whose two orders said the same; None where nothing had to be asked."""
    reason: str = ""
    usage: Usage = field(default_factory=Usage)
    told: tuple[float, ...] = ()
    """The scores of the votes whose two orders said the same."""

    def turned(self) -> Comparison:
        scores, told = (tuple(1.0 - score for score in side) for side in (self.scores, self.told))
        return replace(self, scores=scores, told=told)


async def pairwise(case: Case, attempts: Sequence[Shown], max_opponents: int | None) -> list[Ruling | JudgeError]:
    """Each attempt against others: the reward is the share of them that it beats, a tie counts half.

    Equal answers tie, one without an answer loses to all that have one, and both need no call. A comparison whose
    reply cannot be used counts for neither side; an attempt left without any gets the error.
    """
    pairs = opponents(len(attempts), max_opponents)
    asked = list(dict.fromkeys(_unordered(attempts[i], attempts[j]) for i, j in pairs if _differ(attempts, i, j)))
    found = dict(zip(asked, await all_or_none([_compared(case, *pair) for pair in asked]), strict=True))
    usages = [result.usage for result in found.values() if isinstance(result, Comparison)]
    usage = usage_metrics(usages, len(attempts))
    own: list[list[Comparison | JudgeError]] = [[] for _ in attempts]
    for i, j in pairs:
        result = _result(attempts[i], attempts[j], found, case.votes)
        own[i].append(result)
        own[j].append(result.turned() if isinstance(result, Comparison) else result)
    return [_ruling(shown, results, usage) for shown, results in zip(attempts, own, strict=True)]


async def against_reference(case: Case, attempt: Shown) -> Ruling | JudgeError:
    """A lone attempt against the reference answer: 1 if it is better, 0.5 if as good, 0 if worse. Votes whose two
    orders disagree say nothing of whether it passes."""
    if attempt.text is None:
        return Ruling(0.0, attempt.missing)
    if case.reference is None:
        return JudgeError(
            "an attempt that is alone has nothing to be compared with: its task has no reference answer "
            "(astune.task_reader.fields.answer), and astune.task_judge.llm.mode is not 'pointwise'"
        )
    if attempt.text.strip() == case.reference.strip():
        return Ruling(0.5, "the reference answer itself")
    result = await _compared(replace(case, reference=None), attempt.text, case.reference)
    if isinstance(result, JudgeError):
        return result
    ruling = _ruling(attempt, [result], usage_metrics([result.usage], 1))
    return replace(ruling, votes=result.told) if isinstance(ruling, Ruling) else ruling


def opponents(n: int, most: int | None) -> list[tuple[int, int]]:
    """Pairs among `n`, each with equally many others: all of them, or those at the distances 1, 2, ... round a circle.

    An odd number of others among an odd `n` is impossible: it is one less, but at least two.

        opponents(5, 2)    [(0, 1), (1, 2), (2, 3), (3, 4), (4, 0)]
    """
    if most is None or most >= n - 1:
        return list(combinations(range(n), 2))
    degree = most if n % 2 == 0 or most % 2 == 0 else max(2, most - 1)
    pairs = [(i, (i + distance) % n) for distance in range(1, degree // 2 + 1) for i in range(n)]
    across = [(i, i + n // 2) for i in range(n // 2)] if degree % 2 else []
    return pairs + across


async def _compared(case: Case, first: str, second: str) -> Comparison | JudgeError:
    try:
        votes = await all_or_none([_vote(case, first, second, vote) for vote in range(case.votes)])
    except JudgeError as error:
        return error
    total = Usage()
    for vote in votes:
        total += vote.usage
    consistent = mean([vote.consistent or 0.0 for vote in votes])
    scores, told = (vote.scores[0] for vote in votes), (score for vote in votes for score in vote.told)
    return Comparison(tuple(scores), consistent, votes[0].reason, total, tuple(told))


async def _vote(case: Case, first: str, second: str, vote: int) -> Comparison:
    """One reply for each order."""
    orders = [{"A": first, "B": second}, {"A": second, "B": first}]
    prompts = [comparison_messages(case, SYSTEM, order) for order in orders]
    there, back = await all_or_none([case.ask(prompt, PairReply, vote, None) for prompt in prompts])
    score, other = SCORE_OF_A[there.value.better], 1.0 - SCORE_OF_A[back.value.better]
    same = score == other
    reason = short(there.value.reason) if same else "the two orders disagree"
    return Comparison((score if same else 0.5,), float(same), reason, there.usage + back.usage, (score,) * same)


def _differ(attempts: Sequence[Shown], i: int, j: int) -> bool:
    """Whether a model must be asked."""
    first, second = attempts[i].text, attempts[j].text
    return first is not None and second is not None and first != second


def _unordered(first: Shown, second: Shown) -> tuple[str, str]:
    low, high = sorted((first.text or "", second.text or ""))
    return low, high


def _result(
    first: Shown, second: Shown, found: dict[tuple[str, str], Comparison | JudgeError], votes: int
) -> Comparison | JudgeError:
    """Of the first attempt with the second."""
    if first.text == second.text:
        return Comparison((0.5,) * votes)
    if first.text is None or second.text is None:
        return Comparison((float(second.text is None),) * votes)
    pair = _unordered(first, second)
    result = found[pair]
    return result.turned() if isinstance(result, Comparison) and pair[0] != first.text else result


def _ruling(shown: Shown, results: Sequence[Comparison | JudgeError], usage: dict[str, float]) -> Ruling | JudgeError:
    valid = [result for result in results if isinstance(result, Comparison)]
    if not valid:
        return next(result for result in results if isinstance(result, JudgeError))
    scores = [mean(result.scores) for result in valid]
    by_vote = [mean(scores) for scores in zip(*(result.scores for result in valid), strict=True)]
    metrics = {
        "wins": float(sum(score > 0.5 for score in scores)),
        "ties": float(sum(score == 0.5 for score in scores)),
        "losses": float(sum(score < 0.5 for score in scores)),
        **spread(by_vote),
    }
    consistent = [result.consistent for result in valid if result.consistent is not None]
    if consistent:
        metrics["position_consistency"] = mean(consistent)
    told = f"wins {metrics['wins']:g}, ties {metrics['ties']:g}, losses {metrics['losses']:g}"
    said = shown.missing or next((result.reason for result in valid if result.reason), "")
    return Ruling(mean(scores), f"{told}: {said}".rstrip(": "), metrics, usage)

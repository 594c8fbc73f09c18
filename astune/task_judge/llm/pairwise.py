"""Compare answers two at a time, each pair in both orders.

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
from astune.task_judge.llm.prompts import ADVICE, DATA, comparison_messages
from astune.task_judge.llm.scoring import AttemptScore, JudgeJob, mean, short, spread, usage_metrics
from astune.task_judge.llm.shown_attempt import ShownAttempt

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
class PairResult:
    """A first answer compared with a second one. Scores are those of the first, one per vote: 1 for a win, 0.5 for a
    tie."""

    scores: tuple[float, ...]
    consistent: float | None = None
    """Share of the votes whose two orders said the same; None where nothing had to be asked."""
    reason: str = ""
    usage: Usage = field(default_factory=Usage)
    told: tuple[float, ...] = ()
    """The scores of the votes whose two orders said the same."""

    def reverse(self) -> PairResult:
        scores, told = (tuple(1.0 - score for score in side) for side in (self.scores, self.told))
        return replace(self, scores=scores, told=told)


async def pairwise(
    job: JudgeJob, attempts: Sequence[ShownAttempt], max_opponents: int | None
) -> list[AttemptScore | JudgeError]:
    """Each attempt against others: the reward is the share of them that it beats, a tie counts half.

    Equal answers tie, one without an answer loses to all that have one, and both need no call. A comparison whose
    reply cannot be used counts for neither side; an attempt left without any gets the error.
    """
    pairs = opponents(len(attempts), max_opponents)
    asked = list(dict.fromkeys(_sort_pair(attempts[i], attempts[j]) for i, j in pairs if _differ(attempts, i, j)))
    found = dict(zip(asked, await all_or_none([_compare(job, *pair) for pair in asked]), strict=True))
    usages = [result.usage for result in found.values() if isinstance(result, PairResult)]
    usage = usage_metrics(usages, len(attempts))
    own: list[list[PairResult | JudgeError]] = [[] for _ in attempts]
    for i, j in pairs:
        result = _result(attempts[i], attempts[j], found, job.votes)
        own[i].append(result)
        own[j].append(result.reverse() if isinstance(result, PairResult) else result)
    return [_attempt_score(shown, results, usage) for shown, results in zip(attempts, own, strict=True)]


async def against_reference(job: JudgeJob, attempt: ShownAttempt) -> AttemptScore | JudgeError:
    """A lone attempt against the reference answer: 1 if it is better, 0.5 if as good, 0 if worse. Votes whose two
    orders disagree say nothing of whether it passes."""
    if attempt.text is None:
        return AttemptScore(0.0, attempt.missing)
    if job.reference is None:
        return JudgeError(
            "an attempt that is alone has nothing to be compared with: its task has no reference answer "
            "(astune.task_reader.fields.answer), and astune.task_judge.llm.mode is not 'pointwise'"
        )
    if attempt.text.strip() == job.reference.strip():
        return AttemptScore(0.5, "the reference answer itself")
    result = await _compare(replace(job, reference=None), attempt.text, job.reference)
    if isinstance(result, JudgeError):
        return result
    score = _attempt_score(attempt, [result], usage_metrics([result.usage], 1))
    return replace(score, votes=result.told) if isinstance(score, AttemptScore) else score


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


async def _compare(job: JudgeJob, first: str, second: str) -> PairResult | JudgeError:
    try:
        votes = await all_or_none([_vote(job, first, second, vote) for vote in range(job.votes)])
    except JudgeError as error:
        return error
    total = Usage()
    for vote in votes:
        total += vote.usage
    consistent = mean([vote.consistent or 0.0 for vote in votes])
    scores, told = (vote.scores[0] for vote in votes), (score for vote in votes for score in vote.told)
    return PairResult(tuple(scores), consistent, votes[0].reason, total, tuple(told))


async def _vote(job: JudgeJob, first: str, second: str, vote: int) -> PairResult:
    """One reply for each order."""
    orders = [{"A": first, "B": second}, {"A": second, "B": first}]
    prompts = [comparison_messages(job, SYSTEM, order) for order in orders]
    there, back = await all_or_none([job.ask(prompt, PairReply, vote, None) for prompt in prompts])
    score, other = SCORE_OF_A[there.value.better], 1.0 - SCORE_OF_A[back.value.better]
    same = score == other
    reason = short(there.value.reason) if same else "the two orders disagree"
    return PairResult((score if same else 0.5,), float(same), reason, there.usage + back.usage, (score,) * same)


def _differ(attempts: Sequence[ShownAttempt], i: int, j: int) -> bool:
    """True if the attempts differ, so that a model must be asked."""
    first, second = attempts[i].text, attempts[j].text
    return first is not None and second is not None and first != second


def _sort_pair(first: ShownAttempt, second: ShownAttempt) -> tuple[str, str]:
    low, high = sorted((first.text or "", second.text or ""))
    return low, high


def _result(
    first: ShownAttempt, second: ShownAttempt, found: dict[tuple[str, str], PairResult | JudgeError], votes: int
) -> PairResult | JudgeError:
    """The first attempt compared with the second."""
    if first.text == second.text:
        return PairResult((0.5,) * votes)
    if first.text is None or second.text is None:
        return PairResult((float(second.text is None),) * votes)
    pair = _sort_pair(first, second)
    result = found[pair]
    return result.reverse() if isinstance(result, PairResult) and pair[0] != first.text else result


def _attempt_score(
    shown: ShownAttempt, results: Sequence[PairResult | JudgeError], usage: dict[str, float]
) -> AttemptScore | JudgeError:
    valid = [result for result in results if isinstance(result, PairResult)]
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
    return AttemptScore(mean(scores), f"{told}: {said}".rstrip(": "), metrics, usage)

"""Score one answer by criteria: the prompt, the reply, and the reward that follows."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel, field_validator

from astune.errors import JudgeError
from astune.support.concurrency import all_or_none
from astune.task_judge.llm.fence import fence
from astune.task_judge.llm.prompts import DATA, blocks, messages
from astune.task_judge.llm.rubric import Criterion, Rubric
from astune.task_judge.llm.scoring import AttemptScore, JudgeJob, mean, short, spread, usage_metrics
from astune.task_judge.llm.shown_attempt import ShownAttempt

JUDGE = "Judge by criteria."
"""First line of the system message, by which a scripted server knows what it is asked."""

SYSTEM = f"""{JUDGE}
You score the answer that an agent gave to a task. You get the task, the reference answer if there is one, the
criteria, one in a line as `id | lowest-highest score | what earns the highest score | what earns a score`, and the
answer: the agent's final answer, or a record of all that was said and done.

{DATA}

Score every criterion on its own, by what it says and nothing else. Where there is a reference answer, it is right: an
answer that disagrees with it is wrong, however well it is argued. Length, tone and confidence earn nothing unless a
criterion asks for them.

Reply with one JSON object and nothing behind it, every criterion exactly once, the reason before the score, scores as
whole numbers on the criterion's scale:
{{"criteria": [{{"id": "<id of the criterion>", "reason": "<one or two sentences>", "score": <whole number>}}]}}"""


class CriterionScore(BaseModel):
    id: str
    reason: str
    score: int

    @field_validator("score", mode="before")
    @classmethod
    def _true_is_no_score(cls, value: Any) -> Any:
        if isinstance(value, bool):
            raise ValueError("a score is a whole number, not true or false")
        return value


class CriteriaReply(BaseModel):
    criteria: list[CriterionScore]


async def pointwise(job: JudgeJob, attempts: Sequence[ShownAttempt]) -> list[AttemptScore | JudgeError]:
    """Each attempt by itself. Equal answers are asked about once; one without an answer gets 0 without a call."""
    texts = list(dict.fromkeys(shown.text for shown in attempts if shown.text is not None))
    times = Counter(shown.text for shown in attempts)
    found = dict(zip(texts, await all_or_none([_score(job, text, times[text]) for text in texts]), strict=True))
    return [AttemptScore(0.0, shown.missing) if shown.text is None else found[shown.text] for shown in attempts]


async def _score(job: JudgeJob, text: str, times: int) -> AttemptScore | JudgeError:
    """The score of an answer that `times` attempts gave, or why there is none."""
    prompt = rubric_messages(job.rubric, job.query, text, job.reference, job.instructions)

    def check(reply: CriteriaReply) -> None:
        check_scores(job.rubric, reply)

    try:
        answers = await all_or_none([job.ask(prompt, CriteriaReply, vote, check) for vote in range(job.votes)])
    except JudgeError as error:
        return error
    votes = [check_scores(job.rubric, answer.value) for answer in answers]
    rewards = [rubric_reward(job.rubric, scores) for scores in votes]
    scores = {name: mean([vote[name] for vote in votes]) for name in votes[0]}
    reasons = "; ".join(f"{one.id} {one.score}: {short(one.reason)}" for one in answers[0].value.criteria)
    metrics = {**scores, "total": mean(rewards), **spread(rewards)}
    return AttemptScore(
        mean(rewards), reasons, metrics, usage_metrics([answer.usage for answer in answers], times), tuple(rewards)
    )


def rubric_messages(
    rubric: Rubric, query: str, answer: str, reference: str | None, instructions: str
) -> list[dict[str, Any]]:
    """The prompt: fences `task`, `reference` if there is one, `criteria` and `answer`."""
    criteria = "\n".join(criterion_line(criterion) for criterion in rubric.criteria)
    parts = [*blocks(query, reference), fence("criteria", criteria), fence("answer", answer)]
    return messages(SYSTEM, instructions, parts)


def criterion_line(criterion: Criterion) -> str:
    """`id | 0-4 | text | 0: ...; 4: ...`, on one line; the last part only where there are anchors."""
    to = " to " if criterion.min < 0 else "-"
    parts = [criterion.id, f"{criterion.min}{to}{criterion.max}", _one_line(criterion.text)]
    if criterion.anchors:
        parts.append("; ".join(f"{score}: {_one_line(text)}" for score, text in sorted(criterion.anchors.items())))
    return " | ".join(parts)


def check_scores(rubric: Rubric, reply: CriteriaReply) -> dict[str, int]:
    """The scores by id, in the rubric's order. Raises ValueError unless each has exactly one, on its scale."""
    criteria = {criterion.id: criterion for criterion in rubric.criteria}
    times = Counter(given.id for given in reply.criteria)
    problems = [f"there is no {name!r}, only {', '.join(criteria)}" for name in times if name not in criteria]
    problems += [f"criterion {name!r} is missing" for name in criteria if name not in times]
    problems += [f"criterion {name!r} stands {n} times" for name, n in times.items() if n > 1]
    for given in reply.criteria:
        scale = criteria.get(given.id)
        if scale is not None and not scale.min <= given.score <= scale.max:
            problems.append(f"criterion {given.id!r}: score from {scale.min} to {scale.max}, got {given.score}")
    if problems:
        raise ValueError("; ".join(problems))
    scores = {given.id: given.score for given in reply.criteria}
    return {name: scores[name] for name in criteria}


def rubric_reward(rubric: Rubric, scores: Mapping[str, float]) -> float:
    """The mean of (score - min) / (max - min), weighted: from 0 to 1.

    weights 3 and 1, scores 1 of 0..1 and 2 of 0..4    (3 * 1 + 1 * 0.5) / 4 = 0.875
    """
    total = math.fsum(criterion.weight for criterion in rubric.criteria)
    earned = math.fsum(criterion.weight * criterion.share(scores[criterion.id]) for criterion in rubric.criteria)
    return min(1.0, earned / total)


def _one_line(text: str) -> str:
    return " ".join(text.split())

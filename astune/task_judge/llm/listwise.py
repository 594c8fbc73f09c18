"""Rank all answers to a task in one call."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from hashlib import blake2b
from itertools import count, product
from string import ascii_uppercase

from pydantic import BaseModel

from astune.clients.chat_models import Usage
from astune.errors import JudgeError
from astune.support.concurrency import all_or_none
from astune.task_judge.llm.prompts import ADVICE, DATA, comparison_messages
from astune.task_judge.llm.scoring import AttemptScore, JudgeJob, mean, short, spread, usage_metrics
from astune.task_judge.llm.shown_attempt import ShownAttempt

SYSTEM = f"""Rank the answers.
Several agents answered the same task. You get the task, the reference answer if there is one, what counts, and the
answers, each with a label behind `answer_` in its marks: each the agent's final answer, or a record of all that was
said and done.

{DATA}

{ADVICE}

Reply with one JSON object and nothing behind it, the reason first, then the labels from best to worst, every label
exactly once; labels of answers that are equally good stand in a list of their own:
{{"reason": "<two or three sentences>", "ranking": ["<best>", ["<second>", "<as good as second>"], "<worst>"]}}"""


class RankingReply(BaseModel):
    reason: str
    ranking: list[str | list[str]]

    def levels(self) -> list[list[str]]:
        """The labels from best to worst, equal ones together."""
        return [[level] if isinstance(level, str) else level for level in self.ranking]

    def places(self) -> dict[str, int]:
        """The place of each label, 0 for the best; equal ones share it."""
        return {label: place for place, level in enumerate(self.levels()) for label in level}


async def listwise(job: JudgeJob, attempts: Sequence[ShownAttempt]) -> list[AttemptScore | JudgeError]:
    """The reward is the share of the other attempts that an attempt beats; a tie counts half.

        ranking [C, [A, B]]    rewards A 0.25, B 0.25, C 1

    Equal answers are shown once and share their place; those without an answer share the last one. The order in which
    answers stand depends on their texts and the vote only, so it favours no attempt; every second vote reads them the
    other way round, so that a judge who goes by the place calls all equal. Raises `JudgeError` where the
    reply cannot be used: then there is no verdict on any.
    """
    texts = list(dict.fromkeys(shown.text for shown in attempts if shown.text is not None))
    ranked = await all_or_none([_rank(job, texts, vote) for vote in range(job.votes)]) if len(texts) > 1 else []
    reason = short(ranked[0][1], 400) if ranked else "no two answers that differ"
    votes = [places for places, _, _ in ranked] or [dict.fromkeys(texts, 0)]
    usage = usage_metrics([used for _, _, used in ranked], len(attempts))
    by_vote = [
        _rewards([places[shown.text] if shown.text is not None else len(texts) for shown in attempts])
        for places in votes
    ]
    return [
        AttemptScore(mean(rewards), shown.missing or reason, spread(rewards), usage)
        for shown, rewards in zip(attempts, zip(*by_vote, strict=True), strict=True)
    ]


def _rewards(places: Sequence[int]) -> list[float]:
    """The reward of each place: the share of the others behind it, and half of those beside it."""
    return [
        (sum(other > place for other in places) + (places.count(place) - 1) / 2) / (len(places) - 1) for place in places
    ]


async def _rank(job: JudgeJob, texts: Sequence[str], vote: int) -> tuple[dict[str, int], str, Usage]:
    """The place of each text, the reason, and what it cost."""
    order = sorted(texts, key=lambda text: _shuffle(text, vote // 2), reverse=vote % 2 == 1)
    by_label = dict(zip(_labels(), order, strict=False))
    check = partial(check_ranking, labels=by_label)
    answer = await job.ask(comparison_messages(job, SYSTEM, by_label), RankingReply, vote, check)
    places = {by_label[label]: place for label, place in answer.value.places().items()}
    return places, answer.value.reason, answer.usage


def check_ranking(reply: RankingReply, labels: Iterable[str]) -> None:
    """Raises ValueError unless every label stands in the ranking exactly once."""
    expected, times = list(labels), Counter(label for level in reply.levels() for label in level)
    problems = [f"no answer {label!r}" for label in times if label not in expected]
    problems += [f"answer {label!r} is missing" for label in expected if label not in times]
    problems += [f"answer {label!r} stands {n} times" for label, n in times.items() if n > 1]
    if problems:
        raise ValueError("; ".join(problems))


def _shuffle(text: str, seed: int) -> bytes:
    return blake2b(f"{seed}\0{text}".encode(errors="surrogatepass")).digest()


def _labels() -> Iterator[str]:
    """A to Z, then AA, AB, and so on."""
    for length in count(1):
        yield from ("".join(letters) for letters in product(ascii_uppercase, repeat=length))

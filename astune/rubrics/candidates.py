"""Criteria that models propose from the differences between answers, and from verdicts that were wrong."""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass

from astune.config.judges import RubricsConfig
from astune.rubrics.coding_rate import select_criteria
from astune.rubrics.examples import Kind, RubricExample
from astune.rubrics.judge_examples import Asking, Scores
from astune.rubrics.measure import Rewards, how_right
from astune.rubrics.prompts import Message, Proposal, ShownAnswer, propose_messages, revise_messages
from astune.rubrics.similarity import duplicate_groups
from astune.task_judge.llm.rubric import Criterion

Contrast = tuple[list[ShownAnswer], tuple[str, ...]]
"""Answers, and the ids of their examples."""

PROPOSALS = 3
"""Criteria that are asked for from one example, or pair, at a time."""
MOST_NEW = 40
"""Candidates that one round may add: each batch of ten costs a call for each answer. Of more, those that were proposed
from many examples and differ from each other are taken."""


@dataclass(frozen=True)
class ProposalRequest:
    """A prompt that asks for criteria. `sources` are the ids of the examples that it shows."""

    messages: list[Message]
    sources: tuple[str, ...]


def new_criterion(text: str, scale: str, sources: Sequence[str]) -> Criterion:
    """Its id depends on its text alone, so it is the same in every run.

    >>> new_criterion("Names the fee.", "binary", ["t1"]).id
    'names-the-fee-01f0f2'
    """
    text = " ".join(text.split())
    slug = "-".join(re.findall(r"\w+", text.lower())[:5])[:40].strip("-")
    name = f"{slug or 'criterion'}-{hashlib.sha256(text.encode()).hexdigest()[:6]}"
    return Criterion.model_validate({"id": name, "text": text, "scale": scale, "sources": tuple(sources)})


def contrasts(train: Sequence[RubricExample], kind: Kind, seed: int) -> list[Contrast]:
    """A better and a worse answer each, with the ids of their examples. Of pairs and ranks the best and the worst of
    an example; every scored answer is there at least once, beside one to the same question if there is one."""
    if kind != "scored":
        return [
            ([_show_answer(one, "better", 0), _show_answer(one, "worse", len(one.answers) - 1)], (one.id,))
            for one in train
        ]
    shuffled = list(train)
    random.Random(seed).shuffle(shuffled)
    good, bad = [one for one in shuffled if one.good], [one for one in shuffled if not one.good]
    many, few = (good, bad) if len(good) >= len(bad) else (bad, good)
    used = dict.fromkeys((one.id for one in few), 0)
    found: list[Contrast] = []
    for one in many:
        other = min(
            few, key=lambda candidate: (used[candidate.id] > 0, candidate.query != one.query, used[candidate.id])
        )
        used[other.id] += 1
        better, worse = (one, other) if one.good else (other, one)
        found.append(([_show_answer(better, "better", 0), _show_answer(worse, "worse", 0)], (better.id, worse.id)))
    return found


def proposals(
    train: Sequence[RubricExample],
    kind: Kind,
    known: Sequence[Criterion],
    config: RubricsConfig,
    instructions: str,
    seed: int,
) -> list[ProposalRequest]:
    texts = [criterion.text for criterion in known]
    return [
        ProposalRequest(propose_messages(shown, texts, PROPOSALS, config.scale, instructions), sources)
        for shown, sources in contrasts(train, kind, seed)
    ]


def revisions(
    train: Sequence[RubricExample],
    kind: Kind,
    criteria: Sequence[Criterion],
    scores: Scores,
    rewards: Rewards,
    pass_at: float,
    config: RubricsConfig,
    instructions: str,
) -> list[ProposalRequest]:
    """A request for each example on which `criteria` give the wrong verdict, with what they said and why. What could
    not be judged has no verdict to revise."""
    texts = {criterion.id: criterion.text for criterion in criteria}
    requests = []
    for one in train:
        if how_right(one, kind, rewards, pass_at) == 1.0 or any(
            rewards[one.id, number] is None for number in range(len(one.answers))
        ):
            continue
        shown, mistake = _mistake(one, kind, criteria, scores, rewards, pass_at)
        messages = revise_messages(texts, shown, mistake, PROPOSALS, config.scale, instructions)
        requests.append(ProposalRequest(messages, (one.id,)))
    return requests


async def propose_criteria(
    asking: Asking, requests: Sequence[ProposalRequest], scale: str, stage: str
) -> list[Criterion]:
    """The criteria that models propose, in the order of the requests. A reply that cannot be used proposes nothing."""
    replies = await asking.stage(stage, [asking.ask(request.messages, Proposal) for request in requests])
    return [
        new_criterion(entry.text, scale, request.sources)
        for request, reply in zip(requests, replies, strict=True)
        for entry in (reply.value.criteria if reply else ())
        if entry.text.strip()
    ]


def merge_criteria(pool: Sequence[Criterion], found: Sequence[Criterion], seed: int) -> list[Criterion]:
    """The criteria of `found` that say something new, each once, with the examples of all that say the same."""
    together = [*pool, *found]
    groups = duplicate_groups([criterion.text for criterion in together], [[] for _ in together])
    new = []
    for group in groups:
        if group[0] < len(pool):
            continue
        sources = sorted({source for index in group for source in together[index].sources})
        new.append(together[group[0]].model_copy(update={"sources": tuple(sources)}))
    if len(new) <= MOST_NEW:
        return new
    seen = [float(len(criterion.sources)) for criterion in new]
    return [new[index] for index in sorted(select_criteria([one.text for one in new], seen, MOST_NEW, seed))]


def _show_answer(example: RubricExample, role: str, number: int) -> ShownAnswer:
    return ShownAnswer(role, example.query, example.answers[number], example.reference)  # type: ignore[arg-type]


def _mistake(
    one: RubricExample, kind: Kind, criteria: Sequence[Criterion], scores: Scores, rewards: Rewards, pass_at: float
) -> tuple[list[ShownAnswer], str]:
    """The answers that the verdict was wrong about, and the fence `mistake`."""
    if kind == "scored":
        taken, found = ("bad", "good") if one.good else ("good", "bad")
        text = (
            f"The criteria gave this answer {rewards[one.id, 0]:.2f} of 1 and took it for a {taken} one, which passes "
            f"from {pass_at:g}. Expected: people found it {found}.\n{_list_scores(one, 0, criteria, scores)}"
        )
        return [_show_answer(one, "answer", 0)], text
    better, worse = max(
        one.orders, key=lambda order: (rewards[one.id, order[1]] or 0) - (rewards[one.id, order[0]] or 0)
    )
    text = (
        f"The criteria gave the better answer {rewards[one.id, better]:.2f} of 1 and the worse one "
        f"{rewards[one.id, worse]:.2f}. Expected: more for the better one.\n"
        f"Of the better answer:\n{_list_scores(one, better, criteria, scores)}\n"
        f"Of the worse answer:\n{_list_scores(one, worse, criteria, scores)}"
    )
    return [_show_answer(one, "better", better), _show_answer(one, "worse", worse)], text


def _list_scores(one: RubricExample, number: int, criteria: Sequence[Criterion], scores: Scores) -> str:
    key = one.id, number
    return "\n".join(
        f"- {criterion.id}: met to {scores.of(criterion, key) or 0:.0%}. {scores.reason(criterion, key)}".rstrip()
        for criterion in criteria
    )

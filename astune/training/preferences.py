"""Updates on preferences, in two passes.

A loss over whole answers needs the log-probability of all their tokens before it has a gradient for any. So a first
pass, without gradient, gives those under the policy and under the reference; from them come the loss and its derivative
by each answer's log-probability, in double precision; and an update with these derivatives as advantages follows the
gradient of the loss exactly. Rows of a pair need not meet in a micro-batch, and an answer may be several rows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from astune.algorithm.preference import ScoredAnswer, answer_loss, pair_loss, reference_point
from astune.config.algorithm import AlgorithmConfig
from astune.types import Sample, Span, Timeline


class Scorer(Protocol):
    """What is needed of a learner."""

    async def logprobs(self, samples: Sequence[Sample], *, reference: bool = False) -> list[Sequence[float]]:
        """As `Learner.logprobs`."""


Rows = Mapping[bool, Sequence[int]]
"""The numbers of the samples of one example: of its good answer, and of its bad one."""


async def with_slopes(
    learner: Scorer, samples: Sequence[Sample], config: AlgorithmConfig
) -> tuple[list[Sample], dict[str, float]]:
    """The samples with the advantages by which an update follows the loss, and the figures of the loss. Samples of
    one example have one `episode_id`; good answers come with advantages of 1, bad ones of -1."""
    examples: dict[str, dict[bool, list[int]]] = {}
    for number, sample in enumerate(samples):
        examples.setdefault(sample.episode_id, {}).setdefault(sample.advantages[0] > 0, []).append(number)
    by_number = await _answers(learner, samples, config)
    rows = list(examples.values())
    if config.method == "dpo":
        slopes, figures = _of_pairs(rows, by_number, config)
    else:
        crossed = [_crossed(samples, rows, number) for number in range(len(rows))] if len(rows) > 1 else []
        point = reference_point(await _answers(learner, crossed, config))
        slopes, figures = _of_answers(rows, by_number, point, config)
    weighed = [
        replace(
            sample,
            advantages=(-slope,) * len(sample.weights),
            weights=tuple(1.0 / len(rows) if weight else 0.0 for weight in sample.weights),
        )
        for sample, slope in zip(samples, slopes, strict=True)
    ]
    return weighed, figures


async def _answers(learner: Scorer, samples: Sequence[Sample], config: AlgorithmConfig) -> list[ScoredAnswer]:
    """One per sample."""
    policy = await learner.logprobs(samples)
    before = await learner.logprobs(samples, reference=True) if config.needs_reference else policy
    return [ScoredAnswer(math.fsum(own), math.fsum(ref), len(own)) for own, ref in zip(policy, before, strict=True)]


def _sum(answers: Sequence[ScoredAnswer], numbers: Sequence[int]) -> ScoredAnswer:
    chosen = [answers[number] for number in numbers]
    total = math.fsum(each.logprob for each in chosen), math.fsum(each.reference for each in chosen)
    return ScoredAnswer(*total, sum(each.tokens for each in chosen))


def _of_pairs(
    rows: Sequence[Rows], answers: Sequence[ScoredAnswer], config: AlgorithmConfig
) -> tuple[list[float], dict[str, float]]:
    slopes = [0.0] * len(answers)
    found = []
    for pair in rows:
        loss = pair_loss(_sum(answers, pair[True]), _sum(answers, pair[False]), config)
        for liked, slope in zip((True, False), loss.slopes, strict=True):
            for number in pair[liked]:
                slopes[number] = slope
        found.append(loss)
    count = len(found)
    chosen, rejected = (math.fsum(each.rewards[side] for each in found) / count for side in (0, 1))
    return slopes, {
        "loss": math.fsum(each.loss for each in found) / count,
        "preference/accuracy": sum(each.rewards[0] > each.rewards[1] for each in found) / count,
        "preference/chosen": chosen,
        "preference/rejected": rejected,
        "preference/margin": chosen - rejected,
    }


def _of_answers(
    rows: Sequence[Rows], answers: Sequence[ScoredAnswer], point: float, config: AlgorithmConfig
) -> tuple[list[float], dict[str, float]]:
    slopes = [0.0] * len(answers)
    found = []
    for example in rows:
        ((good, numbers),) = example.items()
        loss = answer_loss(_sum(answers, numbers), good, point, config)
        for number in numbers:
            slopes[number] = loss.slope
        found.append(loss)
    return slopes, {
        "loss": math.fsum(each.loss for each in found) / len(found),
        "preference/accuracy": sum(each.right for each in found) / len(found),
        "preference/reference_point": point,
    }


def _crossed(samples: Sequence[Sample], rows: Sequence[Rows], number: int) -> Sample:
    """The prompt of example `number` with the answer of the one after it, by their first rows."""
    asked, said = (samples[next(iter(rows[at % len(rows)].values()))[0]] for at in (number, number + 1))
    begin, start = (next(span.start for span, weight in _spans(each) if weight) for each in (asked, said))
    ids = [*list(asked.timeline.token_ids)[:begin], *list(said.timeline.token_ids)[start:]]
    spans = tuple(
        replace(span, start=span.start - start + begin, stop=span.stop - start + begin)
        for span, _ in _spans(said)
        if span.start >= start
    )
    left_out = len(said.weights) - len(spans)
    line = Timeline(said.timeline.agent, ids, spans)
    return replace(said, timeline=line, advantages=said.advantages[left_out:], weights=said.weights[left_out:])


def _spans(sample: Sample) -> list[tuple[Span, float]]:
    return list(zip(sample.timeline.spans, sample.weights, strict=True))

"""`kto`: good and bad answers, one by one; of recorded episodes attempts that passed and those that did not.

{"messages": [{"role": "user", ...}], "answer": {"role": "assistant", ...}, "good": true}

With z the larger of 0 and the mean gain of answers after prompts of others (KTO, arXiv 2402.01306, less its constant):

    good   -w_good sigmoid(beta (gain - z)) + w_good      bad   -w_bad sigmoid(beta (z - gain)) + w_bad
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from astune.algorithm.method import Scorer
from astune.config.schema import AlgorithmConfig, AstuneConfig
from astune.errors import TaskError
from astune.examples.episodes import JudgedAttempts
from astune.examples.example import TrainingExample
from astune.examples.method import ExampleLine
from astune.methods.preferences import PreferenceMethod, Rows, ScoredAnswer, Slopes, add_up, sigmoid
from astune.types import Sample, Span, Timeline


class Kto(PreferenceMethod):
    """The loss compares what an answer has gained with what answers to other prompts have, so an update needs two."""

    keys = frozenset({"dpo_beta", "kto_bad_weight", "kto_good_weight"})

    @property
    def needs_reference(self) -> bool:
        return True

    def problems(self, astune: AstuneConfig) -> Iterator[tuple[str, str]]:
        yield from super().problems(astune)
        if astune.trainer.tasks_per_step < 2 * astune.trainer.updates_per_step:
            yield (
                "astune.trainer.tasks_per_step",
                "method 'kto' compares an answer with those to other prompts, so an update needs 2 examples or more",
            )

    def read_line(self, line: ExampleLine) -> list[TrainingExample]:
        line.check_names("messages", "answer", "good")
        good = line.row["good"]
        if not isinstance(good, bool):
            raise TaskError(f"{line.place}: good: expected true or false, got {good!r}")
        rows = line.answer("answer")
        return [TrainingExample(rows, line.place, (good,) * len(rows))]

    def read_attempts(self, attempts: JudgedAttempts) -> Iterator[TrainingExample]:
        yield from attempts.one_by_one()

    async def slopes(
        self, learner: Scorer, samples: Sequence[Sample], answers: Sequence[ScoredAnswer], examples: Sequence[Rows]
    ) -> Slopes:
        crossed = []
        if len(examples) > 1:
            first = [samples[next(iter(rows.values()))[0]] for rows in examples]
            crossed = [_cross(asked, said) for asked, said in zip(first, [*first[1:], first[0]], strict=True)]
        point = reference_point(await self.score(learner, crossed))
        slopes = [0.0] * len(answers)
        found = []
        for example in examples:
            ((good, numbers),) = example.items()
            loss = answer_loss(add_up(answers, numbers), good, point, self.algorithm)
            for number in numbers:
                slopes[number] = loss.slope
            found.append(loss)
        return slopes, {
            "loss": math.fsum(each.loss for each in found) / len(found),
            "preference/accuracy": sum(each.right for each in found) / len(found),
            "preference/reference_point": point,
        }


def _cross(asked: Sample, said: Sample) -> Sample:
    """The prompt of one answer with another answer."""
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


@dataclass(frozen=True)
class AnswerLoss:
    """`slope` is the derivative by log p of the answer."""

    loss: float
    slope: float
    right: bool
    """True for a good answer that has gained more than the reference point, and a bad one that has gained less."""


def reference_point(mismatched: Sequence[ScoredAnswer]) -> float:
    """The distance of the policy from its reference on answers that have nothing to do with their prompts."""
    return max(0.0, math.fsum(each.gain for each in mismatched) / len(mismatched)) if mismatched else 0.0


def answer_loss(answer: ScoredAnswer, good: bool, point: float, config: AlgorithmConfig) -> AnswerLoss:
    """The loss of one good or bad answer; `point` is the reference point, which has no gradient."""
    weight, sign = (config.kto_good_weight, 1.0) if good else (config.kto_bad_weight, -1.0)
    beta = config.dpo_beta
    value = sigmoid(sign * beta * (answer.gain - point))
    slope = -weight * sign * beta * value * (1.0 - value)
    return AnswerLoss(weight * (1.0 - value), slope, sign * (answer.gain - point) > 0)

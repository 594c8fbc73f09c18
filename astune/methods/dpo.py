"""`dpo`: a preferred answer against a rejected one; of recorded episodes better attempts at a task against worse ones.

{"messages": [{"role": "user", ...}], "chosen": {"role": "assistant", ...}, "rejected": {...}}

c is the preferred answer of a pair, r the rejected one; the first two losses are over sums, as in the papers.

    preference_loss     loss of a pair                                                from
    sigmoid             -log sigmoid(beta (gain_c - gain_r))                          DPO, arXiv 2305.18290
    ipo                 (gain_c - gain_r - 1 / (2 beta))^2                            IPO, arXiv 2310.12036
    length_normalised   -log sigmoid(beta (gain_c / |c| - gain_r / |r|))              Tulu 3, arXiv 2411.15124
    simpo               -log sigmoid(beta (log p_c / |c| - log p_r / |r|) - margin)   SimPO, arXiv 2405.14734
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from astune.algorithm.method import Scorer
from astune.config.schema import AlgorithmConfig, AstuneConfig
from astune.examples.episodes import JudgedAttempts
from astune.examples.example import TrainingExample
from astune.examples.method import ExampleLine, UnwritableExample
from astune.methods.preferences import PreferenceMethod, Rows, ScoredAnswer, Slopes, add_up, sigmoid
from astune.types import Sample


class Dpo(PreferenceMethod):
    """The loss is `astune.algorithm.preference_loss`, over pairs."""

    keys = frozenset({"dpo_beta", "preference_loss", "preference_margin"})
    trained_by = ("local", "verl", "trinity")

    @property
    def needs_reference(self) -> bool:
        return self.algorithm.preference_loss != "simpo" or super().needs_reference

    def problems(self, astune: AstuneConfig) -> Iterator[tuple[str, str]]:
        yield from super().problems(astune)
        if self.algorithm.preference_margin and self.algorithm.preference_loss != "simpo":
            yield (
                "astune.algorithm.preference_margin",
                f"only preference_loss 'simpo' has it, and it is {self.algorithm.preference_loss!r}; take the key out",
            )

    def read_line(self, line: ExampleLine) -> list[TrainingExample]:
        line.check_names("messages", "chosen", "rejected")
        pair = []
        for name in ("chosen", "rejected"):
            rows = line.answer(name)
            if len(rows) != 1:
                raise UnwritableExample(
                    "whose answer the chat template writes in several histories, so that it cannot be weighed as one",
                    f"{name}: in {len(rows)}; expected a single assistant message",
                )
            pair.append(rows[0])
        return [TrainingExample(tuple(pair), line.place, (True, False))]

    def read_attempts(self, attempts: JudgedAttempts) -> Iterator[TrainingExample]:
        yield from attempts.pairs()

    async def slopes(
        self, learner: Scorer, samples: Sequence[Sample], answers: Sequence[ScoredAnswer], examples: Sequence[Rows]
    ) -> Slopes:
        slopes = [0.0] * len(answers)
        found = []
        for pair in examples:
            loss = pair_loss(add_up(answers, pair[True]), add_up(answers, pair[False]), self.algorithm)
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


@dataclass(frozen=True)
class PairLoss:
    """`slopes` are the derivatives by log p of the preferred and of the rejected answer, `rewards` what each is worth,
    beta included: the loss wants the first to be greater."""

    loss: float
    slopes: tuple[float, float]
    rewards: tuple[float, float]


def pair_loss(chosen: ScoredAnswer, rejected: ScoredAnswer, config: AlgorithmConfig) -> PairLoss:
    """The loss of one pair.

    >>> found = pair_loss(ScoredAnswer(-1.0, -1.0, 2), ScoredAnswer(-3.0, -3.0, 2), AlgorithmConfig(dpo_beta=0.5))
    >>> round(found.loss, 4), found.slopes
    (0.6931, (-0.25, 0.25))
    """
    kind, beta = config.preference_loss, config.dpo_beta
    answers = (chosen, rejected)
    scales = [beta / each.tokens if kind in ("length_normalised", "simpo") else beta for each in answers]
    worth = [each.logprob if kind == "simpo" else each.gain for each in answers]
    first, second = (scale * value for scale, value in zip(scales, worth, strict=True))
    if kind == "ipo":
        apart = (first - second) / beta - 1.0 / (2.0 * beta)
        return PairLoss(apart * apart, (2.0 * apart, -2.0 * apart), (first, second))
    wanted = first - second - (config.preference_margin if kind == "simpo" else 0.0)
    slope = -sigmoid(-wanted)
    return PairLoss(_softplus(-wanted), (slope * scales[0], -slope * scales[1]), (first, second))


def _softplus(value: float) -> float:
    return max(value, 0.0) + math.log1p(math.exp(-abs(value)))

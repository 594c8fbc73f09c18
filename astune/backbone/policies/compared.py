"""The check that a server has the trainer's weights: both give log-probabilities of the same texts.

A server that did not get new weights goes on answering, with those that it has: training then learns from what another
policy did, and nothing fails. So after each hand-over a server is asked for the log-probabilities of a few answers,
which the trainer has computed.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence

import numpy as np

from astune.errors import TrainingError
from astune.types import Sample, Span, Timeline

IN_FLOAT32 = 1e-3
"""Nats that trainer and servers may be apart, on average, where both compute in float32."""
OTHERWISE = 0.1
"""The same where one of them computes in bfloat16 or less."""
COMPARED = 4
"""Answers that one comparison scores."""
LONGEST = 1024
"""Tokens of each that it takes at most."""
ROOM = 2
"""Tokens that servers want left in the context to score a text: one to answer with, and SGLang one more."""
REMEMBERED = 64
ANY_QUESTION = [{"role": "user", "content": "How many pens are there in 7 boxes of 12, and who counted them?"}]
"""The text that trainer and servers are compared by before there are answers."""


def whole_row(token_ids: Sequence[int]) -> Sample:
    """Make a sample of two tokens or more, to ask for its log-probabilities. It has no advantage: nothing is learned
    from it."""
    span = Span(0, 1, len(token_ids), 0, 1.0, True, [0.0] * (len(token_ids) - 1))
    return Sample(Timeline("", token_ids, (span,)), (0.0,), (1.0,), "", "")


class ComparedAnswers:
    """Recent answers, a few of which are compared after each hand-over. `begin_with` are token ids of any text, to be
    compared before there are answers; `most_apart` is the largest mean difference of log-probabilities."""

    def __init__(self, begin_with: Sequence[int], context_length: int, most_apart: float) -> None:
        self._longest, self._most_apart = min(LONGEST, context_length - ROOM), most_apart
        self._recent: deque[tuple[int, ...]] = deque(maxlen=REMEMBERED)
        self.remember(begin_with)

    def remember(self, token_ids: Sequence[int]) -> None:
        """Keep a prompt with its answer, to be compared later."""
        self._recent.append(tuple(token_ids[: self._longest]))

    def draw(self, version: int) -> list[Sample]:
        """Draw some of the answers: at each version others."""
        numbers = random.Random(version).sample(range(len(self._recent)), min(COMPARED, len(self._recent)))
        return [whole_row(self._recent[number]) for number in numbers]

    def check(self, server: str, version: int, given: Sequence[float], expected: Sequence[Sequence[float]]) -> float:
        """Compute the mean difference between the log-probabilities that a server gave for all tokens of the rows and
        those of the trainer. Raises TrainingError where it is too great, or no number."""
        wanted = np.concatenate([np.asarray(row) for row in expected])
        apart = float(np.abs(np.asarray(given) - wanted).mean())
        if not apart <= self._most_apart:
            raise TrainingError(
                f"{server} does not have the trainer's weights of version {version}: over {len(given)} tokens of "
                f"{len(expected)} answers their log-probabilities are {apart:.3g} apart on average, expected at most "
                f"{self._most_apart:g} (on average the server gives {np.mean(given):.4g}, the trainer "
                f"{wanted.mean():.4g})"
            )
        return apart

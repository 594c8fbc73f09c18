"""`distill`: what a teacher thinks of the model's own answers (GKD, arXiv 2306.13649)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from astune.algorithm.method import Method, Scorer
from astune.algorithm.step_advantage import Imitation, StepEstimator
from astune.config.chat_models import TeacherConfig
from astune.config.schema import AstuneConfig
from astune.types import Sample, Span, Timeline

MOST_AHEAD = 5.0
"""A token that a hint makes e to this times as likely, or as unlikely, counts as that."""


class Distill(Method):
    """Plays episodes as `rl` does. Rewards are recorded and teach nothing: the advantage of each token is how much
    likelier the teacher finds it than the policy in training, which the learner computes."""

    plays = True
    loss = "teacher"
    keys = frozenset({"clip_high", "clip_low", "credit", "loss", "loss_aggregation", "teacher", "trained_agents"})

    def estimator(self) -> StepEstimator:
        return Imitation(self.algorithm)

    def problems(self, astune: AstuneConfig) -> Iterator[tuple[str, str]]:
        yield from super().problems(astune)
        if self.algorithm.teacher is None:
            yield "astune.algorithm.teacher", "not set; method 'distill' learns from what a teacher thinks"
        if isinstance(self.algorithm.teacher, TeacherConfig) and astune.rollout.temperature != 1:
            yield (
                "astune.rollout.temperature",
                f"got {astune.rollout.temperature:g}, but the teacher is an API, which gives log-probabilities at "
                "temperature 1: another distribution than that sampled from; expected 1, or a teacher in a folder",
            )


async def learn_from_prompted(learner: Scorer, pairs: Sequence[tuple[Sample, Sample]]) -> list[Sample]:
    """The first samples of `pairs` as an update is to take them, whose teacher is the policy itself with another
    prompt, as one with a hint in it: the second samples have the same trained tokens after that.

    Each trained token gets a span of its own. Its advantage is how much likelier the teacher finds it than the policy
    does now, at most `MOST_AHEAD`: with the loss of an imitated sample that is the gradient of KL(policy, teacher) at
    these tokens. Nothing that the hint says can be learned that the policy did not say itself.
    """
    own = await learner.logprobs([sample for sample, _ in pairs])
    teacher = await learner.logprobs([prompted for _, prompted in pairs])
    return [_by_token(pair[0], *values) for pair, *values in zip(pairs, own, teacher, strict=True)]


def _by_token(sample: Sample, own: Sequence[float], teacher: Sequence[float]) -> Sample:
    spans: list[Span] = []
    for span, weight in zip(sample.timeline.spans, sample.weights, strict=True):
        for at in range(len(span)) if weight else ():
            start = span.start + at
            spans.append(replace(span, start=start, stop=start + 1, logprobs=(span.logprobs[at],)))
    ahead = [
        min(max(of_teacher - of_own, -MOST_AHEAD), MOST_AHEAD) for of_own, of_teacher in zip(own, teacher, strict=True)
    ]
    line = Timeline(sample.timeline.agent, sample.timeline.token_ids, tuple(spans))
    return replace(sample, timeline=line, advantages=tuple(ahead), weights=(1.0,) * len(ahead))

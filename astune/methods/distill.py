"""`distill`: what a teacher thinks of the model's own answers (GKD, arXiv 2306.13649)."""

from __future__ import annotations

from collections.abc import Iterator

from astune.algorithm.method import Method
from astune.algorithm.step_advantage import Imitation, StepEstimator
from astune.config.chat_models import TeacherConfig
from astune.config.schema import AstuneConfig


class Distill(Method):
    """Plays episodes as `rl` does. Rewards are recorded and teach nothing: the advantage of each token is how much
    likelier the teacher finds it than the policy in training, which the learner computes."""

    plays = True
    loss = "teacher"
    keys = frozenset({"clip_high", "clip_low", "credit", "loss", "loss_aggregation", "teacher"})

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

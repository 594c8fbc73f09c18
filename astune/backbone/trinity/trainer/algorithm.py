"""Have Trinity train what ASTune hands it: advantages and weights come with the samples, Trinity clips and sums.

The loss is one of Trinity's own with the aggregation `seq-mean-token-sum`: the sum over the tokens of every row,
divided by the number of rows. As each token's advantage is multiplied by its weight times that number
(`explorer/experience.py`), and each of these losses scales with its advantage, the loss is the weighted sum that the
local backbone minimises.
"""

from __future__ import annotations

from typing import Any

from trinity.algorithm.advantage_fn.advantage_fn import AdvantageFn
from trinity.algorithm.algorithm import AlgorithmType
from trinity.buffer.operators import ExperienceOperator
from trinity.common.experience import Experience

from astune.backbone.trinity.conversion.values import KEEP_ADVANTAGES


class AstuneAlgorithm(AlgorithmType):  # type: ignore[misc]
    """Policy gradient without critic and reference model: a run pays for neither."""

    use_critic = False
    use_reference = False
    compute_advantage_in_trainer = False
    can_balance_batch = True
    schema = "experience"

    @classmethod
    def default_config(cls) -> dict[str, Any]:
        return {
            "repeat_times": 8,
            "advantage_fn": KEEP_ADVANTAGES,
            "sample_strategy": "astune.backbone.trinity.trainer.whole_steps.WholeSteps",
            "policy_loss_fn": "ppo",
            "kl_penalty_fn": "none",
            "kl_loss_fn": "none",
            "entropy_loss_fn": "none",
        }


class KeepAdvantages(AdvantageFn, ExperienceOperator):  # type: ignore[misc]
    """Leaves the advantages as `SamplesOperator` made them. Trinity takes no run without an advantage function, and its
    pipeline calls it as an operator, after ours."""

    def __init__(self, **kwargs: Any) -> None:
        pass

    def process(self, exps: list[Experience]) -> tuple[list[Experience], dict[str, float]]:
        return exps, {}

    def __call__(self, exps: list[Experience], **kwargs: Any) -> tuple[list[Experience], dict[str, float]]:
        return self.process(exps)

    @classmethod
    def compute_in_trainer(cls) -> bool:
        return False

    @classmethod
    def default_args(cls) -> dict[str, Any]:
        return {}

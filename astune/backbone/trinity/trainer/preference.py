"""Direct preference optimisation (Rafailov et al., 2023, https://arxiv.org/abs/2305.18290) on Trinity's tinker trainer.

For a preferred answer c and a rejected one r to the same prompt, with sums of log-probabilities over an answer's tokens
under the policy, less those under the model that it began with:

    loss = -log sigmoid(beta * (gain(c) - gain(r)))         gain(a) = log p(a) - log p_before(a)

Trinity 0.6.0's own `dpo` compares every second row of what it is given with the one after it. Its tinker trainer gives
one row at a time, of which that takes every second token; its other trainer gives batches of many pairs, whose gains it
adds up before the sigmoid.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from trinity.algorithm.policy_loss_fn.policy_loss_fn import PolicyLossFn
from trinity.algorithm.utils import masked_sum

from astune.backbone.trinity.trainer.algorithm import AstuneAlgorithm


class PreferenceAlgorithm(AstuneAlgorithm):
    """With log-probabilities of the model that the run began with, and rows that stay in their order."""

    use_reference = True
    can_balance_batch = False


class PreferenceLoss(PolicyLossFn):  # type: ignore[misc]
    """Called with one row at a time, the preferred one of each pair before the rejected one, within one backward pass.

    Trinity divides the sum over all rows by their number, so the loss of a pair, which stands at its second row, counts
    twice: what remains is the mean over pairs.
    """

    def __init__(self, backend: str = "tinker", beta: float = 0.1) -> None:
        super().__init__(backend=backend)
        self.beta = beta
        self._preferred: torch.Tensor | None = None

    def __call__(
        self, logprob: torch.Tensor, ref_logprob: torch.Tensor, action_mask: torch.Tensor, **kwargs: Any
    ) -> tuple[torch.Tensor, dict[str, float]]:
        gain = masked_sum(logprob - ref_logprob, action_mask)
        if self._preferred is None:
            self._preferred = gain
            return torch.zeros(()), {}
        margin, self._preferred = self._preferred - gain, None
        loss = -F.logsigmoid(self.beta * margin)
        return 2 * loss, {
            "dpo_loss": loss.item(),
            "dpo_margin": self.beta * margin.item(),
            "dpo_accuracy": float(margin.item() > 0),
        }

    @classmethod
    def default_args(cls) -> dict[str, float]:
        return {"beta": 0.1}

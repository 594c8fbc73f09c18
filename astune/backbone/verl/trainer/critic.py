"""PPO's critic as the learner knows it: what it says of samples, and what it learns from them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Protocol

import torch
from tensordict import TensorDict

from astune.backbone.losses.critic import Appraisal, appraise
from astune.backbone.verl.trainer.loss import OLD_VALUES, RETURNS
from astune.backbone.verl.trainer.rows import batch_of, of_entries, of_rows, of_samples, rows_of, share_out
from astune.config.algorithm import CriticConfig
from astune.types import Sample


class CriticWorkers(Protocol):
    """The ranks that hold a critic. Every call returns when all of them are done."""

    ranks: int
    """How many share out the rows of a batch: all, divided by those that share one row."""
    sharing: int
    """How many share one row."""

    def values(self, batch: TensorDict) -> torch.Tensor:
        """Nested like the rows: at each token the value of what stands at it and before."""

    def critic_gradient(self, batch: TensorDict) -> Mapping[str, Any]:
        """Drop the critic's gradient that there is and gather that of the batch. Gives metrics."""

    def critic_step(self, learning_rate: float) -> float:
        """Clip, take a step and drop the gradient; the norm before clipping. No step if it is not finite."""

    def drop_critic_gradient(self) -> None: ...


class ShardedCritic:
    """The critic that `workers` hold. It computes what the backbone `local` has one compute, from values of theirs. A
    rank computes `most_tokens` at once."""

    def __init__(self, workers: CriticWorkers, config: CriticConfig, most_tokens: int) -> None:
        self._workers, self._config = workers, config
        self._batch_of = partial(batch_of, most_tokens=most_tokens, sharing=workers.sharing)

    def judge(self, samples: Sequence[Sample]) -> Appraisal:
        """Values as they are, and by them the advantage and the return of every trained token."""
        rows = share_out(rows_of(samples, whole=False), self._workers.ranks)
        values = self._workers.values(self._batch_of(rows, learn=False))
        found = of_samples(of_entries(values, rows), rows, len(samples))
        return appraise(samples, [torch.tensor(each) for each in found], self._config)

    def batch(self, samples: Sequence[Sample], judged: Appraisal) -> TensorDict:
        """The batch that the workers' critic learns from."""
        rows = share_out(rows_of(samples, whole=False), self._workers.ranks)
        columns = {RETURNS: of_rows(judged.returns, rows), OLD_VALUES: of_rows(judged.values, rows)}
        return self._batch_of(rows, more=columns)

    def learn(self, samples: Sequence[Sample], judged: Appraisal) -> dict[str, float]:
        """Take `astune.algorithm.critic.updates` optimizer steps towards the returns. One whose loss or gradient is not
        finite is thrown away and counted. The figures are of the first."""
        batch = self.batch(samples, judged)
        first: dict[str, float] = {}
        skipped = 0
        for _ in range(self._config.updates):
            loss = float(self._workers.critic_gradient(batch)["loss"])
            norm = self._workers.critic_step(self._config.learning_rate) if math.isfinite(loss) else math.nan
            first = first or {"critic/loss": loss, "critic/grad_norm": norm}
            if not math.isfinite(norm):
                self._workers.drop_critic_gradient()
                skipped += 1
        return first | {"critic/updates_skipped": float(skipped)} | judged.figures()

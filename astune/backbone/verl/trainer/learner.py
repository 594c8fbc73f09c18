"""The `Learner` over verl's training workers: gradient, clipping and AdamW are verl's, all that is summed is ours."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from tensordict import TensorDict

from astune.backbone.losses.critic import Appraisal, appraise
from astune.backbone.losses.teacher import ApiTeacher
from astune.backbone.verl.trainer.loss import BESIDE, FIGURE, OLD_VALUES, RETURNS
from astune.backbone.verl.trainer.rows import SampleRow, batch_of, of_entries, of_rows, of_samples, rows_of, share_out
from astune.config.algorithm import CriticConfig
from astune.config.rules.method import rules_of
from astune.config.schema import AlgorithmConfig, TrainerConfig
from astune.errors import ModelError, RunFolderError
from astune.support.concurrency import finish
from astune.types import Sample, Update

logger = logging.getLogger(__name__)

STATE_FILE = "trainer_state.json"


class TrainingWorkers(Protocol):
    """The ranks that hold the weights, and a critic if there is one. Every call returns when all of them are done."""

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

    def gradient(self, batch: TensorDict) -> Mapping[str, Any]:
        """Drop the gradient there is and gather that of the batch. Gives the loss and what `astune_loss` told."""

    def figures(self, batch: TensorDict) -> Mapping[str, Any]:
        """The metrics that `gradient` gives, without a gradient."""

    def step(self, learning_rate: float) -> float:
        """Clip, take a step and drop the gradient; the norm before clipping. No step if it is not finite."""

    def drop(self) -> None:
        """Drop the gradient."""

    def infer(self, batch: TensorDict, *, beside: bool) -> TensorDict:
        """ "log_probs" of each row under the weights that are trained, or under those of the model beside
        them: the reference, or the teacher."""

    def save(self, folder: Path) -> None: ...

    def load(self, folder: Path) -> None: ...


class ShardedCritic:
    """The critic that `workers` hold. It computes what the backbone `local` has one compute, from values of theirs. A
    rank computes `most_tokens` at once."""

    def __init__(self, workers: TrainingWorkers, config: CriticConfig, most_tokens: int) -> None:
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


class VerlLearner:
    """Trains the weights that `workers` hold. `hand_over` brings them to the servers under a version, and returns once
    they sample from nothing else; what it tells of how it went stands among the figures of the updates that follow. A
    `teacher` is one behind an API; one in a folder the workers hold themselves.

    All of these calls block, so they run in a thread of their own: the loop's timers and the gateway go on meanwhile.
    """

    def __init__(
        self,
        workers: TrainingWorkers,
        hand_over: Callable[[int], Mapping[str, float]],
        algorithm: AlgorithmConfig,
        trainer: TrainerConfig,
        teacher: ApiTeacher | None = None,
    ) -> None:
        self._workers, self._hand_over, self._teacher = workers, hand_over, teacher
        self._batch_of = partial(batch_of, most_tokens=trainer.micro_batch_tokens, sharing=workers.sharing)
        self._algorithm, self._trainer = algorithm, trainer
        self._whole = needs_whole_rows(algorithm)
        critic = ShardedCritic(workers, algorithm.critic, trainer.micro_batch_tokens)
        self._critic = critic if rules_of(algorithm).needs_critic else None
        self.updates = 0
        self.changes = 0
        self.policy_version = 0
        self._unpublished = 0
        """Updates since the last `publish`."""
        self._handed: Mapping[str, float] = {}

    async def update(self, samples: Sequence[Sample], learning_rate: float) -> Update:
        """Take one optimizer step over `samples`. One whose loss or gradient is not finite is thrown away."""
        samples = sorted(samples, key=lambda sample: sample.imitated)  # the critic has numbers for the others alone
        if self._teacher is None:
            return await finish(partial(self._update, samples, learning_rate))
        weighed = await self._teacher.weigh(samples)
        done = await finish(partial(self._update, weighed.samples, learning_rate, weighed.logprobs))
        return replace(done, left_out=tuple(weighed.left_out))

    def _update(
        self, samples: Sequence[Sample], learning_rate: float, taught: Sequence[Sequence[float]] | None = None
    ) -> Update:
        """`taught` has the log-probabilities of each sample's trained tokens under a teacher behind an API."""
        played = [sample for sample in samples if not sample.imitated]
        judged = self._critic.judge(played) if self._critic is not None and played else None
        warming_up = judged is not None and self.updates < self._algorithm.critic.warmup_updates
        rows = share_out(rows_of(samples, whole=self._whole), self._workers.ranks)
        batch = self.batch(rows, taught, judged)
        metrics = self._workers.figures(batch) if warming_up else self._workers.gradient(batch)
        loss = float(metrics["loss"])
        figures = {
            name.removeprefix(FIGURE): add_up(parts) for name, parts in metrics.items() if name.startswith(FIGURE)
        }
        self.updates += 1
        norm = self._step(learning_rate, warming_up=warming_up) if math.isfinite(loss) else math.nan
        finite = math.isfinite(norm)
        if finite and judged is not None and self._critic is not None:
            figures |= self._critic.learn(played, judged) | {"critic/warming_up": float(warming_up)}
        if not finite:
            self._workers.drop()
            logger.warning("update %d skipped: the loss or its gradient is not finite", self.updates)
        packed = sum(len(row.tokens) for row in rows if row.sample is not None)
        figures |= {
            "loss": loss,
            "grad_norm": norm,
            "learning_rate": learning_rate,
            "tokens/packed": float(packed),
            **self._handed,
            "tokens/flattened_per_packed": sum(len(sample.timeline.token_ids) for sample in samples) / packed,
        }
        return Update(figures, skipped=not finite)

    def _step(self, learning_rate: float, *, warming_up: bool) -> float:
        """Take the step; the norm of the gradient. Where that is not finite there was none, nor while the critic is
        warming up, which alone changes then."""
        self.changes += 1  # first: after a step that a worker did not survive nobody knows what the weights are
        if warming_up:
            return 0.0
        norm = self._workers.step(learning_rate)
        if math.isfinite(norm):
            self._unpublished += 1
        else:
            self.changes -= 1
        return norm

    def batch(
        self,
        rows: Sequence[SampleRow],
        taught: Sequence[Sequence[float]] | None = None,
        judged: Appraisal | None = None,
    ) -> TensorDict:
        """Make what the workers learn from, by what a teacher or the critic has said of it. They are asked for what the
        model beside the one in training says, if there is one."""
        more: dict[str, Sequence[np.ndarray]] = {}
        if judged is not None:
            more["advantage"] = [
                row.entries.advantage
                if row.sample is None or row.imitated
                else judged.advantages[row.sample].numpy()[row.numbers]
                for row in rows
            ]
        if taught is not None:
            more[BESIDE] = of_rows(taught, rows)
        elif self._algorithm.kl_beta or rules_of(self._algorithm).loss == "teacher":
            more[BESIDE] = of_entries(self._infer(rows, beside=True), rows)
        version = self.policy_version + self._unpublished
        return self._batch_of(rows, version=version, more=more)

    def _infer(self, rows: Sequence[SampleRow], *, beside: bool) -> torch.Tensor:
        batch = self._batch_of(rows, learn=False)
        found: torch.Tensor = self._workers.infer(batch, beside=beside)["log_probs"]
        return found

    async def logprobs(self, samples: Sequence[Sample], *, reference: bool = False) -> list[Sequence[float]]:
        return await finish(partial(self.scores, samples, reference=reference))

    def scores(self, samples: Sequence[Sample], *, reference: bool = False) -> list[Sequence[float]]:
        """The same as `logprobs`, without a thread of its own."""
        rows = share_out(rows_of(samples, whole=False), self._workers.ranks)
        values = self._infer(rows, beside=reference)
        return [*of_samples(of_entries(values, rows), rows, len(samples))]

    async def publish(self) -> int:
        """Hand the weights to the servers. Without an update since the last time they are what they were, and so is
        the version."""
        if self._unpublished:
            self._unpublished = 0
            self.policy_version += 1
        self._handed = await finish(partial(self._hand_over, self.policy_version))
        return self.policy_version

    def save(self, directory: Path) -> None:
        """The model as a Hugging Face folder in float32, or its adapter as a folder of peft's; the optimizer beside it
        in shards."""
        self._workers.save(directory)
        state = {"updates": self.updates, "policy_version": self.policy_version}
        (directory / STATE_FILE).write_text(json.dumps(state), encoding="utf-8")

    def load(self, directory: Path) -> None:
        """Go on from what `save` wrote, by any number of ranks, and hand it to the servers."""
        try:
            state = json.loads((directory / STATE_FILE).read_text(encoding="utf-8"))
            self._workers.load(directory)
            self.updates, self.policy_version = int(state["updates"]), int(state["policy_version"])
        except (OSError, ValueError, KeyError, RuntimeError, ModelError) as error:
            raise RunFolderError(
                f"{directory} cannot be gone on from: {type(error).__name__}: {error}. If its files are damaged, "
                "delete the folder to go on from the checkpoint before it"
            ) from error
        self._unpublished = 0
        self._handed = self._hand_over(self.policy_version)


def needs_whole_rows(algorithm: AlgorithmConfig) -> bool:
    """True if the loss of a token depends on the other tokens of its row."""
    over_rows = algorithm.loss == "gspo" or (algorithm.kl_beta > 0 and algorithm.kl_in == "reward")
    return rules_of(algorithm).loss != "likelihood" and over_rows


def add_up(parts: Any) -> float:
    """Add up the parts of all micro-batches and ranks: verl gives numbers, or lists of such."""
    return math.fsum(add_up(part) for part in parts) if isinstance(parts, list) else float(parts)

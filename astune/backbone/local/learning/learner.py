"""The `Learner` with torch: gradient, clipping, AdamW, and the hand-over of weights to the sampler."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, Protocol

import torch

from astune.backbone.local.learning.accumulation import Accumulation
from astune.backbone.local.learning.batch import MicroBatch, micro_batches
from astune.backbone.local.learning.critic import Critic, credit
from astune.backbone.local.learning.forward import predict
from astune.backbone.local.learning.optimizer import make_optimizer
from astune.backbone.local.learning.reference import Reference, reference_of, score, score_samples
from astune.backbone.local.model.model import DISK_ERRORS, LoadedModel, load_model, save_model
from astune.backbone.losses.critic import Appraisal
from astune.backbone.losses.entries import Entries
from astune.backbone.losses.objective import (
    Objective,
    distillation_objective,
    likelihood_objective,
    policy_objective,
)
from astune.backbone.losses.teacher import TEACHER, ApiTeacher, require_same_tokens
from astune.config.rules.method import rules_of
from astune.config.schema import AlgorithmConfig, ModelConfig, TrainerConfig
from astune.context_tracker.model_dir import resolve_model_dir
from astune.errors import ModelError, RunFolderError
from astune.support.concurrency import finish
from astune.types import Sample, Update

logger = logging.getLogger(__name__)
STATE_FILE = "trainer_state.pt"


@dataclass(frozen=True)
class Weighed:
    """The `samples` of an update that a teacher has weighed, with weights for an update of their own, and the samples
    that are `left_out`. `logprob` gives the log-probability (e,) of every trained token of a micro-batch of
    `samples`."""

    samples: Sequence[Sample]
    logprob: Callable[[MicroBatch], torch.Tensor]
    left_out: Sequence[Sample] = ()


class Teacher(Protocol):
    async def weigh(self, samples: Sequence[Sample]) -> Weighed:
        """Raises TrainingError where nothing can be learned from any of the samples."""


def make_teacher(algorithm: AlgorithmConfig, student: LoadedModel) -> Teacher | None:
    """Load the teacher of `astune.algorithm.teacher`. Raises ModelError for one that has other tokens, and ConfigError
    for an API that does not answer."""
    if algorithm.teacher is None:
        return None
    if isinstance(algorithm.teacher, str):
        return LocalTeacher(algorithm.teacher, student)
    return RemoteTeacher(ApiTeacher(algorithm.teacher, algorithm, student.directory))


class LocalTeacher:
    """A model on the student's device and in its precision. Its log-probabilities are those at the temperature with
    which each token was sampled. Raises ModelError for one with another vocabulary, or one that needs another layout
    of batches."""

    def __init__(self, path: str, student: LoadedModel) -> None:
        dtype: Any = str(student.dtype).removeprefix("torch.")
        directory = str(resolve_model_dir(path, key=TEACHER))
        loaded = load_model(ModelConfig(path=directory, device=str(student.device), dtype=dtype))
        require_same_tokens(loaded.directory, student.directory)
        if loaded.family.layout != student.family.layout:
            raise ModelError(
                f"{TEACHER}: the model in {loaded.directory} is computed in other batches than the one trained"
            )
        self._logprob = partial(score, loaded.sampling_model.requires_grad_(False))

    async def weigh(self, samples: Sequence[Sample]) -> Weighed:
        return Weighed(samples, self._logprob)


class RemoteTeacher:
    """A model behind an API."""

    def __init__(self, api: ApiTeacher) -> None:
        self._api = api

    async def weigh(self, samples: Sequence[Sample]) -> Weighed:
        weighed = await self._api.weigh(samples)

        def logprob(batch: MicroBatch) -> torch.Tensor:
            values = [value for number in batch.samples for value in weighed.logprobs[number]]
            return torch.tensor(values, dtype=torch.float32, device=batch.sampled.device)

        return Weighed(weighed.samples, logprob, weighed.left_out)


class Published(Protocol):
    """The policy that samples from published weights: a `Sampler` or a part of one."""

    policy_version: int

    def forget(self) -> None:
        """Empty the cache."""

    def publish(self) -> int:
        """The weights changed: drop the same, and return the new version."""


class LocalLearner:
    """Trains `loaded.model` in place, or its adapter. Nothing the sampler uses changes before `publish`, except that in
    float32, and with adapters, both share one copy of the weights, so no answer may be under way during `update`, nor
    during `publish`: of a model with several adapters, none of the adapter that is trained.

    Both compute in the event loop's own thread: the cores are the same, and a run is the same bit for bit. Not so
    `beside` a sampler that has a copy of the weights: then an update computes in a thread, and answers may be under
    way.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        sampler: Published,
        algorithm: AlgorithmConfig,
        trainer: TrainerConfig,
        *,
        beside: bool = False,
    ) -> None:
        self._loaded, self._sampler = loaded, sampler
        self._beside = beside
        self._algorithm, self._trainer = algorithm, trainer
        method = rules_of(algorithm)
        self._loss = method.loss
        # now, before `load` puts a checkpoint in the place of the weights that the run began with
        self._reference: Reference | None = reference_of(loaded) if method.needs_reference else None
        self._teacher = make_teacher(algorithm, loaded)
        self._optimizer = make_optimizer(loaded.trainable(), trainer)
        self._accumulation = Accumulation(
            partial(self._optimizer.zero_grad, set_to_none=True),
            most_tokens=trainer.micro_batch_tokens,
            device=loaded.device,
            layout=loaded.family.layout,
        )
        self._critic = Critic(loaded, algorithm.critic, trainer) if method.needs_critic else None
        self.updates = 0
        self.changes = 0
        self._unpublished = 0
        """Updates of the policy since the last `publish`."""

    @property
    def policy_version(self) -> int:
        return self._sampler.policy_version

    async def update(self, samples: Sequence[Sample], learning_rate: float) -> Update:
        """Take one optimizer step over `samples`. One whose loss or gradient is not finite is thrown away."""
        samples = sorted(samples, key=lambda sample: sample.imitated)  # the critic has numbers for the others alone
        weighed = None if self._teacher is None else await self._teacher.weigh(samples)
        update = partial(self._update, samples if weighed is None else weighed.samples, learning_rate, weighed)
        return await finish(update) if self._beside else update()

    def _update(self, samples: Sequence[Sample], learning_rate: float, weighed: Weighed | None) -> Update:
        played = [sample for sample in samples if not sample.imitated]
        judged = self._critic.judge(played) if self._critic is not None and played else None
        warming_up = judged is not None and self.updates < self._algorithm.critic.warmup_updates

        def backward(batch: MicroBatch) -> dict[str, float]:
            own = batch if judged is None or batch.imitated else credit(batch, judged)
            return self._backward(own, not warming_up, weighed)

        totals, splits = self._accumulation.gather(samples, backward)
        norm = float(torch.nn.utils.clip_grad_norm_(self._loaded.trainable(), self._trainer.max_grad_norm))
        finite = math.isfinite(norm) and math.isfinite(totals["loss"])
        self.updates += 1
        if finite:
            self.changes += 1  # first, as Ctrl-C may break the step off half-way
            if self._critic is not None and judged is not None:
                totals |= self._critic.learn(played, judged) | {"critic/warming_up": float(warming_up)}
            if not warming_up:
                self._step(learning_rate)
        else:
            logger.warning("update %d skipped: the loss or its gradient is not finite", self.updates)
        self._optimizer.zero_grad(set_to_none=True)
        packed = totals.pop("packed_tokens")
        figures = {
            **totals,
            "grad_norm": norm,
            "learning_rate": learning_rate,
            "tokens/packed": packed,
            "tokens/flattened_per_packed": sum(len(sample.timeline.token_ids) for sample in samples) / packed,
        }
        left_out = () if weighed is None else tuple(weighed.left_out)
        return Update(figures, skipped=not finite, splits=splits, left_out=left_out)

    def _step(self, learning_rate: float) -> None:
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate
        self._unpublished += 1
        self._optimizer.step()

    def batches(self, samples: Sequence[Sample], judged: Appraisal | None = None) -> Iterator[MicroBatch]:
        """The micro-batches of an update, with the critic's advantages if there is one: those of `judged`, else as it
        judges now."""
        if self._critic is not None and judged is None:
            judged = self._critic.judge(samples)
        for batch in micro_batches(
            samples, self._trainer.micro_batch_tokens, self._loaded.device, self._loaded.family.layout
        ):
            yield batch if judged is None else credit(batch, judged)

    def objective(self, batch: MicroBatch, weighed: Weighed | None = None) -> Objective:
        """The loss of a micro-batch and its figures; with a teacher that of samples it has `weighed`. To be called
        within `LoadedModel.training`."""
        if batch.imitated or self._loss == "likelihood":
            return likelihood_objective(*self._terms(batch))
        if weighed is not None:
            teacher = weighed.logprob(batch)
            return distillation_objective(*self._terms(batch), teacher, self._algorithm)
        reference = None if self._reference is None else self._reference(batch)
        return policy_objective(*self._terms(batch), reference, self._algorithm)

    def _terms(self, batch: MicroBatch) -> tuple[Entries, torch.Tensor, torch.Tensor]:
        """Compute the arguments of every objective: loss entries, their weights and entropies."""
        forward = predict(self._loaded.model, batch, entropy_gradient=self._algorithm.entropy_bonus > 0)
        entries = batch.entries(forward.logprob, self.policy_version + self._unpublished)
        return entries, batch.weight, forward.entropy(batch)

    def _backward(self, batch: MicroBatch, learn: bool, weighed: Weighed | None) -> dict[str, float]:
        """Add the gradient of one micro-batch if it is to `learn`; its share of each figure of the whole update."""
        with self._loaded.training(), torch.set_grad_enabled(learn):
            objective = self.objective(batch, weighed)
            if learn:
                objective.loss.sum().backward()  # type: ignore[no-untyped-call]
        figures = {name: float(value) for name, value in objective.figures.items()}
        return {"loss": float(objective.loss.detach().sum())} | figures | {"packed_tokens": float(batch.tokens.numel())}

    async def logprobs(self, samples: Sequence[Sample], *, reference: bool = False) -> list[Sequence[float]]:
        assert not reference or self._reference is not None, "MethodRules.needs_reference says which methods have one"
        compute = self._reference if reference else None
        return score_samples(self._loaded, samples, self._trainer.micro_batch_tokens, compute)

    async def publish(self) -> int:
        """Hand the weights to the sampler. Without an update since the last time they are what they were, and so is the
        version; the cache is emptied all the same, as a run that is resumed here begins with an empty one."""
        if not self._unpublished:
            self._sampler.forget()
            return self._sampler.policy_version
        self._unpublished = 0
        self._loaded.copy_to_sampler()
        return self._sampler.publish()

    def save(self, directory: Path) -> None:
        """Weights (or the adapter, as a folder of peft's) and tokenizer, the optimizer beside them."""
        state: dict[str, Any] = {"optimizer": self._optimizer.state_dict(), "updates": self.updates}
        try:
            save_model(self._loaded, directory)
            torch.save(state | {"policy_version": self.policy_version}, directory / STATE_FILE)
            if self._critic is not None:
                self._critic.save(directory)
        except DISK_ERRORS as error:
            raise OSError(str(error)) from error

    def load(self, directory: Path) -> None:
        """Go on from what `save` wrote. Raises RunFolderError where that is broken or of another model."""
        try:
            state = torch.load(
                directory / STATE_FILE, map_location="cpu", weights_only=True
            )  # AdamW counts steps there
            self._loaded.load_weights(directory)
            self._optimizer.load_state_dict(state["optimizer"])
            if self._critic is not None:
                self._critic.load(directory)
            self.updates = state["updates"]
        except (OSError, EOFError, RuntimeError, ValueError, KeyError, UnpicklingError, ModelError) as error:
            raise RunFolderError(
                f"{directory} cannot be gone on from: {type(error).__name__}: {error}. If its files are damaged, "
                "delete the folder to go on from the checkpoint before it"
            ) from error
        self._begin_anew(state["policy_version"])

    def _begin_anew(self, policy_version: int) -> None:
        """Sample from the weights as they are, those of `policy_version`."""
        self._unpublished = 0
        self._loaded.copy_to_sampler()
        self._sampler.forget()
        self._sampler.policy_version = policy_version

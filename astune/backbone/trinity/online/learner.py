"""The `Learner` whose updates are Trinity's: samples go into its buffer, weights come back as a folder.

What a model in this process says of tokens is computed here, by the same weights: how far an update has moved them, and
what samples that are imitated begin with.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from trinity.common.experience import EID, Experience

from astune.backbone.local.learning.learner import LocalLearner
from astune.backbone.local.model.model import LoadedModel
from astune.backbone.local.sampling.sampler import Sampler
from astune.backbone.trinity.explorer.experience import experiences_of
from astune.backbone.trinity.explorer.samples import as_batch
from astune.backbone.trinity.online.session import Beginning, TrinitySession
from astune.config.schema import AlgorithmConfig, AstuneConfig
from astune.errors import ModelError, RunFolderError, TrainingError
from astune.training.schedule import learning_rate as scheduled
from astune.types import Sample, Update

STATE_FILE = "trinity_trainer.json"
"""Beside a version's weights and Trinity's optimizer: how many updates it has had, and which version it is."""


class TrinityLearner(LocalLearner):
    """A `LocalLearner` that has its updates made. `begin` starts a session of Trinity with a checkpoint, or with the
    model as configured, by a share of the configured learning rate, and ends the one before.

    Invariant: `loaded` has the weights that Trinity has, or those that its next session begins with.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        sampler: Sampler,
        config: AstuneConfig,
        begin: Callable[[Beginning | None, float], TrinitySession],
    ) -> None:
        super().__init__(loaded, sampler, config.algorithm, config.trainer)
        self._config, self._begin = config, begin
        self._session: TrinitySession | None = None
        self._share = 1.0
        self._newest: Path | None = None

    async def update(self, samples: Sequence[Sample], learning_rate: float) -> Update:
        """Trinity knows the schedule of learning rates and takes no other: where `learning_rate` is a share of it, as
        after an update that went too far, another session is begun."""
        share = learning_rate / scheduled(self._config.trainer, self.updates, self.updates + 1)
        if self._session is None or share != self._share:
            self._session = None
            beginning = None if self._newest is None else Beginning(self._newest, self.updates)
            session = self._begin(beginning, share)
            await session.ready()
            self._session, self._share = session, share
        logprobs = await self.logprobs([sample for sample in samples if sample.imitated])
        rows = rows_of(samples, logprobs, self.updates + 1, self._config)
        try:
            trained = await self._session.train(rows)
        except TrainingError:
            self._session = None
            raise
        self.updates += 1
        figures = {name: value for name, value in trained.figures.items() if not name.startswith("trinity/")}
        skipped = bool(figures.pop("updates/skipped", 0.0))
        self._newest = trained.folder
        if not skipped:
            self.changes += 1
            self._unpublished += 1
            self._loaded.load_weights(trained.folder)
        return Update(figures | {"learning_rate": learning_rate}, skipped=skipped)

    def save(self, directory: Path) -> None:
        """Give what Trinity saved after the last update."""
        if self._newest is None:
            raise TrainingError("Trinity has trained nothing yet that could be saved")
        shutil.copytree(self._newest, directory, copy_function=shutil.copyfile, dirs_exist_ok=True)
        state = {"updates": self.updates, "policy_version": self.policy_version}
        (directory / STATE_FILE).write_text(json.dumps(state))

    def load(self, directory: Path) -> None:
        try:
            state = json.loads((directory / STATE_FILE).read_text())
            self.updates, version = int(state["updates"]), int(state["policy_version"])
            self._loaded.load_weights(directory)
        except (OSError, RuntimeError, ValueError, KeyError, TypeError, ModelError) as error:
            raise RunFolderError(
                f"Trinity cannot go on from {directory} ({type(error).__name__}: {error}): it is damaged, or another "
                "backbone's; train it on with --backbone as before"
            ) from error
        self._session, self._newest = None, directory
        self._begin_anew(version)


def rows_of(
    samples: Sequence[Sample], logprobs: Sequence[Sequence[float]], update: int, config: AstuneConfig
) -> list[Experience]:
    """The rows of an update, in the order of the samples. `logprobs` are those, under the weights as they are, of the
    tokens with weight of each sample that is imitated: the row says that they were sampled so, so that whichever of
    Trinity's losses it is has the gradient of -advantage * logprob there, as their ratio is 1."""
    known = iter(logprobs)
    ready = [_as_sampled(sample, next(known), config.algorithm) if sample.imitated else sample for sample in samples]
    runs: dict[str, tuple[EID, float | None]] = {
        sample.episode_id: (EID(batch=update, task=number, run=0), 0.0) for number, sample in enumerate(ready)
    }
    rows = experiences_of(ready, runs, multiple=1, temperature=config.rollout.temperature)
    return as_batch(rows, update, "tinker")


def _as_sampled(sample: Sample, logprobs: Sequence[float], algorithm: AlgorithmConfig) -> Sample:
    rest = iter(logprobs)
    spans = tuple(
        replace(span, logprobs=[next(rest) for _ in range(len(span))]) if weight else span
        for span, weight in zip(sample.timeline.spans, sample.weights, strict=True)
    )
    # Trinity's loss of this name divides by this number
    scale = 1.0 + algorithm.opmd_tau if algorithm.loss == "opmd" else 1.0
    advantages = tuple(scale * advantage for advantage in sample.advantages)
    return replace(sample, timeline=replace(sample.timeline, spans=spans), advantages=advantages)

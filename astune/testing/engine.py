"""An engine without a model: a policy that answers from a script, and a learner that counts."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import ClassVar

from astune.backbone.base import Backbone
from astune.config.load import LoadedConfig
from astune.config.schema import AstuneConfig
from astune.context_tracker.model_dir import load_chat_format
from astune.context_tracker.scripted_policy import ScriptedPolicy
from astune.errors import RunFolderError
from astune.support.resources import tiny_model_dir
from astune.training.engine import Engine, LoadEngine
from astune.training.start import run_training
from astune.types import RunReport, Sample, Update

STATE_FILE = "counts.json"


class CountingLearner:
    """A `Learner` whose only weight is a number, to which every update adds what it was asked to learn.

    `rates` are the learning rates of its updates. The updates of the numbers in `skipped` (from 0) are thrown away.
    """

    def __init__(self, policy: ScriptedPolicy, skipped: Collection[int] = ()) -> None:
        self._policy, self._skipped = policy, skipped
        self.weight = 0.0
        self.rates: list[float] = []
        self.updates = 0
        self.changes = 0
        self._published = 0

    @property
    def policy_version(self) -> int:
        return self._policy.policy_version

    async def update(self, samples: Sequence[Sample], learning_rate: float) -> Update:
        self.rates.append(learning_rate)
        skipped = self.updates in self._skipped
        self.updates += 1
        if not skipped:
            self.changes += 1
            self.weight += learning_rate * sum(
                len(span) * weight * advantage
                for sample in samples
                for span, weight, advantage in zip(
                    sample.timeline.spans, sample.weights, sample.advantages, strict=True
                )
            )
        return Update({"weight": self.weight}, skipped)

    async def logprobs(self, samples: Sequence[Sample], *, reference: bool = False) -> list[Sequence[float]]:
        """Every token gets likelier as the weight grows from 0."""
        weight = 0.0 if reference else self.weight
        return [[-math.log1p(math.exp(-weight))] * sample.trained_tokens for sample in samples]

    async def publish(self) -> int:
        if self.changes != self._published:
            self._published = self.changes
            self._policy.policy_version += 1
        return self._policy.policy_version

    def save(self, directory: Path) -> None:
        counts = {"weight": self.weight, "updates": self.updates, "policy_version": self.policy_version}
        (directory / STATE_FILE).write_text(json.dumps(counts))

    def load(self, directory: Path) -> None:
        try:
            counts = json.loads((directory / STATE_FILE).read_text())
            self.weight, self.updates = counts["weight"], counts["updates"]
            self._policy.policy_version = counts["policy_version"]
            self._published = self.changes
        except (OSError, ValueError, KeyError) as error:
            raise RunFolderError(f"{directory} cannot be gone on from: {error}") from error


def script_engine(answers: Sequence[str] | Callable[[str], str], skipped: Collection[int] = ()) -> LoadEngine:
    """Load an engine that answers as `ScriptedPolicy` does and learns as `CountingLearner` does.

    report = run_training(load_config(path), script_engine(lambda prompt: "The answer is 4."))
    """

    def load(config: AstuneConfig) -> Engine:
        chat_format = load_chat_format(config.model, tiny_model_dir())
        policy = ScriptedPolicy(answers, chat_format)
        return Engine(policy, CountingLearner(policy, skipped), chat_format, beside=True)

    return load


class ScriptedBackbone(Backbone):
    """The training loop over `script_engine`, as a backbone: every answer is "4".

    astune run job.yaml --backbone astune.testing:ScriptedBackbone
    """

    name: ClassVar[str] = "scripted"
    honours: ClassVar[frozenset[str]] = frozenset({"astune"})
    ignored_sections: ClassVar[frozenset[str]] = frozenset({"astune.debug", "trinity", "verl"})

    def run(self, loaded: LoadedConfig) -> RunReport:
        return run_training(loaded, script_engine(lambda prompt: "4"))

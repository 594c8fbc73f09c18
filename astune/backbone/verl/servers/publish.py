"""Hand weights over to the servers, and check that they arrived (`backbone/policies/compared.py`)."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import ray
from verl.checkpoint_engine import CheckpointEngineManager
from verl.workers.rollout.replica import RolloutReplica

from astune.backbone.policies.compared import ComparedAnswers
from astune.errors import TrainingError
from astune.types import Sample

Logprobs: TypeAlias = Callable[[Sequence[Sample]], Sequence[Sequence[float]]]


class PublishedWeights:
    """The weights that the servers have.

    Invariant: from a `publish` to the next `make_room` every server answers with the weights of `version`, and nothing
    cached of others. `begin_with` are token ids of any text, to be compared before there are answers; `most_apart` is
    how far apart the log-probabilities may be, on average over the tokens.
    """

    def __init__(
        self, manager: CheckpointEngineManager, begin_with: Sequence[int], context_length: int, most_apart: float
    ) -> None:
        self._manager = manager
        self._compared = ComparedAnswers(begin_with, context_length, most_apart)
        self.version = 0
        self._figures: dict[str, float] = {}
        self._asleep = True  # servers begin without weights, or with those of the file
        self._shares = manager.backend == "naive"

    @property
    def replicas(self) -> Sequence[RolloutReplica]:
        return tuple(self._manager.replicas)

    def remember(self, token_ids: Sequence[int]) -> None:
        """A prompt and its answer, which may be among those that are compared."""
        self._compared.remember(token_ids)

    def make_room(self) -> None:
        """Let the servers free the memory that the trainer needs. Those on GPUs of their own go on as they are."""
        if self._shares and not self._asleep:
            self._manager.sleep_replicas()
            self._asleep = True

    def publish(self, version: int, logprobs: Logprobs) -> Mapping[str, float]:
        """Give the servers the weights as they are now, as those of `version`, and compare. `logprobs` are the
        trainer's, which has the memory until then. Where the servers have the weights already, only their caches are
        emptied. Returns how it went. Raises TrainingError where a server has other weights than the trainer."""
        if version == self.version and not self._asleep:
            ray.get([server.clear_kv_cache.remote() for replica in self.replicas for server in replica.servers])
            return self._figures
        rows = self._compared.draw(version)
        expected = logprobs(rows)
        started = time.perf_counter()
        self._manager.update_weights(global_steps=version)
        self.version, self._asleep = version, False
        handed = time.perf_counter()
        apart = self._compare(rows, expected)
        self._figures = {
            "servers/logprob_difference": apart,
            "time/hand_over": handed - started,
            "time/compare": time.perf_counter() - handed,
        }
        return self._figures

    def _compare(self, rows: Sequence[Sample], expected: Sequence[Sequence[float]]) -> float:
        """The greatest mean difference of a server's log-probabilities to those `expected`."""
        asked = [(replica, [_score(replica, row) for row in rows]) for replica in self.replicas]
        worst = 0.0
        for replica, answers in asked:
            outputs = ray.get(answers)
            versions = {output.extra_fields["global_steps"] for output in outputs}
            if versions != {self.version}:
                raise TrainingError(
                    f"server {replica.replica_rank} was to get the weights of version {self.version}, and answers with "
                    f"those of version {', '.join(map(str, versions))}"
                )
            given = [entry[0] for output in outputs for entry in output.extra_fields["prompt_logprobs"][:-1]]
            apart = self._compared.check(f"server {replica.replica_rank}", self.version, given, expected)
            worst = max(worst, apart)
        return worst


def _score(replica: RolloutReplica, row: Sample) -> Any:
    """Ask for the log-probability of each token but the first; verl's servers give one entry more, which is none."""
    return replica.server_handle.generate.remote(
        request_id=uuid.uuid4().hex,
        prompt_ids=list(row.timeline.token_ids),
        sampling_params={"max_tokens": 1, "temperature": 1.0, "logprobs": True, "prompt_logprobs": 0},
    )

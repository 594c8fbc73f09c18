"""The training workers on Ray as the ranks that the learner knows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import ray
import torch
from tensordict import TensorDict
from verl.single_controller.ray import RayWorkerGroup
from verl.utils import tensordict_utils

from astune.context_tracker.model_dir import copy_tokenizer


class GroupWorkers:
    """A group of `AstuneWorker`. `make_room` lets servers on the same GPUs give their memory away and is called before
    anything is computed; `failing_loudly` turns what Ray raises into errors of the run. `directory` has the
    tokenizer."""

    def __init__(
        self,
        group: RayWorkerGroup,
        directory: Path,
        make_room: Callable[[], None],
        failing_loudly: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self._group, self._directory = group, directory
        self._make_room, self._failing_loudly = make_room, failing_loudly
        with failing_loudly():
            self.ranks: int = max(group._query_dispatch_info("actor")) + 1
        self.sharing: int = group.world_size // self.ranks

    def gradient(self, batch: TensorDict) -> Mapping[str, Any]:
        with self._failing_loudly():
            self._make_room()
            self._group.optimizer_zero_grad()
            return read_metrics(self._group.forward_backward(batch).get())

    def step(self, learning_rate: float) -> float:
        with self._failing_loudly():
            return float(self._group.optimizer_step({"lr": learning_rate})[0]["grad_norm"])

    def drop(self) -> None:
        with self._failing_loudly():
            self._group.optimizer_zero_grad()

    def infer(self, batch: TensorDict, *, beside: bool) -> TensorDict:
        with self._failing_loudly():
            self._make_room()
            ask = self._group.compute_ref_log_prob if beside else self._group.compute_log_prob
            told: TensorDict = ask(batch)
            return told

    def figures(self, batch: TensorDict) -> Mapping[str, Any]:
        with self._failing_loudly():
            self._make_room()
            return read_metrics(self._group.compute_log_prob(batch))

    def values(self, batch: TensorDict) -> torch.Tensor:
        with self._failing_loudly():
            self._make_room()
            told: torch.Tensor = self._group.compute_values(batch)["values"]
            return told

    def critic_gradient(self, batch: TensorDict) -> Mapping[str, Any]:
        with self._failing_loudly():
            return read_metrics(self._group.critic_gradient(batch))

    def critic_step(self, learning_rate: float) -> float:
        with self._failing_loudly():
            return float(self._group.critic_step(learning_rate)[0]["grad_norm"])

    def drop_critic_gradient(self) -> None:
        with self._failing_loudly():
            self._group.drop_critic_gradient()

    def save(self, folder: Path) -> None:
        with self._failing_loudly():
            self._group.save_all(str(folder.resolve()))
        copy_tokenizer(self._directory, folder)

    def load(self, folder: Path) -> None:
        with self._failing_loudly():
            try:
                self._group.load_all(str(folder.resolve()))
            except ray.exceptions.RayTaskError as error:
                if isinstance(error.cause, OSError):  # the folder is broken, no worker
                    raise error.cause from error
                raise


def read_metrics(gathered: TensorDict) -> Mapping[str, Any]:
    """The metrics of a batch. Every rank tells those of all ranks and, among them, the memory it takes itself: verl
    gives one mapping where that is the same by chance, else one for each row."""
    metrics = tensordict_utils.get(gathered, "metrics")
    told: Mapping[str, Any] = metrics[0] if isinstance(metrics, list) else metrics
    return told

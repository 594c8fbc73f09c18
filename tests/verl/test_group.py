"""What several ranks tell is read as one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import ray
import torch
from tensordict import TensorDict
from verl.utils import tensordict_utils

from astune.backbone.verl.trainer.group import GroupWorkers, read_metrics


def told(rows: int, memory: float) -> TensorDict:
    """The answer of a rank that had `rows`."""
    logprobs = torch.nested.as_nested_tensor([torch.zeros(3)] * rows, layout=torch.jagged)
    metrics = {"loss": 0.5, "astune/entropy": [[1.0], [2.0]], "perf/cpu_memory_used_gb": memory}
    return tensordict_utils.get_tensordict({"log_probs": logprobs}, {"metrics": metrics})


@pytest.mark.parametrize("memory", [[7.0], [7.0, 7.0], [7.0, 7.1], [7.0, 7.1, 7.1]])
def test_ranks_may_take_different_memory(memory: list[float]) -> None:
    gathered = tensordict_utils.concat_tensordict([told(2 + rank, taken) for rank, taken in enumerate(memory)])
    metrics = read_metrics(gathered)
    assert (metrics["loss"], metrics["astune/entropy"]) == (0.5, [[1.0], [2.0]])


class Unreadable:
    """Training workers that find a checkpoint broken."""

    world_size = 2

    def _query_dispatch_info(self, mesh: str) -> list[int]:
        return [0, 1]

    def load_all(self, folder: str) -> None:
        raise ray.exceptions.RayTaskError("load_all", "", OSError(f"{folder} does not load"))


def test_a_checkpoint_that_workers_find_broken_is_no_failure_of_theirs(tmp_path: Path) -> None:
    @contextmanager
    def loudly() -> Iterator[None]:
        try:
            yield
        except ray.exceptions.RayError:
            pytest.fail("the workers were taken for broken")

    workers = GroupWorkers(Unreadable(), tmp_path, lambda: None, loudly)
    with pytest.raises(OSError, match="does not load"):
        workers.load(tmp_path)

"""Steps of sampling on a GPU, each launched at once: what the host takes to launch a model's kernels one by one is
several times what the GPU takes to compute them, with one new token for each conversation.

A step is recorded as a CUDA graph by the number of its rows and of the positions that they see, both rounded up, and
played again with other numbers in the same memory. Steps of other sizes, and the first ones of each size, which a graph
would cost more than it saves, are launched as they are.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

logger = logging.getLogger(__name__)

ROWS, WIDTH = 8, 256
"""Multiples to which rows, if they are more, and positions are rounded up."""
IDLE_ROWS = 4
"""Rows to each that computes something, up to which a graph of all is quicker than a step of those alone."""
PLAIN_STEPS = 2
"""Steps of a size before it is recorded: libraries choose their kernels in the first ones."""
MOST_GRAPHS = 64
"""The sizes that are kept; the one that came first makes room."""

Step = Callable[[torch.Tensor, int], torch.Tensor]
"""Of token ids, positions and places of the keys (3, rows, 1), and of how many positions are seen, to logits (rows,
vocabulary)."""


@dataclass(frozen=True)
class Recorded:
    """`replay` computes `logits` anew from the `inputs` (3, rows, 1): token ids, positions, places."""

    inputs: torch.Tensor
    logits: torch.Tensor
    replay: Callable[[], object]


class StepGraphs:
    """The graphs of one model and one cache. `record` makes `Recorded` of inputs and what computes logits of them."""

    def __init__(
        self, record: Callable[[torch.Tensor, Callable[[torch.Tensor], torch.Tensor]], Recorded] | None = None
    ) -> None:
        self._record = record or _Recorder()
        self._graphs: dict[tuple[int, int], Recorded] = {}
        self._plain: dict[tuple[int, int], int] = {}
        self._memory: tuple[int, ...] = ()
        self._fails = False

    def step(
        self, compute: Step, numbers: np.ndarray, width: int, memory: tuple[int, ...], device: torch.device
    ) -> torch.Tensor:
        """Logits after `numbers` (3, rows, 1), whose rows see up to `width` positions. `memory` are the addresses of
        what `compute` reads: where they change, what was recorded would read other memory, and is forgotten."""
        if memory != self._memory:
            self._graphs.clear()
            self._memory = memory
        inputs, size = torch.as_tensor(numbers, device=device), (numbers.shape[1], width)
        if (known := self._graphs.get(size)) is not None:
            known.inputs.copy_(inputs)
            known.replay()
            return known.logits
        seen = self._plain[size] = self._plain.get(size, 0) + 1
        if self._fails or seen <= PLAIN_STEPS:
            return compute(inputs, width)
        return self._add(compute, inputs, size)

    def _add(self, compute: Step, inputs: torch.Tensor, size: tuple[int, int]) -> torch.Tensor:
        try:
            made = self._record(inputs, lambda numbers: compute(numbers, size[1]))
        except RuntimeError as error:
            self._fails = True
            logger.warning("steps of sampling are launched kernel by kernel, as no CUDA graph can be made: %s", error)
            return compute(inputs, size[1])
        if len(self._graphs) == MOST_GRAPHS:
            del self._graphs[next(iter(self._graphs))]
        self._graphs[size] = made
        made.replay()
        return made.logits


class _Recorder:
    """Records CUDA graphs that share one pool of memory: they are never played side by side."""

    def __init__(self) -> None:
        self._pool: Any = None

    def __call__(self, inputs: torch.Tensor, compute: Callable[[torch.Tensor], torch.Tensor]) -> Recorded:
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            logits = compute(inputs)
        return Recorded(inputs, logits, graph.replay)


def round_up(number: int, multiple: int, most: int) -> int:
    """The next multiple, at most `most`.

    >>> round_up(9, 8, 64), round_up(16, 8, 64), round_up(60, 8, 62)
    (16, 16, 62)
    """
    return min(-(-number // multiple) * multiple, most)

"""The gradient of an update, gathered in micro-batches; one that does not fit into memory is split in two.

    rows 0-5 | rows 6-9        the second does not fit: what there is of the gradient is dropped, and it begins again
    rows 0-5 | rows 6-7 | 8-9  until all fit, or one row alone does not

A backward pass that breaks off has already added to the gradient of some weights. Dropping all of it costs the time of
the micro-batches before, and that only when memory ran out; keeping a copy would cost memory always.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence

import torch

from astune.backbone.local.learning.batch import LayoutName, MicroBatch, micro_batch, micro_batches
from astune.errors import TrainingError
from astune.types import Sample

logger = logging.getLogger(__name__)

Backward = Callable[[MicroBatch], Mapping[str, float]]

CPU_IS_FULL = ("DefaultCPUAllocator: can't allocate memory", "DefaultCPUAllocator: not enough memory")
"""Texts of torch's error where a CPU has no more memory; it has no error class for that."""


class Accumulation:
    """Gathers updates over one model. `drop` takes back whatever the gradient holds."""

    def __init__(
        self,
        drop: Callable[[], None],
        *,
        most_tokens: int,
        device: torch.device,
        layout: LayoutName,
    ) -> None:
        self._drop = drop
        self._most_tokens, self._device, self._layout = most_tokens, device, layout
        self._has_warned = False

    def gather(self, samples: Sequence[Sample], backward: Backward) -> tuple[dict[str, float], int]:
        """The figures of an update over `samples`, and how many micro-batches were split for want of memory. Each
        sample has then added to the gradient once. `backward` adds the gradient of a micro-batch and returns its share
        of each figure. Raises TrainingError where one row alone does not fit."""
        too_large: set[tuple[int, ...]] = set()
        while (figures := self._attempt(samples, backward, too_large)) is None:
            if self._device.type == "cuda":
                torch.cuda.empty_cache()  # the halves need blocks of other sizes
        return figures, len(too_large)

    def _attempt(
        self, samples: Sequence[Sample], backward: Backward, too_large: set[tuple[int, ...]]
    ) -> dict[str, float] | None:
        """None if a micro-batch did not fit, which is then among those that are too large."""
        self._drop()
        figures: dict[str, float] = {}
        batch = None
        try:
            for batch in self._split_batches(samples, too_large):
                for name, value in backward(batch).items():
                    figures[name] = figures.get(name, 0.0) + value
        except RuntimeError as error:
            if batch is None or not is_out_of_memory(error):
                raise
            self._note(batch, samples, error)
            too_large.add(batch.samples)
            return None
        return figures

    def _split_batches(self, samples: Sequence[Sample], too_large: set[tuple[int, ...]]) -> Iterator[MicroBatch]:
        for batch in micro_batches(samples, self._most_tokens, self._device, self._layout):
            yield from self._halve(batch, samples, too_large)

    def _halve(
        self, batch: MicroBatch, samples: Sequence[Sample], too_large: set[tuple[int, ...]]
    ) -> Iterator[MicroBatch]:
        if batch.samples not in too_large:
            yield batch
            return
        half = len(batch.samples) // 2
        for numbers in (batch.samples[:half], batch.samples[half:]):
            part = micro_batch(numbers, samples, self._device, self._layout)
            yield from self._halve(part, samples, too_large)

    def _note(self, batch: MicroBatch, samples: Sequence[Sample], error: Exception) -> None:
        self._drop()
        tokens, rows = batch.tokens.numel(), len(batch.samples)
        if rows == 1:
            episode = samples[batch.samples[0]].episode_id
            raise TrainingError(
                f"a row of {tokens} tokens (episode {episode}) does not fit into memory by itself: set "
                "astune.model.gradient_checkpointing: true, or lower astune.model.max_model_len"
            ) from error
        log = logger.info if self._has_warned else logger.warning
        log(
            "a micro-batch of %d rows with %d tokens does not fit into memory and is split in two; a lower "
            "astune.trainer.micro_batch_tokens saves the time that this takes",
            rows,
            tokens,
        )
        self._has_warned = True


def is_out_of_memory(error: RuntimeError) -> bool:
    """Tell an error by which torch says that a device, or the machine, has no more memory.

    >>> is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory"))
    True
    >>> is_out_of_memory(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))
    False
    """
    return isinstance(error, torch.OutOfMemoryError) or any(text in str(error) for text in CPU_IS_FULL)

"""Give Trinity's trainer the rows of one explored batch for each step, however many they are.

Trinity's own strategy takes a fixed number of rows. Episodes of agents give as many rows as they have timelines, so
batches would drift apart from steps, and a batch short of one row would be waited for until a timeout.
"""

from __future__ import annotations

from typing import Any

from trinity.algorithm.sample_strategy.sample_strategy import SampleStrategy
from trinity.buffer import get_buffer_reader
from trinity.common.config import BufferConfig
from trinity.common.experience import Experience

from astune.backbone.trinity.explorer.samples import BATCH, ROWS
from astune.backbone.trinity.shared.mailbox import find_mailbox

WAIT = 10.0
"""Seconds after which a trainer that waits for rows looks whether the user wants the run to stop."""


class WholeSteps(SampleStrategy):  # type: ignore[misc]
    """One explored batch per train step, in the order in which they were explored.

    `max_staleness` drops batches of which a row was sampled by a policy that is older, in train steps, than that. A
    stopped run ends at a step's boundary, where Trinity saves.
    """

    def __init__(self, buffer_config: BufferConfig, max_staleness: int | None = None, **kwargs: Any) -> None:
        super().__init__(buffer_config)
        self._buffer = get_buffer_reader(buffer_config.trainer_input.experience_buffer)
        # the reader waits an hour or more, and would not hear of Ctrl-C: so it waits in pieces
        self._patience = self._buffer.timeout
        self._buffer.timeout = min(WAIT, self._patience)
        self._mailbox = find_mailbox()
        self._max_staleness = max_staleness
        self._batch = 0

    async def sample(self, step: int) -> tuple[list[Experience], dict[str, float], list[Any]]:
        """The rows of train step `step`, counted from 1. Raises StopAsyncIteration where the run ends."""
        dropped = 0
        while True:
            rows = await self._next_batch()
            self._batch = rows[0].info[BATCH]
            # rows that only fill up the batch belong to no episode
            oldest = min((row.info["model_version"] for row in rows if row.info["episode_id"]), default=step - 1)
            if self._max_staleness is None or step - 1 - oldest <= self._max_staleness:
                break
            dropped += 1
        metrics = {"astune/batch": float(self._batch), "astune/stale_batches": float(dropped)}
        return rows, metrics, []

    async def _next_batch(self) -> list[Experience]:
        waited = 0.0
        while True:
            try:
                (first,) = await self._buffer.read(batch_size=1)
                break
            except TimeoutError:
                waited += self._buffer.timeout
                if await self._mailbox.stopping.remote():
                    raise StopAsyncIteration from None
                if waited >= self._patience:
                    raise
        rest = first.info[ROWS] - 1
        return [first, *(await self._buffer.read(batch_size=rest) if rest else [])]

    @classmethod
    def default_args(cls) -> dict[str, Any]:
        return {"max_staleness": None}

    def state_dict(self) -> dict[str, int]:
        """`batch` is the explored batch that was trained last, for those who read Trinity's trainer_meta.json; a
        resumed run goes by the checkpoint in the run folder."""
        return {"batch": self._batch}

    def load_state_dict(self, state_dict: dict[str, int]) -> None:
        self._batch = state_dict.get("batch", 0)

"""Give Trinity's trainer the examples of each step, their rows as experiences.

The examples of a step depend on its number alone: a seeded shuffle for every pass, cut into steps. So a resumed run
goes on with the step after its checkpoint, and there is no state to keep.
"""

from __future__ import annotations

from typing import Any

import torch
from trinity.algorithm.sample_strategy.sample_strategy import SampleStrategy
from trinity.common.config import BufferConfig
from trinity.common.experience import EID, CustomField, Experience

from astune.backbone.trinity.shared.mailbox import find_mailbox
from astune.backbone.trinity.shared.parts import load_parts
from astune.examples.read import read_examples
from astune.training.schedule import Schedule
from astune.types import Timeline

UNUSED = "astune_unused"


class ExampleSteps(SampleStrategy):  # type: ignore[misc]
    """`astune.trainer.tasks_per_step` examples per train step, the rows of each side by side. `trainer` is "tinker" or
    "verl". A stopped run ends at a step's boundary, where Trinity saves."""

    def __init__(self, buffer_config: BufferConfig, trainer: str, **kwargs: Any) -> None:
        super().__init__(buffer_config)
        parts = load_parts(buffer_config.explorer_input.taskset.workflow_args)
        examples = read_examples(parts.config, parts.chat_format)
        self._schedule = Schedule(examples, parts.config.trainer, parts.config.seed, noun="examples")
        self._trainer = trainer
        self._mailbox = find_mailbox()

    async def sample(self, step: int) -> tuple[list[Experience], dict[str, float], list[Any]]:
        """The rows of train step `step`, counted from 1. Raises StopAsyncIteration where the run ends."""
        if step > self._schedule.total_steps or await self._mailbox.stopping.remote():
            raise StopAsyncIteration
        rows = []
        for number, example in enumerate(self._schedule.at(step - 1)):
            for run, row in enumerate(example.rows):
                rows.append(experience_of_row(row, EID(batch=step, task=number, run=run), self._trainer))
        tokens = sum(int(row.action_mask.sum()) for row in rows)
        return rows, {"astune/batch": float(step), "sample/trained_tokens": float(tokens)}, []

    @classmethod
    def default_args(cls) -> dict[str, Any]:
        return {"trainer": "verl"}

    def state_dict(self) -> dict[str, int]:
        return {}

    def load_state_dict(self, state_dict: dict[str, int]) -> None:
        """A step's number is all there is to know."""


def experience_of_row(row: Timeline, eid: EID, trainer: str) -> Experience:
    """The row with a mask on what carries loss. Context after the last such token trains nothing and is left out.

    Trinity 0.6.0's `tinker` trainer wants log-probabilities of the sampler and of a reference model even where no loss
    uses them, so its rows carry zeros under these names; where a reference model is used it puts its own there.
    """
    mask = torch.tensor(row.loss_mask)
    places = mask.nonzero().flatten()
    first, last = int(places[0]), int(places[-1]) + 1
    unused = ("old_logprob", "ref_logprob") if trainer == "tinker" else ()
    return Experience(
        eid=eid,
        tokens=torch.tensor(list(row.token_ids[:last]), dtype=torch.int32),
        prompt_length=first,
        action_mask=mask[first:last],
        info={"model_version": 0, UNUSED: [0.0] * (last - first)},
        custom_fields=[CustomField(UNUSED, name, torch.float32) for name in unused],
    )

"""The stages of a configuration: what each may set, and what is wrong with them together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from astune.config.rules.method import rules_of
from astune.config.schema import AstuneConfig
from astune.errors import nearest

SECTIONS = ("algorithm", "trainer", "evaluation", "task_reader", "rollout", "task_judge")
"""The sections of astune that a stage may set; all else is the run's."""
KEY = "astune.stages"


def wrong_sections(stages: Any) -> Iterator[str]:
    """What is wrong with the form of `astune.stages`."""
    if not isinstance(stages, list) or not all(isinstance(stage, Mapping) for stage in stages):
        yield f"expected a list of stages, each with sections of astune, got {stages!r:.80}"
        return
    if len(stages) == 1:
        yield "one stage is no stages; take the key out, and set its values in the sections themselves"
    for number, stage in enumerate(stages, start=1):
        for name in stage:
            if name not in SECTIONS:
                yield (
                    f"stage {number}: a stage has no {name!r}.{nearest(str(name), SECTIONS)} There are: "
                    f"{', '.join(SECTIONS)}"
                )


def stage_contradictions(astune: AstuneConfig, stages: Sequence[AstuneConfig]) -> Iterator[tuple[str, str]]:
    """The key to change and what is wrong with it."""
    if not stages:
        if astune.trainer.examples_of_run:
            yield "astune.trainer.examples_of_run", "a run without astune.stages has no earlier episodes; take it out"
        return
    if not astune.traits.trains:
        yield (
            KEY,
            "the backbone 'debug' has no stages: add astune.stages=[] to the command, which plays what is in common",
        )
    if not astune.traits.own_loop:
        yield KEY, f"the backbone {astune.backbone!r} has no stages; expected --backbone=local, or take the key out"
    played = False
    for number, stage in enumerate(stages, start=1):
        trainer = stage.trainer
        if trainer.examples_of_run and not played:
            yield KEY, f"stage {number}: trainer.examples_of_run, but no stage before it plays episodes"
        if trainer.examples_of_run and (trainer.total_steps is None or trainer.total_epochs is not None):
            yield KEY, f"stage {number}: trainer.examples_of_run needs total_steps alone: examples are counted later"
        played = played or rules_of(stage.algorithm).plays

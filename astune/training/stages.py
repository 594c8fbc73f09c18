"""The stages of a run (`astune.stages`): each begins with the weights that the one before it ended with.

Steps are counted through: with 20 steps of SFT and 40 of GRPO, step 21 is GRPO's first. The checkpoint after the last
step of a stage is kept; the next stage loads its model from there, with an optimizer of its own, a learning rate that
warms up anew, and the weights of its start as the reference.
"""

from __future__ import annotations

from dataclasses import dataclass

from astune.config.rules.models import begin_with
from astune.config.schema import AstuneConfig
from astune.errors import RunFolderError
from astune.monitor.run_dir import RunDir


@dataclass(frozen=True)
class Stage:
    """Stage `number`, from 1, of `count`. `ends` are the numbers of the last steps of the stages before it, `keep_best`
    what those and it have as `astune.trainer.keep_best`."""

    number: int
    count: int
    ends: tuple[int, ...]
    keep_best: tuple[str | None, ...]

    @property
    def first(self) -> int:
        """The number of steps of the stages before it."""
        return self.ends[-1] if self.ends else 0


def check_start(run_dir: RunDir, number: int, first: int) -> None:
    """Raise RunFolderError where a stage cannot begin with the checkpoint of step `first`."""
    start = run_dir.checkpoint_path(first)
    wrong = run_dir.damage(start) if start in run_dir.checkpoints() else "it is missing"
    if wrong is not None:
        raise RunFolderError(
            f"stage {number} began with the checkpoint {start}, which is broken: {wrong}. Put it back from a copy; or "
            "delete it and those after it, and --resume goes on from the one before"
        )


def prepare_stage(config: AstuneConfig, stage: Stage, run_dir: RunDir) -> AstuneConfig:
    """Give the configuration of a stage the model that it begins with, and the episodes that it learns from."""
    if stage.first == 0:
        return config
    trainer = config.trainer
    if trainer.examples_of_run:
        before = f"step<={stage.first}"  # a run that is resumed may have later ones, which are played again
        keep = before if trainer.examples_filter is None else f"{before} and {trainer.examples_filter}"
        file = run_dir.episodes_dir / "train.jsonl"
        trainer = trainer.model_copy(update={"examples": str(file), "examples_filter": keep})
    return begin_with(config.model_copy(update={"trainer": trainer}), run_dir.checkpoint_path(stage.first))

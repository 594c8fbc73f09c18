"""Backbones that need no torch: one that acts on every key, one on few."""

from __future__ import annotations

from astune.backbone.base import Backbone
from astune.config.load import LoadedConfig
from astune.types import RunReport


class Trains(Backbone):
    name = "trains"
    honours = frozenset({"astune"})
    ignored_sections = frozenset({"astune.debug"})

    def run(self, loaded: LoadedConfig) -> RunReport:
        raise AssertionError("the doctor never runs a backbone")


class NoWarmup(Trains):
    name = "no_warmup"
    honours = frozenset(
        {
            "astune.runs_dir",
            "astune.rollout",
            "astune.task_reader",
            "astune.task_judge",
            "astune.trainer.total_steps",
            "astune.trainer.tasks_per_step",
            "astune.trainer.learning_rate",
        }
    )

"""A backbone that does what the command line's tests ask for. It leaves a run folder as a real one does."""

import asyncio
from pathlib import Path

from astune.backbone.base import Backbone
from astune.config.load import LoadedConfig
from astune.errors import TaskError, TrainingError
from astune.support.concurrency import run_and_leave
from astune.types import RunReport


class FakeBackbone(Backbone):
    name = "fake"
    honours = frozenset({"astune.project_name", "astune.rollout", "astune.task_reader", "astune.resume", "astune.seed"})
    ignored_sections = frozenset({"astune.trainer", "astune.rollout.top_k"})

    def run(self, loaded: LoadedConfig) -> RunReport:
        wish = loaded.config.astune.project_name
        if wish == "training_error":
            raise TrainingError("5 updates in a row were skipped")
        if wish == "task_error":
            raise TaskError("train.jsonl:3: not JSON")
        if wish == "bug":
            raise ZeroDivisionError("in the agent")
        if wish == "interrupt":
            raise KeyboardInterrupt
        if wish == "loops":
            asyncio.run(asyncio.sleep(0))
            run_and_leave(asyncio.sleep(0))
        print(f"seed {loaded.config.astune.seed} resume {loaded.config.astune.resume}")
        status = wish if wish in ("interrupted", "failed", "learned_nothing") else "completed"
        summary = {"nothing_learned": "equal rewards: raise the temperature"} if status == "learned_nothing" else {}
        return RunReport(run_dir=Path("no run folder"), steps=3, status=status, summary=summary)


class NoResume(FakeBackbone):
    name = "no_resume"
    honours = FakeBackbone.honours - {"astune.resume"}

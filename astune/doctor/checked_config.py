"""The configuration under check, and what the checks have found out about it so far."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from copy import copy
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from astune.backbone.base import Backbone
from astune.backbone.memory.model_size import ModelSize
from astune.config.load import LoadedConfig
from astune.config.schema import AstuneConfig
from astune.context_tracker.prompt.chat_format import ChatFormat
from astune.doctor.scripted_episode import DryRun
from astune.task_judge.judge_base import Judge
from astune.task_reader.task_reader_base import Split
from astune.tools import ToolServers
from astune.training.held_out import Evaluation
from astune.training.rollout_setup import environment_service
from astune.types import Episode, Task
from astune.workflow.workflow_base import WorkflowFactory
from astune.workspaces.pool import WorkspacePool


class Missing(Exception):
    """A check asks for a part that an earlier check could not make."""


MAKERS: Mapping[str, tuple[str, str]] = {
    "loaded": ("config", "a configuration that loads"),
    "backbone": ("config", "the backbone"),
    "tasks": ("tasks", "the tasks"),
    "evaluations": ("tasks", "the tasks"),
    "examples": ("examples", "the examples"),
    "model_dir": ("model", "the model's folder"),
    "chat_format": ("model", "the model's tokenizer and chat template"),
    "size": ("model", "the size of the model"),
    "servers": ("tools", "servers of tools that start"),
    "workspaces": ("workspace", "a workspace that can be made"),
    "workflow": ("workflow", "a workflow that loads"),
    "judge": ("judge", "a judge that loads"),
    "wording": ("judge", "a judge that knows a right answer"),
    "dry_run": ("dry run", "an episode"),
}
"""The check that makes a part of `CheckedConfig`, and what the part is called."""


def is_service(loaded: LoadedConfig) -> bool:
    """True if the user has set any key of `astune.online`."""
    return any(key.startswith("astune.online.") for key in loaded.set_by_user())


class CheckedConfig:
    """Everything that the checks have made so far: to read a part of `MAKERS` before it is there raises `Missing`.
    `backbones` are the built-in ones by name, as the command line knows them."""

    loaded: LoadedConfig
    backbone: Backbone
    tasks: Mapping[Split, Sequence[Task]]
    evaluations: Sequence[Evaluation]
    examples: int
    """Their number."""
    model_dir: Path
    chat_format: ChatFormat
    size: ModelSize
    servers: ToolServers
    workspaces: WorkspacePool | None
    workflow: WorkflowFactory
    judge: Judge | None
    wording: str
    """The way an answer is written for the judge: a text with `{}`."""
    dry_run: DryRun

    if not TYPE_CHECKING:  # mypy would take any name for a part

        def __getattr__(self, name: str) -> NoReturn:
            """Called for what is not there."""
            if name not in MAKERS:
                raise AttributeError(name)
            maker, what = MAKERS[name]
            raise Missing(f"needs {what}; see '{maker}' above")

    def __init__(
        self,
        conf: Path,
        overrides: Sequence[str] = (),
        *,
        backbone: str | None = None,
        offline: bool = False,
        backbones: Mapping[str, str] | None = None,
    ) -> None:
        self.conf, self.overrides, self.chosen_backbone = conf, tuple(overrides), backbone
        self.offline, self.backbones = offline, dict(backbones or {})
        self.opened = ExitStack()
        """The services that checks have started; `run_checks` ends them."""
        self.begun = False
        """True if the model has been trained before, in an earlier stage."""
        self.sizes: dict[str, ModelSize] = {}
        """Those of models that have a path of their own, by it."""
        self._stages: list[CheckedConfig] = []

    def stages(self) -> list[CheckedConfig]:
        """One for each of `astune.stages`, none without. What a stage has not found out itself is as it is here; it
        knows what it found out before."""
        if "loaded" not in vars(self):
            return []
        if not self._stages:
            self._stages = [copy(self) for _ in self.loaded.stages]
            for number, (stage, loaded) in enumerate(zip(self._stages, self.loaded.stages, strict=True)):
                stage.loaded, stage.begun = loaded, number > 0
        for stage in self._stages:
            for name, value in vars(self).items():
                vars(stage).setdefault(name, value)
        return self._stages

    @property
    def config(self) -> AstuneConfig:
        return self.loaded.config.astune

    @property
    def serves(self) -> bool:
        """True for a file of `astune online`."""
        return is_service(self.loaded)

    @property
    def runs(self) -> bool:
        """True for a file of a run: one of `astune online` need not have what only a run needs."""
        return not self.serves or self.config.rollout.agentscope_learn_protocol is not None

    @property
    def played(self) -> Episode | None:
        """The episode of the dry run; None where there was none."""
        return None if "dry_run" not in vars(self) else self.dry_run.episode

    def start_environment_service(self) -> None:
        """The service that the configuration says to start, until all checks are through."""
        config = self.opened.enter_context(environment_service(self.config))
        self.loaded = replace(self.loaded, config=self.loaded.config.model_copy(update={"astune": config}))

    def where(self, key: str) -> str:
        """`demo.yaml:12: astune.seed`; the file where the key has its default."""
        placed = self.loaded.where(key)
        return placed if placed != key else f"{self.conf}: {key} (default)"

    def place(self, task: Task) -> str:
        """The place where a task was read: `train.jsonl:3`."""
        return task.place or f"task {task.task_id!r}"

    def first_task(self) -> Task:
        """A training task where there are any, else a held-out one; with a reference answer if one has it."""
        tasks = [*chain.from_iterable(self.tasks.values())]
        return next((task for task in tasks if task.answer), tasks[0])

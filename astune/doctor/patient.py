"""The configuration under examination, and what the checks have found out about it so far."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Generic, TypeVar, overload

from astune.backbone.base import Backbone
from astune.config.load import LoadedConfig
from astune.config.schema import AstuneConfig
from astune.context_tracker.prompt.chat_format import ChatFormat
from astune.doctor.dry_run import DryRun
from astune.doctor.model_size import ModelSize
from astune.task_judge.judge_base import Judge
from astune.task_reader.task_reader_base import Split
from astune.training.environment_service import environment_service
from astune.types import Task
from astune.workflow.workflow_base import WorkflowFactory

T = TypeVar("T")


class Missing(Exception):
    """A check asks for a part that an earlier check could not make."""


class Part(Generic[T]):
    """What one check makes and later ones use. Reading it before it is there raises `Missing`."""

    def __init__(self, maker: str, what: str) -> None:
        self._maker, self._what = maker, what

    def __set_name__(self, owner: type[Patient], name: str) -> None:
        self._name = f"_{name}"

    @overload
    def __get__(self, patient: None, owner: type[Patient]) -> Part[T]: ...
    @overload
    def __get__(self, patient: Patient, owner: type[Patient]) -> T: ...
    def __get__(self, patient: Patient | None, owner: type[Patient]) -> T | Part[T]:
        if patient is None:
            return self
        if self._name not in vars(patient):
            raise Missing(f"needs {self._what}; see '{self._maker}' above")
        value: T = vars(patient)[self._name]
        return value

    def __set__(self, patient: Patient, value: T) -> None:
        vars(patient)[self._name] = value


class Patient:
    """`backbones` are the built-in ones by name, as the command line knows them."""

    loaded: Part[LoadedConfig] = Part("config", "a configuration that loads")
    backbone: Part[Backbone] = Part("config", "the backbone")
    tasks: Part[Mapping[Split, Sequence[Task]]] = Part("tasks", "the tasks")
    model_dir: Part[Path] = Part("model", "the model's folder")
    chat_format: Part[ChatFormat] = Part("model", "the model's tokenizer and chat template")
    size: Part[ModelSize] = Part("model", "the size of the model")
    workflow: Part[WorkflowFactory] = Part("workflow", "a workflow that loads")
    judge: Part[Judge | None] = Part("judge", "a judge that loads")
    wording: Part[str] = Part("judge", "a judge that knows a right answer")
    """How an answer is written for the judge: a text with `{}`."""
    dry_run: Part[DryRun] = Part("dry run", "an episode")

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
        """What checks have started and the examination ends."""

    @property
    def config(self) -> AstuneConfig:
        return self.loaded.config.astune

    def start_environment_service(self) -> None:
        """The service that the configuration says to start, until the examination ends."""
        config = self.opened.enter_context(environment_service(self.config))
        self.loaded = replace(self.loaded, config=self.loaded.config.model_copy(update={"astune": config}))

    def where(self, key: str) -> str:
        """`demo.yaml:12: astune.seed`; the file where the key has its default."""
        placed = self.loaded.where(key)
        return placed if placed != key else f"{self.conf}: {key} (default)"

    def place(self, task: Task) -> str:
        """Where a task was read: `train.jsonl:3`."""
        return task.place or f"task {task.task_id!r}"

    def first_task(self) -> Task:
        """A training task where there are any, else a held-out one; with a reference answer if one has it."""
        tasks = [*chain.from_iterable(self.tasks.values())]
        return next((task for task in tasks if task.answer), tasks[0])

"""The parts of a rollout, which all its episodes share."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from astune.clients.chat import ChatClient
from astune.clients.env_service import EnvServiceClient
from astune.config.schema import RolloutConfig
from astune.context_tracker.prompt.chat_format import ChatFormat
from astune.rollout.observer import Observer
from astune.rollout.player import Player
from astune.rollout.quorum import Quorum
from astune.support.short_pauses import short_pauses
from astune.task_judge.judge_base import GroupJudge, Judge
from astune.task_judge.task_judges import TaskJudges
from astune.types import Policy, Task
from astune.workflow.lifetime import lifetime
from astune.workflow.notes import Notes
from astune.workflow.workflow_base import WorkflowFactory


@dataclass(frozen=True)
class RolloutSetup:
    """The parts of a rollout. `judge=None` means that every workflow returns its reward itself."""

    policy: Policy
    chat_format: ChatFormat
    workflow_factory: WorkflowFactory
    judge: Judge | None
    config: RolloutConfig
    """The limits of an episode; `episode_timeout` is the workflow's alone, judging comes on top."""
    judge_timeout: float
    """Seconds the judge may take for one episode, or for a group that it judges at once."""
    auxiliary_models: Mapping[str, ChatClient] = field(default_factory=dict)
    """The models that agents may run on beside the policy, by name."""
    observer: Observer = field(default_factory=Observer)
    task_judges: TaskJudges | None = None
    """The judges that tasks name themselves."""
    notes: Notes = field(default_factory=Notes)
    """Warnings that are given once per run."""
    environments: EnvServiceClient | None = None
    """The service at which tasks with an `env_type` get their instances."""
    environment_params: Mapping[str, Any] = field(default_factory=dict)
    """Sent along when an instance is made."""
    judges_alone: bool = False
    """No attempts are compared, as in an evaluation: what one gets does not depend on the others."""

    quorum: Quorum | None = None
    """Of the attempts at all tasks of a step; those that come late are cut off. None: all are waited for."""

    player: Player | None = None
    """Plays the attempts in other processes; None: this one does."""

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """Episodes are played within it: the workflow is set up, here or wherever they are. Raises SetupError."""
        async with lifetime(self.workflow_factory) if self.player is None else self.player:
            with short_pauses():
                yield

    def judge_of(self, task: Task) -> Judge | None:
        """The judge that the task names, else the one of the run."""
        own = None if self.task_judges is None else self.task_judges.of(task)
        return own or self.judge

    def group_judge(self, task: Task, n: int) -> GroupJudge | None:
        """The judge that compares `n` attempts at the task; None where each is judged by itself."""
        judge = self.judge_of(task)
        return judge if isinstance(judge, GroupJudge) and n > 1 and not self.judges_alone else None

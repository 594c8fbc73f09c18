"""What an episode has around its agent: the environment of its task, and the workspace in which its tools act."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from astune.errors import EnvServiceError, RolloutError, WorkflowError
from astune.types import Task
from astune.workspaces.box import open_box

if TYPE_CHECKING:
    from astune.clients.env_service import EnvInstance
    from astune.workflow.environment import TaskEnvironment
    from astune.workspaces.pool import Lease
    from astune.workspaces.sandbox import Sandbox


class Surroundings:
    """That part of a `Tuner`."""

    def __init__(self, task: Task, episode_id: str) -> None:
        self.task = task
        self.episode_id = episode_id
        self.instance: EnvInstance | None = None
        """The environment's instance, to be released when the episode ends."""
        self.lease: Lease | None = None
        """The workspace, to be given back when the episode ends."""
        self.no_workspace: EnvServiceError | None = None
        """Why there is none, though one is configured."""
        self._environment: TaskEnvironment | None = None
        self._closed = False

    @property
    def workspace(self) -> Any:
        """The episode's own workspace, an object of AgentScope's: its tools, skills and instructions go into the agent
        as in production.

            workspace = tuner.workspace
            agent = Agent(..., toolkit=Toolkit(tools=await workspace.list_tools()), **training_defaults())

        Raises WorkflowError where none is configured.
        """
        if self.lease is None:
            raise WorkflowError(
                f"task {self.task.task_id!r}: tuner.workspace: there is none: set astune.rollout.workspace.type, as "
                "AstuneSandbox"
            )
        return self.lease.workspace

    @asynccontextmanager
    async def artifacts(self, most_mb: int = 64) -> AsyncIterator[Sandbox]:
        """A fresh sandbox with a copy of the workspace's files, in which the workflow grades what its agent did. What
        still runs in the workspace is ended first.

            async with tuner.artifacts() as box:
                passed = (await box.run(["python3", "-I", "program.py"], stdin=b"4")).stdout == b"8\n"

        Raises WorkflowError where the workspace is no AstuneSandbox, EnvServiceError where it has ended or has more
        files, JudgeError where the box cannot be had: the episode then has no reward, and never 0.
        """
        if self.lease is None or self.lease.sandbox is None:
            raise WorkflowError("tuner.artifacts() needs astune.rollout.workspace.type=AstuneSandbox")
        sandbox = self.lease.sandbox
        async with open_box(await sandbox.pack(most_mb << 20), sandbox.limits) as box:
            yield box

    @property
    def environment(self) -> TaskEnvironment:
        """The environment of a task with an `env_type`, made for this episode and released after it.

            state = await tuner.environment.step("left")

        Raises WorkflowError where there is none.
        """
        if self._environment is None:
            why = (
                "the task has no env_type"
                if self.task.env_type is None
                else f"nothing says where environments of type {self.task.env_type!r} are served: "
                "set astune.task_reader.env_service.env_url or serve"
            )
            raise WorkflowError(f"task {self.task.task_id!r}: tuner.environment: there is none, because {why}")
        return self._environment

    def enter(self, environment: TaskEnvironment) -> None:
        """The episode has its environment, so its task has the question that the environment asks, unless it has one
        of its own."""
        task = self.task
        self._environment = environment
        self.task = replace(task, query=task.query or environment.query, messages=task.messages or environment.messages)

    @property
    def environment_done(self) -> bool:
        """True if the episode has an environment and that is done."""
        return self._environment is not None and self._environment.done

    def use_environment(
        self, url: str, instance_id: str, *, env_type: str | None = None, task_id: str | None = None
    ) -> None:
        """Name the instance that the workflow has created at an environment service itself.

            tuner.use_environment("http://127.0.0.1:8080", instance_id)

        When the workflow has ended, and not failed, the service is asked for the instance's score
        (`Episode.env_score`, which `EnvServiceJudge` makes the reward); however it ended, the service is told to
        release the instance. `env_type` and
        `task_id` are the task's unless given. Raises WorkflowError for a second one, and RolloutError once the episode
        is over.
        """
        from astune.clients.env_service import EnvInstance as Instance

        if self._closed:
            raise RolloutError(f"episode {self.episode_id} is over: it can use no environment any more")
        if self.instance is not None:
            used = f"{self.instance.instance_id!r} at {self.instance.url}"
            raise WorkflowError(f"use_environment({url!r}, {instance_id!r}): the episode has its environment, {used}")
        if not url.startswith(("http://", "https://")) or not instance_id:
            raise WorkflowError(
                f"use_environment({url!r}, {instance_id!r}): expected an address that begins with http:// or https://, "
                "and the id that the service gave the instance"
            )
        self.instance = Instance(url, instance_id, env_type or self.task.env_type, task_id or self.task.task_id)

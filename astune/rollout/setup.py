"""The parts of a rollout that all its episodes share: policy, workflow, judges, limits, and who looks on."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Protocol

from astune.clients.chat import ChatClient
from astune.clients.env_service import EnvServiceClient
from astune.config.schema import RolloutConfig
from astune.config.tools import ToolsConfig
from astune.context_tracker.agent_models import AgentModels
from astune.context_tracker.calls import Source
from astune.context_tracker.prompt.chat_format import ChatFormat
from astune.context_tracker.tracker import ContextTracker
from astune.support.short_pauses import short_pauses
from astune.task_judge.judge_base import GroupJudge, Judge
from astune.task_judge.task_judges import TaskJudges
from astune.tools import ToolServers
from astune.types import Episode, Policy, Sampling, Task
from astune.workflow.lifetime import Lifetime
from astune.workflow.named_texts import NamedTexts
from astune.workflow.notes import Notes
from astune.workflow.workflow_base import WorkflowFactory
from astune.workspaces.pool import WorkspacePool


class Observer:
    """Looks on while episodes run, and may answer in a model's place. By itself it does nothing: override what you
    want to see."""

    def source(self, name: str | None, source: Source) -> Source:
        """The model that answers in place of `source`: of the auxiliary model of that name, or of the policy (None)."""
        return source

    def on_start(self, episode_id: str, task: Task, tracker: ContextTracker, work: Coroutine[Any, Any, object]) -> None:
        """The workflow is about to run; `work` is its coroutine."""

    async def on_judging(self, episode: Episode) -> None:
        """The workflow is done; the verdict comes next, the workflow's own or the judge's."""

    def on_end(self, episode: Episode) -> None:
        """The episode is over. It has its verdict, unless its group is judged at once later; one that was cancelled
        has what it got to."""


PLAYED_AGAIN = "played_again"
"""The figure of an episode that was begun again, as the process in which it was played had died."""


@dataclass(frozen=True)
class Attempt:
    """One attempt at a task, yet to be played."""

    task: Task
    episode_id: str
    seed: int
    sampling: Sampling
    drawn: Mapping[str, str] = field(default_factory=dict)
    """The versions of models that it meets: `AgentModels.drawn`."""
    redrawn: str | None = None
    """The agent whose answers are drawn anew: `AgentModels.redrawn`."""


class Player(Protocol):
    """Plays attempts while it is entered. Entering raises SetupError where no episode could begin."""

    async def __aenter__(self) -> object: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    async def play(self, attempt: Attempt, late: asyncio.Event | None = None) -> Episode:
        """The attempt as `play_episode` gives it, cut off as soon as `late` is set. Whatever keeps it from being played
        is the episode's error; raises TrainingError where that is true of all. Cancelling this cancels the workflow."""

    def hold_calls(self) -> AbstractAsyncContextManager[None]:
        """Hold back the model calls that do not come through this process. Entering waits until those under way have
        ended; new ones wait until the block is left. Attempts go on otherwise."""


class Quorum:
    """Once `part` of `episodes` have ended, the others have `patience` seconds more; then they are `late`.

    quorum = Quorum(128, part=0.9, patience=30.0)
    quorum.count_ended()              # as each episode ends, before it is judged
    await quorum.late.wait()    # whoever plays one: it is cut off
    """

    def __init__(self, episodes: int, part: float, patience: float) -> None:
        self._missing = math.ceil(part * episodes - 1e-9)  # 0.07 of 100 are 7, whatever floats make of it
        self._patience = patience
        self.late = asyncio.Event()

    def count_ended(self) -> None:
        self._missing -= 1
        if self._missing == 0:
            asyncio.get_running_loop().call_later(self._patience, self.late.set)


async def late_before(late: asyncio.Event | None, ended: asyncio.Future[Any]) -> bool:
    """Wait until an episode has ended or is late. True if it is late."""
    if late is None:
        await asyncio.wait({ended})
        return False
    waiting = asyncio.ensure_future(late.wait())
    try:
        await asyncio.wait({ended, waiting}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiting.cancel()
    return not ended.done()


def draw_none(seed: int) -> Mapping[str, str]:
    return {}


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
    models: AgentModels = field(default_factory=AgentModels)
    """The models that the policy has, where these are several, and which agents run on which."""
    draw_versions: Callable[[int], Mapping[str, str]] = draw_none
    """Draws by a seed the versions of models that attempts meet: `AgentModels.drawn`."""
    observer: Observer = field(default_factory=Observer)
    task_judges: TaskJudges | None = None
    """The judges that tasks name themselves."""
    notes: Notes = field(default_factory=Notes)
    """Warnings that are given once per run."""
    texts: NamedTexts = field(default_factory=NamedTexts)
    """The texts that agents ask for by name."""
    environments: EnvServiceClient | None = None
    """The service at which tasks with an `env_type` get their instances."""
    environment_params: Mapping[str, Any] = field(default_factory=dict)
    """Sent along when an instance is made."""
    tools: ToolServers = field(default_factory=lambda: ToolServers(ToolsConfig()))
    """The servers whose tools each episode has."""
    judges_alone: bool = False
    """No attempts are compared, as in an evaluation: what one gets does not depend on the others."""

    quorum: Quorum | None = None
    """The quorum of the attempts at all tasks of a step: late ones are cut off. None: all are waited for."""

    workspaces: WorkspacePool | None = None
    """Lends each attempt the workspace in which its tools act."""

    player: Player | None = None
    """Plays the attempts in other processes; None: this one does."""

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Episodes are played within it: the workflow is set up, here or wherever they are. Raises SetupError."""
        async with self.share() if self.player is None else self.player:
            with short_pauses():
                yield

    @asynccontextmanager
    async def share(self) -> AsyncIterator[None]:
        """Have in this process what episodes share: servers of tools, workspaces, and what the workflow sets up. Raises
        SetupError."""
        async with self.tools, Lifetime(self.workflow_factory), self.workspaces or nullcontext():
            yield

    def judge_of(self, task: Task) -> Judge | None:
        """The judge that the task names, else the one of the run."""
        own = None if self.task_judges is None else self.task_judges.of(task)
        return own or self.judge

    def group_judge(self, task: Task, n: int) -> GroupJudge | None:
        """The judge that compares `n` attempts at the task; None where each is judged by itself."""
        judge = self.judge_of(task)
        return judge if isinstance(judge, GroupJudge) and n > 1 and not self.judges_alone else None

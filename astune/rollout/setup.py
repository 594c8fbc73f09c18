"""What all episodes of a run have in common."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from astune.clients.chat import ChatClient
from astune.context_tracker.chat_format import ChatFormat
from astune.task_judge.judge_base import Judge
from astune.types import Policy
from astune.workflow.workflow_base import WorkflowFactory


@dataclass(frozen=True)
class RolloutSetup:
    """The parts of a rollout. `judge=None` means that every workflow returns its reward itself."""

    policy: Policy
    chat_format: ChatFormat
    workflow_factory: WorkflowFactory
    judge: Judge | None
    max_turns: int
    episode_timeout: float
    """Seconds the workflow may take; judging comes on top."""
    judge_timeout: float
    """Seconds the judge may take for one episode."""
    max_episode_tokens: int | None = None
    """Most tokens that all calls of an episode together may sample; None is no limit."""
    clients: Mapping[str, ChatClient] = field(default_factory=dict)
    """The models of `astune.rollout.auxiliary_models`."""
    allow_inexact: bool = False
    """Whether turns are trained whose token ids were made from text."""

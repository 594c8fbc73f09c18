"""What all episodes of a run have in common."""

from __future__ import annotations

from dataclasses import dataclass

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
    max_episode_tokens: int | None
    """Most tokens that all calls of an episode together may sample; None is no limit."""
    episode_timeout: float
    """Seconds the workflow may take; judging comes on top."""
    judge_timeout: float
    """Seconds the judge may take for one episode."""

from collections.abc import Callable
from typing import Any

import pytest

from astune.config.judges import TaskJudgeConfig
from astune.task_judge import MathAnswerAsJudge
from astune.types import Episode, StopReason, Task, WorkflowOutput

MakeEpisode = Callable[..., Episode]


@pytest.fixture(scope="session")
def make_episode() -> MakeEpisode:
    """`make_episode("72", "72")`: an episode whose workflow returned "72"."""

    def make(
        answer: Any = None, reference: str | None = None, stop: StopReason = StopReason.COMPLETED, /, **metadata: Any
    ) -> Episode:
        task = Task("task-1", "What is 6 * 12?", answer=reference, metadata=metadata)
        output = WorkflowOutput(answer=answer) if stop is StopReason.COMPLETED else None
        return Episode("episode-1", task, (), (), stop, output)

    return make


@pytest.fixture(scope="session")
def judge() -> MathAnswerAsJudge:
    return MathAnswerAsJudge(TaskJudgeConfig())

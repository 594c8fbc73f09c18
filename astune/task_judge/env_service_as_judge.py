"""`EnvServiceJudge`: what the environment itself says of an episode."""

from __future__ import annotations

from astune.config.judges import TaskJudgeConfig
from astune.errors import JudgeError
from astune.task_judge.judge_base import check_verdict
from astune.types import Episode, Task, Verdict

NAME = "EnvServiceJudge"


class EnvServiceJudge:
    """The reward is the score of the episode's environment as it is; an episode has passed from a score of 1.

        tuner.use_environment("http://127.0.0.1:8080", instance_id)     # in the workflow

    The score was asked for when the workflow ended and stands in the episode, so recorded episodes can be judged too.
    Raises `JudgeError` for an episode without a score.
    """

    def __init__(self, config: TaskJudgeConfig) -> None:
        pass

    async def judge(self, task: Task, episode: Episode) -> Verdict:
        score = episode.env_score
        if score is None:
            why = episode.env_error or "the workflow never named its environment with tuner.use_environment(url, id)"
            raise JudgeError(f"task {task.task_id!r}: no score of an environment: {why}")
        return check_verdict(Verdict(score, score >= 1, f"the environment gave {score:g}", judged_by=NAME), NAME)

"""`EnvServiceJudge`: the reward is the score that the environment itself gives."""

from __future__ import annotations

from astune.config.judges import TaskJudgeConfig
from astune.errors import JudgeError
from astune.task_judge.judge_base import check_verdict
from astune.types import Episode, Task, Verdict

NAME = "EnvServiceJudge"


class EnvServiceJudge:
    """The reward is the score of the episode's environment as it is; an episode has passed from a score of 1.

        astune.task_judge.judge_protocol: EnvServiceJudge

    The environment is the one that a task with an `env_type` gets, or the one that the workflow has made itself and
    named with `tuner.use_environment`. The score was asked for when the workflow ended and stands in the episode, so
    recorded episodes can be judged too.
    Raises `JudgeError` for an episode without a score.
    """

    def __init__(self, config: TaskJudgeConfig) -> None:
        pass

    async def judge(self, task: Task, episode: Episode) -> Verdict:
        score = episode.env_score
        if score is None:
            why = episode.env_error or (
                "the task has no env_type, for which a service would make one (astune.task_reader.env_service), and "
                "the workflow never named one of its own with tuner.use_environment(url, id)"
            )
            raise JudgeError(f"task {task.task_id!r}: no score of an environment: {why}")
        return check_verdict(Verdict(score, score >= 1, f"the environment gave {score:g}", judged_by=NAME), NAME)

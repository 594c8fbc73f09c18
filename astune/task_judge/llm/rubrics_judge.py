"""`RubricsAsJudge`: answers scored by the criteria of a rubric file.

judge_protocol: RubricsAsJudge
rubrics: {file: rubrics.yaml}
llm: {models: [{base_url: "http://127.0.0.1:8000/v1", model: "Qwen3-32B"}]}
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from astune.config.judges import TaskJudgeConfig
from astune.errors import ConfigError, JudgeError
from astune.task_judge.llm.judge import LlmJudge
from astune.task_judge.llm.pointwise import pointwise
from astune.task_judge.llm.rubric import Rubric, load_rubric
from astune.task_judge.llm.scoring import AttemptScore, JudgeJob
from astune.task_judge.llm.shown_attempt import ShownAttempt

KEY = "astune.task_judge.rubrics.file"


class RubricsAsJudge(LlmJudge):
    """The reward is the weighted mean of where the scores stand on their scales; each score is a metric.

    The file is read once and never written: to a run the rubric is fixed, and `judged_by` names it with its digest.
    Raises ConfigError for a file that is no rubric, and where there is none.
    """

    def __init__(self, config: TaskJudgeConfig) -> None:
        key = f"{config.rubrics.file}: criteria"
        rubric = _rubric(config)
        super().__init__(config, rubric, pass_at=config.rubrics.pass_at or rubric.pass_at, key=key)

    async def scores(self, job: JudgeJob, attempts: Sequence[ShownAttempt]) -> Sequence[AttemptScore | JudgeError]:
        return await pointwise(job, attempts)

    def describe_judge(self, model: str) -> str:
        return f"RubricsAsJudge({self.rubric.name}@{self.rubric.digest[:8]}, {model})"


def _rubric(config: TaskJudgeConfig) -> Rubric:
    if config.rubrics.file is None:
        raise ConfigError(
            f"{KEY} is not set: RubricsAsJudge judges by a rubric file, as `astune rubrics` learns one from examples"
        )
    return load_rubric(Path(config.rubrics.file))

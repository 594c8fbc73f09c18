"""`LlmAsJudge`: answers judged by other models, each by itself, in pairs, or ranked; `RubricsAsJudge`: by the criteria
of a rubric file.

judge_protocol: RubricsAsJudge
rubrics: {file: rubrics.yaml}
llm: {models: [{base_url: "http://127.0.0.1:8000/v1", model: "Qwen3-32B"}]}
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path

from pydantic import ValidationError

from astune.clients.chat_models import ChatModels
from astune.config.judges import CriterionConfig, LlmJudgeConfig, TaskJudgeConfig
from astune.errors import ConfigError, JudgeError, PolicyError
from astune.task_judge.judge_base import judge_alone
from astune.task_judge.llm.listwise import listwise
from astune.task_judge.llm.pairwise import against_reference, pairwise
from astune.task_judge.llm.pointwise import pointwise
from astune.task_judge.llm.rubric import Criterion, Rubric, load_rubric
from astune.task_judge.llm.scoring import AttemptScore, JudgeJob
from astune.task_judge.llm.shown_attempt import ShownAttempt, show_attempt, show_task
from astune.types import Episode, Task, Verdict

NAME = "LlmAsJudge"
CORRECT = CriterionConfig(
    text="The final answer is right: it agrees with the reference answer where there is one, and answers the task.",
    min=0,
    max=1,
)
"""The only criterion where `astune.task_judge.llm.criteria` names none."""
TAKEN = ("total", "vote_spread", "llm_calls", "llm_cached", "llm_prompt_tokens", "llm_completion_tokens", "llm_cost")
"""Metrics of the judge itself, whose names no criterion may have."""


class LlmJudge(ABC):
    """Judges a group by one model: the first of `astune.task_judge.llm.models` that answers every question about it.

    If a model fails on one attempt, all of the group are judged by the next, so that rewards which are compared have
    the same measure; `judged_by` says which it was. An attempt without an answer is judged without a call.
    """

    def __init__(self, config: TaskJudgeConfig, rubric: Rubric, *, pass_at: float, key: str) -> None:
        """`key` is what names the criteria in an error. Raises ConfigError without models."""
        for criterion in rubric.criteria:
            if criterion.id in TAKEN:
                raise ConfigError(f"{key}: {criterion.id!r} is the name of another metric, give the criterion another")
        self.models = ChatModels(config.llm)
        self._config = config
        self.rubric = rubric
        self._pass_at = pass_at

    async def judge(self, task: Task, episode: Episode) -> Verdict:
        """Raises JudgeError where no model answers, or a reply cannot be used."""
        return await judge_alone(self, task, episode)

    async def judge_group(self, task: Task, episodes: Sequence[Episode]) -> Sequence[Verdict | Exception]:
        seen = [self._show_attempt(task, episode) for episode in episodes]
        attempts = [shown for shown in seen if isinstance(shown, ShownAttempt)]
        verdicts = iter(await self._by_one_model(task, attempts) if attempts else [])
        return [next(verdicts) if isinstance(shown, ShownAttempt) else shown for shown in seen]

    @abstractmethod
    async def scores(self, job: JudgeJob, attempts: Sequence[ShownAttempt]) -> Sequence[AttemptScore | JudgeError]:
        """The score that `job.model` gives each attempt. Raises PolicyError if it does not answer, and JudgeError where
        nothing can be said of any."""

    @abstractmethod
    def describe_judge(self, model: str) -> str:
        """Name this judge for `Verdict.judged_by`, with the `model` that was asked."""

    def passes(self, reward: float, attempts: int) -> bool | None:
        """True if an attempt that got `reward` counts as a success."""
        return reward >= self._pass_at

    def _show_attempt(self, task: Task, episode: Episode) -> ShownAttempt | JudgeError:
        try:
            return show_attempt(task, episode, self._config)
        except JudgeError as error:
            return error

    async def _by_one_model(self, task: Task, attempts: Sequence[ShownAttempt]) -> list[Verdict | Exception]:
        said = []
        for model in self.models.in_order():
            try:
                scores = await self.scores(self._job(task, model), attempts)
            except PolicyError as error:
                said.append(str(error))
                continue
            return [self._verdict(task, score, model, len(attempts)) for score in scores]
        raise JudgeError(f"task {task.task_id!r}: no model judges it: {'; '.join(said)}")

    def _job(self, task: Task, model: str) -> JudgeJob:
        llm = self._config.llm
        return JudgeJob(
            query=show_task(task),
            reference=task.answer,
            rubric=self.rubric,
            instructions=llm.instructions,
            votes=llm.votes,
            models=self.models,
            model=model,
        )

    def _verdict(self, task: Task, score: AttemptScore | JudgeError, model: str, attempts: int) -> Verdict | JudgeError:
        if isinstance(score, JudgeError):
            return JudgeError(f"task {task.task_id!r}: {score}")
        passed = self.passes(score.reward, attempts)
        undecided = passed is not None and self._split(score.votes)
        return Verdict(
            reward=score.reward,
            passed=None if undecided else passed,
            reason=score.reason,
            metrics={**score.metrics, **score.usage},
            judged_by=self.describe_judge(model),
            undecided=undecided,
        )

    def _split(self, votes: Sequence[float] | None) -> bool:
        """True if as many votes say that the attempt passes as say that it fails, also if none of them could tell."""
        return votes is not None and 2 * sum(vote >= self._pass_at for vote in votes) == len(votes)


class LlmAsJudge(LlmJudge):
    """Rewards from 0 to 1 by `astune.task_judge.llm`.

    - `pointwise`: each attempt by the criteria; the reward is the weighted mean of where its scores stand on their
      scales, each score a metric.
    - `pairwise`, `listwise`: the share of the other attempts that an attempt beats, ties half. Such rewards say which
      attempt is better, not whether any is good: `passed` is None. A lone attempt is compared with the reference
      answer.

    The reference answer is shown where there is one: a judge is weak at questions that it cannot answer itself
    (arXiv 2503.05061).
    """

    def __init__(self, config: TaskJudgeConfig) -> None:
        key = "astune.task_judge.llm.criteria"
        super().__init__(config, _rubric(config.llm, key), pass_at=config.llm.pass_at, key=key)

    async def scores(self, job: JudgeJob, attempts: Sequence[ShownAttempt]) -> Sequence[AttemptScore | JudgeError]:
        llm = self._config.llm
        if llm.mode == "pointwise":
            return await pointwise(job, attempts)
        if len(attempts) == 1:
            return [await against_reference(job, attempts[0])]
        if llm.mode == "pairwise":
            return await pairwise(job, attempts, llm.max_opponents)
        return await listwise(job, attempts)

    def describe_judge(self, model: str) -> str:
        return f"{NAME}({model})"

    def passes(self, reward: float, attempts: int) -> bool | None:
        absolute = self._config.llm.mode == "pointwise" or attempts == 1
        return super().passes(reward, attempts) if absolute else None


def _rubric(llm: LlmJudgeConfig, key: str) -> Rubric:
    """The criteria of the configuration as a rubric."""
    criteria = []
    for name, given in (llm.criteria or {"correct": CORRECT}).items():
        scale = "binary" if (given.min, given.max) == (0, 1) else "scaled"
        values = {"id": name, "text": given.text, "weight": given.weight, "min": given.min, "max": given.max}
        try:
            criteria.append(Criterion.model_validate({**values, "scale": scale}))
        except ValidationError as error:
            raise ConfigError(f"{key}.{name}: expected a name in one line without '|'") from error
    return Rubric(name=NAME, criteria=tuple(criteria))


class RubricsAsJudge(LlmJudge):
    """The reward is the weighted mean of where the scores stand on their scales; each score is a metric.

    The file is read once and never written: to a run the rubric is fixed, and `judged_by` names it with its digest.
    Raises ConfigError for a file that is no rubric, and where there is none.
    """

    def __init__(self, config: TaskJudgeConfig) -> None:
        if config.rubrics.file is None:
            raise ConfigError(
                "astune.task_judge.rubrics.file is not set: RubricsAsJudge judges by a rubric file, as `astune "
                "rubrics` learns one from examples"
            )
        rubric, key = load_rubric(Path(config.rubrics.file)), f"{config.rubrics.file}: criteria"
        super().__init__(config, rubric, pass_at=config.rubrics.pass_at or rubric.pass_at, key=key)

    async def scores(self, job: JudgeJob, attempts: Sequence[ShownAttempt]) -> Sequence[AttemptScore | JudgeError]:
        return await pointwise(job, attempts)

    def describe_judge(self, model: str) -> str:
        return f"RubricsAsJudge({self.rubric.name}@{self.rubric.digest[:8]}, {model})"

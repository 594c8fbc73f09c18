"""The sections `astune.task_judge` and `astune.rubrics`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import (
    Field,
    GetJsonSchemaHandler,
    PositiveFloat,
    PositiveInt,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from astune.config.chat_models import AskedModelsConfig
from astune.config.section import Located, OnTrinity, Section, fate

SECONDS, SECONDS_WITH_MODELS = 10.0, 300.0
"""Seconds of `astune.task_judge.timeout` where it is not set."""


class CriterionConfig(Section):
    """One thing that an LLM judge scores. Written as a text alone, it is on the scale from 0 to 5."""

    text: str = Field(min_length=1, description="what earns the highest score")
    min: int = Field(0, description="lowest score")
    max: int = Field(5, description="highest score")
    weight: PositiveFloat = Field(1.0, description="how much it counts among the criteria")

    @model_validator(mode="before")
    @classmethod
    def _a_text_alone(cls, value: Any) -> Any:
        if isinstance(value, Mapping) and not {"text"} <= set(value) <= set(cls.model_fields):
            raise ValueError(f"a text, or a section with text and any of {', '.join([*cls.model_fields][1:])}")
        return {"text": value} if isinstance(value, str) else value

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {"anyOf": [{"type": "string"}, handler.resolve_ref_schema(handler(core))]}

    @model_validator(mode="after")
    def _has_a_scale(self) -> CriterionConfig:
        if self.min >= self.max:
            raise ValueError(f"min below max, got min {self.min} and max {self.max}")
        return self


class LlmJudgeConfig(AskedModelsConfig):
    mode: Literal["pointwise", "pairwise", "listwise"] = Field(
        "pointwise",
        description="pointwise: each attempt by criteria; pairwise: each against others, in both orders; listwise: all "
        "attempts at a task ranked in one call",
    )
    criteria: dict[str, CriterionConfig] = Field(
        default_factory=dict,
        description="what counts, by name: a text, or {text, min, max, weight}; empty: whether the answer is right",
    )
    instructions: str = Field("", description="what the judge should know of the agent's job")
    shown: Literal["answer", "transcript"] = Field(
        "answer", description="what the judge sees: the final answer, or all that the agents said and did"
    )
    votes: PositiveInt = Field(1, description="replies to each question, whose mean counts; set a temperature with it")
    max_opponents: PositiveInt | None = Field(
        None, description="pairwise: others that each attempt is compared with; null: all of its group"
    )
    pass_at: float = Field(0.5, gt=0.0, le=1.0, description="reward from which an episode counts as a success")


class RubricsJudgeConfig(Section):
    file: Annotated[str | None, Located("file")] = Field(
        None, description="rubric that RubricsAsJudge judges by, as `astune rubrics` writes one"
    )
    pass_at: float | None = Field(
        None, gt=0.0, le=1.0, description="reward from which an episode counts as a success; null: as the file says"
    )


class ToolUseJudgeConfig(Section):
    correct_tool: float = Field(1.0, description="for the share of expected tools that were called")
    correct_args: float = Field(0.5, description="for the share of expected calls whose arguments are right")
    tool_success: float = Field(1.0, description="for the share of calls that succeeded")
    invalid_tool: float = Field(-2.0, description="for the share of calls that no tool could take")
    correctness: float = Field(3.0, description="for a right final answer, where the task has a reference answer")
    steps_penalty: float = Field(
        -0.1,
        description="for each model call more than the task takes: its expected_steps, or 1 and 1 per expected tool",
    )
    format_bonus: float = Field(0.5, description="for a final answer in astune.task_judge.answer_format")


class WeightedJudgeConfig(Section):
    """One of several judges."""

    judge: str = Field(min_length=1, description="as judge_protocol names it")
    weight: float = Field(1.0, description="what its reward is multiplied by")


def _read_judge(entry: Any) -> WeightedJudgeConfig:
    """Raises ValueError in words that fit behind "expected"."""
    if isinstance(entry, WeightedJudgeConfig):
        return entry
    known = [*WeightedJudgeConfig.model_fields]
    if not isinstance(entry, Mapping) or "judge" not in entry or not set(entry) <= set(known):
        raise ValueError(f"a list of {{judge, weight}}, of which {entry!r} is none")
    try:
        return WeightedJudgeConfig.model_validate(entry)
    except ValidationError as error:
        raise ValueError(f"a list of {{judge: name, weight: number}}, of which {entry!r} is none") from error


class TaskJudgeConfig(Section):
    judge_protocol: Annotated[str | tuple[WeightedJudgeConfig, ...] | None, Located("plugin")] = Field(
        None,
        description="a judge that ships (MathAnswerAsJudge, LlmAsJudge, ...), 'package.module:Name', or a list of "
        "{judge, weight}; null: the workflow returns the reward itself",
    )
    scorers: Annotated[dict[str, str], Located("plugin")] = Field(
        default_factory=dict, description="judges that tasks with a field `scorer` name, beside those that ship"
    )
    answer_format: Literal["auto", "boxed", "answer_tag", "hashes", "the_answer_is", "plain", "last_number"] = Field(
        "auto",
        description="where judges of short answers find them; auto: boxed, tag, ####, 'the answer is', whole text; "
        "last_number, which is a guess, only where it is asked for",
    )
    must_be_evaluated: bool = Field(
        True,
        description="whether the math judges refuse an equal formula that leaves an operation to do which the "
        "reference does not (an integral, a sum, a binomial, a gcd), or that only repeats the question",
    )
    timeout: PositiveFloat | None = Field(
        None,
        description="seconds a judge may take for an episode, or for a group that it judges at once; null: 10, or 300 "
        "with llm.models",
        json_schema_extra=fate(
            OnTrinity(
                to={
                    "explorer.max_timeout": "task_timeout",
                    "synchronizer.sync_timeout": "wait_timeout",
                    "buffer.trainer_input.experience_buffer.max_read_timeout": "wait_timeout",
                },
                ours="the workflow inside Trinity's runners calls the judge",
            )
        ),
    )
    llm: LlmJudgeConfig = Field(default_factory=LlmJudgeConfig, description="used by judges that ask other models")
    rubrics: RubricsJudgeConfig = Field(default_factory=RubricsJudgeConfig, description="used by RubricsAsJudge")
    tool_use: ToolUseJudgeConfig = Field(
        default_factory=ToolUseJudgeConfig, description="used by ToolUseJudge: what each part is worth"
    )

    @field_validator("judge_protocol", mode="before")
    @classmethod
    def _is_a_name_or_a_list(cls, value: Any) -> Any:
        if value is None or isinstance(value, str):
            return value
        if not isinstance(value, list | tuple) or not value:
            raise ValueError("the name of a judge, or a list of {judge, weight}")
        return tuple(_read_judge(entry) for entry in value)

    @property
    def judges(self) -> tuple[WeightedJudgeConfig, ...]:
        """The judges that `judge_protocol` names: none, one of weight 1, or several."""
        if isinstance(self.judge_protocol, tuple):
            return self.judge_protocol
        return () if self.judge_protocol is None else (WeightedJudgeConfig(judge=self.judge_protocol),)

    @property
    def seconds(self) -> float:
        """`timeout`, or what it is where it is not set."""
        return self.timeout or (SECONDS_WITH_MODELS if self.llm.models else SECONDS)


class RubricsConfig(Section):
    examples: Annotated[str | None, Located("file")] = Field(
        None, description="JSON Lines file of answers that are scored, paired or ranked"
    )
    out: Annotated[str | None, Located("file")] = Field(
        None, description="rubric to write; null: rubrics.yaml in the working directory"
    )
    scale: Literal["binary", "scaled"] = Field("binary", description="criteria are met or not, or scored from 0 to 4")
    rounds: PositiveInt = Field(3, description="most rounds of revising what judged an example wrongly")
    patience: PositiveInt = Field(2, description="rounds without gain on the dev examples before it stops")
    max_criteria: PositiveInt = Field(8, description="most criteria of the rubric")
    max_calls: PositiveInt | None = Field(2000, description="most model calls, those from the cache not counted")
    max_cost: PositiveFloat | None = Field(
        None, description="most money, in the currency of the prices; null: no limit"
    )

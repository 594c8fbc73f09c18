"""The sections that describe chat APIs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import (
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    field_validator,
    model_validator,
)

from astune.config.section import Section


class ApiConfig(Section):
    """An OpenAI-compatible API."""

    base_url: str = Field(description="of an OpenAI-compatible API, usually ending in /v1")
    model: str = Field(description="the model's name there")
    api_key_env: str | None = Field(None, description="environment variable that holds the API key; null: none needed")
    timeout: PositiveFloat = Field(120.0, description="seconds an attempt at a call may take, to the last byte")
    max_retries: NonNegativeInt = Field(3, description="attempts after the first where the API is busy or unreachable")

    @model_validator(mode="before")
    @classmethod
    def _names_are_known(cls, value: Any) -> Any:
        if isinstance(value, cls):
            return value
        if not isinstance(value, Mapping):
            raise ValueError("a section with base_url and model")
        wrong = [f"no {name}" for name in ("base_url", "model") if name not in value]
        wrong += [f"unknown key {name!r}" for name in value if name not in cls.model_fields]
        if wrong:
            raise ValueError(f"base_url, model and any of {', '.join([*cls.model_fields][2:])} ({'; '.join(wrong)})")
        return value

    @field_validator("base_url")
    @classmethod
    def _is_an_address(cls, value: str) -> str:
        if not value.startswith(("http://", "https://")):
            raise ValueError("an address that begins with http:// or https://")
        return value


class ChatModelConfig(ApiConfig):
    """A chat API."""

    limit_field: Literal["max_tokens", "max_completion_tokens"] = Field(
        "max_tokens", description="what the API calls the most tokens of an answer; OpenAI's: max_completion_tokens"
    )


class TeacherConfig(ApiConfig):
    """An API that returns log-probabilities of token ids: vLLM's completions with `prompt_logprobs`."""

    max_concurrent: PositiveInt = Field(16, description="requests under way at the same time")


class PricedModelConfig(ChatModelConfig):
    """A chat API whose answers have a price."""

    prompt_price: NonNegativeFloat | None = Field(
        None, description="price of a million prompt tokens, in any currency; null: not known"
    )
    completion_price: NonNegativeFloat | None = Field(
        None, description="price of a million tokens of answers, in the same currency; null: not known"
    )


class AuxiliaryModelConfig(PricedModelConfig):
    """A chat API that agents of the workflow may run on: `tuner.model("critic", source="<its name>")`; and that
    `astune eval --models` may play the tasks with, in the place of the model that is trained."""

    trainable: bool = Field(False, description="it serves the very model that is trained, and its turns are trained")


class JudgeModelConfig(PricedModelConfig):
    """A chat API that judges, or that proposes rubrics."""

    requests_per_minute: PositiveFloat | None = Field(None, description="most requests in a minute; null: no limit")
    response_format: Literal["none", "json_object", "json_schema"] = Field(
        "none", description="how the API is asked for JSON beyond the prompt, if it can"
    )


class AskedModelsConfig(Section):
    """Chat APIs that are asked in order, and how."""

    models: tuple[JudgeModelConfig, ...] = Field(
        (), description="chat APIs, the next where one fails: [{base_url, model, ...}]"
    )
    temperature: NonNegativeFloat = Field(0.0, description="of the judge's replies")
    max_tokens: PositiveInt = Field(2048, description="most tokens of a reply")
    max_concurrent: PositiveInt = Field(16, description="calls under way at the same time")
    cache: str | None = Field(
        "runs/judge_replies.sqlite",
        description="file that keeps replies, so that none is paid twice, from the working directory; null: none",
    )

"""`astune.evaluation`: when held-out tasks are played, which, and how often."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import Field, NonNegativeInt, PositiveInt, field_validator

from astune.config.section import Located, Section

NAME = "[A-Za-z0-9][A-Za-z0-9_-]{0,63}"
"""Of a set of held-out tasks: it stands in names of metrics and of files."""


class HeldOutSetConfig(Section):
    file_path: Annotated[str | None, Located("file")] = Field(
        None, description="file of tasks, as astune.task_reader.jsonl takes one; null: where the held-out tasks are"
    )
    split: str | None = Field(None, description="with task_reader.type huggingface or env_service: its held-out split")
    filter: str | None = Field(None, description="which rows, as astune.task_reader.filter; null: all")
    max_tasks: PositiveInt | None = Field(None, description="the first so many; null: all")
    every: NonNegativeInt | None = Field(None, description="in place of astune.evaluation.every; null: that")


class EvaluationConfig(Section):
    before: bool = Field(True, description="evaluate on the held-out tasks before the first step")
    after: bool = Field(True, description="evaluate after the last step")
    every: NonNegativeInt = Field(0, description="steps between evaluations; 0: none in between")
    decoding: tuple[Literal["sampled", "greedy"], ...] = Field(
        ("sampled", "greedy"), description="sampled: at rollout.temperature; greedy: at 0"
    )
    attempts: PositiveInt = Field(
        1, description="sampled attempts at each held-out task, for pass@k; greedy decoding makes one"
    )
    sets: dict[str, HeldOutSetConfig] = Field(
        default_factory=dict,
        description="more sets of held-out tasks by name, as {hard: {file_path: hard.jsonl}}; keys of each: file_path, "
        "split, filter, max_tasks, every",
    )

    @field_validator("sets")
    @classmethod
    def _named_as_files_are(cls, sets: dict[str, HeldOutSetConfig]) -> dict[str, HeldOutSetConfig]:
        if wrong := [name for name in sets if not re.fullmatch(NAME, name)]:
            raise ValueError(f"names of letters, digits, - and _, and {wrong[0]!r} is none")
        return sets

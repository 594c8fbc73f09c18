"""The section `astune.prompts`."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt

from astune.config.chat_models import AskedModelsConfig
from astune.config.section import (
    LOOP,
    RUNNERS,
    FromKey,
    Located,
    OnTrinity,
    OnVerl,
    OptionalPlugin,
    Plugin,
    Section,
    add_from,
    fate,
)

IN_USE = fate(OnTrinity(ours=RUNNERS, methods=("rl",)), OnVerl(ours=LOOP))


class ReflectionConfig(AskedModelsConfig):
    temperature: NonNegativeFloat = Field(1.0, description="of the replies")
    cache: str | None = Field(
        "runs/reflections.sqlite",
        description="file that keeps replies, so that none is paid twice, from the working directory; null: none",
    )


@add_from("prompts.yaml of a search, or the folder of its run: the texts that agents get", IN_USE)
class PromptsConfig(Section, FromKey):
    texts: dict[str, str] = Field(
        default_factory=dict,
        description="the first text of each name, written here: {system: You are a cashier.}",
        json_schema_extra=IN_USE,
    )
    files: Annotated[dict[str, str], Located("file")] = Field(
        default_factory=dict,
        description="the first text of each name, as a file: {system: prompts/system.md}",
        json_schema_extra=IN_USE,
    )
    tune: tuple[str, ...] = Field(
        (),
        description="names of the texts to search for, as [system, 'tool:search', 'skill:billing']; empty: all that "
        "the workflow asks for by name",
    )
    method: Plugin = Field("gepa", description="how it searches: 'gepa', or a class of your own, 'my_method.py:Search'")
    reflection: ReflectionConfig = Field(
        default_factory=ReflectionConfig, description="the models that write new texts from what the agent did"
    )
    reflector: OptionalPlugin = Field(
        None, description="a function of your own in the place of these models, 'my_file.py:reflect'"
    )
    holdout: float | None = Field(
        0.33,
        gt=0.0,
        lt=1.0,
        description="share of the training tasks that the search never sees, for the test; null: the test is on the "
        "held-out tasks of astune.task_reader",
    )
    attempts: PositiveInt = Field(2, description="attempts of each candidate at each task, a group")
    batch: PositiveInt = Field(
        3, description="tasks that one reflection looks at, and a new candidate is tried on first"
    )
    rounds: PositiveInt = Field(20, description="most rounds: a reflection and what is tried of it")
    patience: PositiveInt = Field(8, description="rounds in a row without a candidate that is kept before it stops")
    max_episodes: PositiveInt | None = Field(2000, description="most episodes of the search, without the test")
    max_calls: PositiveInt | None = Field(200, description="most calls of the models that reflect")
    max_cost: PositiveFloat | None = Field(
        None, description="most money of the search, in the currency of the prices; null: no limit"
    )
    out: Annotated[str | None, Located("file")] = Field(
        None, description="YAML that gets the best texts besides; null: prompts.yaml in the folder of the run alone"
    )

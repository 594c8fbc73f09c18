"""The configuration: one typed tree. Every key, its type, its default and its one-line meaning stand here once;
`default_config/default.yaml` is written from this file and a test keeps the two equal.

An unknown key, a wrong type or a combination that cannot work is a `ConfigError` (see `astune.config.load`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field, NonNegativeInt, PositiveInt, field_validator

from astune.config.algorithm import AlgorithmConfig as AlgorithmConfig
from astune.config.chat_models import AuxiliaryModelConfig
from astune.config.evaluation import NAME
from astune.config.evaluation import EvaluationConfig as EvaluationConfig
from astune.config.judges import (
    RubricsConfig,
    TaskJudgeConfig,
)
from astune.config.model import LoraConfig as LoraConfig
from astune.config.model import ModelConfig as ModelConfig
from astune.config.model import NamedModelConfig as NamedModelConfig
from astune.config.monitor import MonitorConfig as MonitorConfig
from astune.config.online import OnlineConfig as OnlineConfig
from astune.config.prompts import PromptsConfig as PromptsConfig
from astune.config.rollout import RolloutConfig as RolloutConfig
from astune.config.rollout import SynchronizerConfig as SynchronizerConfig
from astune.config.section import (
    LOOP,
    READER,
    RUNNERS,
    STARTED,
    Located,
    OnTrinity,
    OnVerl,
    Plugin,
    Section,
    fate,
)
from astune.config.tasks import TaskReaderConfig
from astune.config.tools import ToolsConfig
from astune.config.trainer import TrainerConfig as TrainerConfig


class DebugConfig(Section):
    model: Annotated[str | None, Located("model")] = Field(
        None,
        pattern=r"^(human|endpoints|scripted:.+|replay:.+|https?://.+)$",
        description="what answers: 'human', 'scripted:FILE', 'replay:FILE', 'endpoints' or an address; null: "
        "astune.model; --model sets it",
    )
    endpoints: tuple[AuxiliaryModelConfig, ...] = Field(
        (), description="chat APIs for model 'endpoints', the next where one fails: [{base_url, model, ...}]"
    )
    split: Literal["training", "validation"] = Field("training", description="where the tasks come from; --split")
    tasks: tuple[str, ...] = Field((), description="ids of the tasks to run; empty: the first num_tasks; --task")
    index: NonNegativeInt = Field(0, description="number of the first task, from 0; --index")
    num_tasks: PositiveInt = Field(1, description="tasks to run; --limit")
    num_repeat: PositiveInt = Field(1, description="attempts at each, a group; --repeat")
    filter: str | None = Field(
        None, description="with model replay: which episodes, as 'reward<0.5' or 'error=judge'; null: all; --filter"
    )
    step: bool = Field(False, description="stop at every model call, tool result and verdict; --step")
    commands: Annotated[str | None, Located("file")] = Field(
        None, description="file of commands for the stops, one in a line; --commands"
    )
    with_update: bool = Field(
        False, description="show what one optimizer step would change, with a local model; --with-update"
    )
    studio_url: str | None = Field(
        None, pattern=r"^https?://.+", description="address of AgentScope Studio, which then shows the messages"
    )


@dataclass(frozen=True)
class Traits:
    """Facts that the rules about a configuration have to know of a backbone."""

    trains: bool = True
    """False of the debugger, which plays a few episodes and updates nothing."""
    own_loop: bool = True
    """False where another program's loop trains. It refuses keys itself, each with its reason."""
    own_engine: bool = False
    """True where `astune.rollout.engine` chooses what answers."""


TRAITS = {
    "debug": Traits(trains=False),
    "local": Traits(own_engine=True),
    "trinity": Traits(own_loop=False),
}
"""The backbones that are not as `verl` and plug-ins are."""


class AstuneConfig(Section):
    project_name: str = Field(
        "astune",
        description="first folder under runs_dir",
        json_schema_extra=fate(
            OnTrinity(
                to={"project": "same"},
                ours="the process that was started, which keeps the run folder, whose first part it names",
            )
        ),
    )
    experiment_name: str | None = Field(
        None,
        description="second folder under runs_dir; null: name of the config file",
        json_schema_extra=fate(OnTrinity(ours="the run folder, whose name becomes Trinity's `name`")),
    )
    runs_dir: str = Field(
        "runs",
        description="where runs are kept; relative to the working directory",
        json_schema_extra=fate(OnTrinity(ours="the run folder, under which Trinity's checkpoint_root_dir lies")),
    )
    backbone: Plugin = Field(
        "local",
        description="'debug', 'local', 'trinity', 'verl' or a plug-in; --backbone sets it",
        json_schema_extra=fate(OnTrinity(ignored="it chose Trinity"), OnVerl(ignored="it chose verl")),
    )
    resume: bool = Field(
        False,
        description="go on from the newest checkpoint of the same run; --resume sets it",
        json_schema_extra=fate(OnTrinity(to={"continue_from_checkpoint": "same"}, ours=STARTED)),
    )
    allow_changes: bool = Field(
        False,
        description="with resume: go on though options are not the run's own; --allow-changes sets it",
        json_schema_extra=fate(
            OnTrinity(ours="the process that was started, which compares the options of a resumed run")
        ),
    )
    seed: NonNegativeInt = Field(
        42,
        description="one seed for task order, sampling and everything else",
        json_schema_extra=fate(
            OnTrinity(
                to={"explorer.rollout_model.seed": "same", "model.tinker.seed": "same"},
                ours="our reader, which hands out the tasks, in an order that depends on it",
            ),
            OnVerl(
                to={"actor_rollout_ref.actor.fsdp_config.seed": "seed", "actor_rollout_ref.rollout.seed": "seed"},
                ours=LOOP,
            ),
        ),
    )
    model: ModelConfig = Field(
        default_factory=ModelConfig,
        description="the model that is trained",
        json_schema_extra=fate(OnTrinity(ours="the workflow inside Trinity's runners renders and parses messages")),
    )
    models: dict[str, NamedModelConfig] = Field(
        default_factory=dict,
        description="several models in one run, by name: adapters over astune.model, or whole ones, each with a "
        "learning of its own; keys of each: path, frozen, start_from, lora, trainer, algorithm, past_of, size, every, "
        "draw; empty: the one model",
        json_schema_extra=fate(
            OnTrinity(
                unsupported="Trinity trains one model, and its servers answer with that one; take the key out and have "
                "the others behind astune.rollout.auxiliary_models, or use the backbone 'local'"
            ),
            OnVerl(
                unsupported="verl trains one adapter, and its servers answer with that one; take the key out and have "
                "the others behind astune.rollout.auxiliary_models, or use the backbone 'local'"
            ),
        ),
    )
    task_reader: TaskReaderConfig = Field(
        default_factory=TaskReaderConfig,
        description="where tasks come from",
        json_schema_extra=fate(OnTrinity(ours=READER, methods=("rl",))),
    )
    rollout: RolloutConfig = Field(
        default_factory=RolloutConfig,
        description="how episodes are run",
        json_schema_extra=fate(OnTrinity(ours=RUNNERS, methods=("rl",))),
    )
    tools: ToolsConfig = Field(
        default_factory=ToolsConfig,
        description="servers of tools for agents",
        json_schema_extra=fate(OnTrinity(ours=RUNNERS, methods=("rl",))),
    )
    task_judge: TaskJudgeConfig = Field(
        default_factory=TaskJudgeConfig,
        description="how episodes are judged",
        json_schema_extra=fate(
            OnTrinity(ours="the workflow inside Trinity's runners calls the judge", methods=("rl",))
        ),
    )
    rubrics: RubricsConfig = Field(
        default_factory=RubricsConfig,
        description="used by `rubrics`, which learns a rubric from examples",
        json_schema_extra=fate(
            OnTrinity(ignored="for `rubrics`, which learns a rubric before a run"),
            OnVerl(ignored="for `rubrics`, which learns a rubric before a run"),
        ),
    )
    prompts: PromptsConfig = Field(
        default_factory=PromptsConfig,
        description="texts that agents ask for by name, and `prompt`, which searches for better ones",
        json_schema_extra=fate(
            OnTrinity(ignored="for `prompt`, which searches before a run"),
            OnVerl(ignored="for `prompt`, which searches before a run"),
        ),
    )
    algorithm: AlgorithmConfig = Field(
        default_factory=AlgorithmConfig,
        description="from rewards to the loss",
        json_schema_extra=fate(
            OnTrinity(ours="our samples operator, in Trinity's experience pipeline", methods=("rl",))
        ),
    )
    trainer: TrainerConfig = Field(default_factory=TrainerConfig, description="the optimizer and the length of the run")
    synchronizer: SynchronizerConfig = Field(
        default_factory=SynchronizerConfig, description="how far rollouts and training may be apart"
    )
    stages: tuple[dict[str, Any], ...] = Field(
        (),
        description="what is trained one after the other: sections of astune for each stage, laid over the others: "
        "[{algorithm: {method: sft}, trainer: {...}}, {algorithm: {...}, ...}]",
        json_schema_extra=fate(
            OnTrinity(unsupported="Trinity trains in one stage; run them one after the other, or take the key out")
        ),
    )
    evaluation: EvaluationConfig = Field(
        default_factory=EvaluationConfig,
        description="when held-out tasks are run",
        json_schema_extra=fate(
            OnTrinity(ours="our reader, which hands out the tasks, evaluations included", methods=("rl",))
        ),
    )
    debug: DebugConfig = Field(
        default_factory=DebugConfig,
        description="used by --backbone=debug only",
        json_schema_extra=fate(OnTrinity(ignored="for --backbone=debug"), OnVerl(ignored="for --backbone=debug")),
    )
    monitor: MonitorConfig = Field(
        default_factory=MonitorConfig,
        description="what a run shows and keeps",
        json_schema_extra=fate(OnTrinity(ours=STARTED)),
    )
    online: OnlineConfig = Field(
        default_factory=OnlineConfig,
        description="used by `astune online`, which trains from what users say",
        json_schema_extra=fate(
            OnTrinity(ignored="for `astune online`, which is no run of Trinity"),
            OnVerl(ignored="for `astune online`, which is no run of verl"),
        ),
    )

    @field_validator("models")
    @classmethod
    def _check_names(cls, models: dict[str, NamedModelConfig]) -> dict[str, NamedModelConfig]:
        if wrong := [name for name in models if not re.fullmatch(NAME, name)]:
            raise ValueError(f"names of letters, digits, - and _, 64 at most, and {wrong[0]!r} is none")
        folders: dict[str, str] = {}
        for name in models:
            if (other := folders.setdefault(name.lower(), name)) != name:
                raise ValueError(
                    f"names that differ in more than capitals, as each has a folder, not {other!r} and {name!r}"
                )
        return models

    @property
    def traits(self) -> Traits:
        """The traits of the backbone."""
        return TRAITS.get(self.backbone, Traits())


class Config(Section):
    astune: AstuneConfig = Field(
        default_factory=AstuneConfig, description="everything ASTune reads", json_schema_extra=fate(OnVerl(ours=LOOP))
    )
    trinity: dict[str, Any] = Field(
        default_factory=dict,
        description="Trinity's own keys, on top of what is converted from astune; used by --backbone=trinity only",
    )
    verl: dict[str, Any] = Field(
        default_factory=dict,
        description="verl's own keys, on top of what is converted from astune; used by --backbone=verl only",
    )
